"""One engine's cache, open in this process, and copies between it and the pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from dataplane.devices.paged import I64
from dataplane.devices.pinning import Pinned
from dataplane.devices.runtime import DeviceError, Opened, plain_uuid
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.transport.copying import CopyFailed
from dataplane.transport.device_memory import DeviceMemory
from dataplane.transport.devices import Devices
from dataplane.transport.driven.registrations import Registration

PIECES_PER_STEP = 1 << 20
"""Runs of bytes that are reckoned at a time."""


@dataclass(frozen=True, slots=True)
class Part:
    """Chunks of a copy that lie in one segment, or those that come from replicas."""

    memory: Pinned | None
    """None of replicas."""
    chunks: I64
    """Positions of the chunks in the request."""
    offsets: I64
    """Where each begins, in bytes from the segment's start; of replicas the address."""


class Cache:
    """Opened on one thread, used by one other at a time, closed when nobody uses it."""

    def __init__(self, registration: Registration, devices: Devices) -> None:
        """Raises ProtocolError; then nothing is open."""
        self.space = registration.space
        self.form = registration.form
        self.device_uuid = plain_uuid(registration.device_uuid)
        try:
            devices.runtime()
        except DeviceError as error:
            raise ProtocolError(Code.UNSUPPORTED, f"no device can be used here: {error}", "device") from None
        field = "device"
        try:
            with ExitStack() as opening:
                self._memory = DeviceMemory(devices, registration.device_uuid)
                opening.callback(self._memory.close)
                allocations = []
                for at, body in enumerate(registration.allocations):
                    field = f"allocations[{at}]"
                    allocations.append(self._memory.open(body))
                field = "device"
                self._bases = [
                    _place(at, allocations[allocation], offset, nbytes)
                    for at, (allocation, offset, nbytes) in enumerate(registration.places)
                ]
                self._memory.ready()
                opening.pop_all()
        except DeviceError as error:
            devices.failed(error)
            raise ProtocolError(Code.DEVICE_REFUSED, str(error), field) from None

    # ---- copies, on a thread of their own

    def wait(self, event: bytes, ended: Callable[[], bool]) -> None:
        """Until the engine came so far. Raises CopyFailed, also when `ended` says that nobody waits any more."""
        self._memory.wait(event, ended)

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
        try:
            for part in parts:
                self._copy_part(part, blocks, wanted, ended, to_device=to_device)
        finally:
            self._memory.synchronize()

    def _copy_part(
        self,
        part: Part,
        blocks: I64,
        wanted: range,
        ended: Callable[[], bool],
        *,
        to_device: bool,
    ) -> None:
        """Raises CopyFailed."""
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
            if part.memory is None:
                self._memory.copy_within(runs, 0)
            else:
                self._memory.copy(runs, part.memory, 0, to_device=to_device)

    def close(self) -> None:
        """Close everything that was opened. No copy is under way."""
        self._memory.close()


def _place(at: int, opened: Opened, offset: int, nbytes: int) -> int:
    """Where a tensor begins in this process. Raises ProtocolError."""
    if offset + nbytes > opened.nbytes:
        raise ProtocolError(
            Code.BAD_CACHE,
            f"it ends at {offset + nbytes} of an allocation of {opened.nbytes} bytes",
            f"tensors[{at}].offset",
        )
    return opened.address + offset
