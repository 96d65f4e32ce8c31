"""One engine's cache, open in this process, and copies between it and the pool.

Every allocation is opened once and closed with the cache: an open handle keeps the engine's memory on the device, long
after the engine. The engine's event is waited for here, before anything is enqueued: nothing has to be given up for an
engine that never comes so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dataplane.devices.copying import Lane
from dataplane.devices.paged import I64
from dataplane.devices.pinning import Pinned, Staging
from dataplane.devices.runtime import DeviceError, Handle, Opened, device_of, plain_uuid
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.transport.copying import CopyFailed, wait_for_engine
from dataplane.transport.driven.devices import Devices
from dataplane.transport.driven.registrations import Registration

PIECES_PER_STEP = 1 << 20
"""Runs of bytes that are reckoned at a time."""


@dataclass(frozen=True, slots=True)
class Part:
    """Chunks of a copy that lie in one segment."""

    memory: Pinned
    chunks: I64
    """Positions of the chunks in the request."""
    offsets: I64
    """Where each begins, in bytes from the segment's start."""


class Cache:
    """Opened on one thread, used by one other at a time, closed when nobody uses it."""

    def __init__(self, registration: Registration, devices: Devices) -> None:
        """Raises ProtocolError; then nothing is open."""
        self.space = registration.space
        self.form = registration.form
        self._devices = devices
        self._opened: list[Opened] = []
        self._lane: Lane | None = None
        self._staging: Staging | None = None
        try:
            runtime = devices.runtime()
        except DeviceError as error:
            raise ProtocolError(Code.UNSUPPORTED, f"no device can be used here: {error}", "device") from None
        field = "device"
        try:
            self._device = device_of(runtime, registration.device_uuid)
            uuid = plain_uuid(registration.device_uuid)
            for at, body in enumerate(registration.allocations):
                field = f"allocations[{at}]"
                self._opened.append(runtime.open(Handle(body, 0, 0, uuid)))
            field = "device"
            self._bases = [self._place(at, *place) for at, place in enumerate(registration.places)]
            self._lane = devices.lane(self._device)
        except DeviceError as error:
            self.close()
            devices.failed(error)
            raise ProtocolError(Code.DEVICE_REFUSED, str(error), field) from None
        except ProtocolError:
            self.close()
            raise

    def _place(self, at: int, allocation: int, offset: int, nbytes: int) -> int:
        """Where a tensor begins in this process."""
        opened = self._opened[allocation]
        if offset + nbytes > opened.nbytes:
            raise ProtocolError(
                Code.BAD_CACHE,
                f"it ends at {offset + nbytes} of an allocation of {opened.nbytes} bytes",
                f"tensors[{at}].offset",
            )
        return opened.address + offset

    # ---- copies, on a thread of their own

    def wait(self, event: bytes, ended: Callable[[], bool]) -> None:
        """Until the engine came so far. Raises CopyFailed, also when `ended` says that nobody waits any more."""
        try:
            wait_for_engine(self._devices.runtime(), self._device, event, ended, self._devices.close_quietly)
        except DeviceError as error:
            raise self._failure(error) from None

    def copy(
        self,
        parts: Sequence[Part],
        blocks: I64,
        wanted: range,
        ended: Callable[[], bool],
        *,
        to_device: bool,
    ) -> None:
        """Copy chunks, whose blocks are the rows of `blocks`: those of all together that are `wanted`. Nothing is under
        way when this returns, or raises CopyFailed."""
        assert self._lane is not None
        try:
            try:
                for part in parts:
                    self._copy_part(self._lane, part, blocks, wanted, ended, to_device=to_device)
            finally:
                self._lane.synchronize()
        except DeviceError as error:
            raise self._failure(error) from None

    def _copy_part(
        self,
        lane: Lane,
        part: Part,
        blocks: I64,
        wanted: range,
        ended: Callable[[], bool],
        *,
        to_device: bool,
    ) -> None:
        """Raises DeviceError, CopyFailed."""
        per_chunk = self.form.blocks_per_chunk
        pieces = per_chunk * sum(len(each.starts) for each in self.form.tensors)
        step = max(1, PIECES_PER_STEP // pieces)
        for low in range(0, len(part.chunks), step):
            if ended():
                raise CopyFailed("the engine is gone")
            chunks, offsets = part.chunks[low : low + step], part.offsets[low : low + step]
            positions = np.tile(np.arange(per_chunk, dtype=np.int64), len(chunks))
            begins = np.repeat(offsets, per_chunk)
            numbers = blocks[chunks].ravel()
            if len(wanted) < blocks.size:
                places = np.repeat(chunks * per_chunk, per_chunk) + positions
                kept = (places >= wanted.start) & (places < wanted.stop)
                positions, begins, numbers = positions[kept], begins[kept], numbers[kept]
            if not len(numbers):
                continue
            runs = self.form.runs(numbers, bases=self._bases, places=(positions, begins))
            if lane.copy_pinned(runs, part.memory, 0, to_device=to_device):
                continue
            assert part.memory.refused is not None
            self._devices.staging(part.memory.refused)
            if self._staging is None:
                self._staging = Staging(self._devices.runtime())
            lane.copy_staged(runs, self._staging, part.memory.address, to_device=to_device)

    def _failure(self, error: DeviceError) -> CopyFailed:
        self._devices.failed(error)
        return CopyFailed(str(error))

    # ---- the end

    def close(self) -> None:
        """Close everything that was opened. No copy is under way."""
        lane, self._lane = self._lane, None
        if lane is not None:
            self._devices.close_quietly(lane.close)
        opened, self._opened = self._opened, []
        for each in opened:
            self._devices.close_quietly(each.close)
        staging, self._staging = self._staging, None
        if staging is not None:
            self._devices.close_quietly(staging.close)
        if lane is not None:
            self._devices.leave()
