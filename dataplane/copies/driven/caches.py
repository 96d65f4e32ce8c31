"""One engine's cache, opened in this process, and copies between it and the pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dataplane.copies.copying import CopyFailed
from dataplane.copies.device_memory import DeviceMemory
from dataplane.copies.devices import Devices
from dataplane.copies.driven.registrations import Registration
from dataplane.devices.paged import I64
from dataplane.devices.pinning import PinnedMemory
from dataplane.devices.runtime import DeviceError, OpenedMemory, plain_uuid
from dataplane.protocol.codes import Code, ProtocolError

PIECES_PER_STEP = 1 << 20
"""Number of byte runs that are computed at a time."""


class SegmentMemory(Protocol):
    """A segment of the pool in this process."""

    address: int


@dataclass(frozen=True, slots=True)
class CachePart:
    """Chunks of a copy that lie in one segment, or that come from GPU copies."""

    memory: SegmentMemory | None
    """None for GPU copies."""
    chunks: I64
    """Positions of the chunks in the request."""
    offsets: I64
    """Start of each chunk: bytes from the segment's start, or addresses of GPU copies."""


class EngineCache:
    """An engine's open cache: opened on one thread, used by one other thread at a time, closed when unused."""

    def __init__(self, registration: Registration, devices: Devices) -> None:
        """Open the cache. Raises ProtocolError; then nothing stays open."""
        self.space = registration.space
        self.group = registration.group
        self.device_uuid = plain_uuid(registration.device_uuid)
        self._devices = devices
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
                    _address(at, allocations[allocation], offset, nbytes)
                    for at, (allocation, offset, nbytes) in enumerate(registration.locations)
                ]
                self._memory.ready()
                opening.pop_all()
        except DeviceError as error:
            devices.failed(error)
            raise ProtocolError(Code.DEVICE_REFUSED, str(error), field) from None

    def segment(self, number: int) -> SegmentMemory:
        """Return memory of the pool for a part of a copy. Raise CopyFailed."""
        try:
            return self._devices.segment(number)
        except DeviceError as error:
            raise CopyFailed(str(error)) from None

    # ---- copies, on a separate thread

    def wait(self, event: bytes, ended: Callable[[], bool]) -> None:
        """Wait until the engine's event has completed. Raises CopyFailed, also if `ended` returns that the copy is no
        longer wanted."""
        self._memory.wait(event, ended)

    def copy(
        self,
        parts: Sequence[CachePart],
        blocks: I64,
        positions_needed: range,
        ended: Callable[[], bool],
        *,
        to_device: bool,
    ) -> None:
        """Copy chunks, whose blocks are the rows of `blocks`. Of all these blocks, in order, copy only the range
        `positions_needed`. No copy is in progress when this returns or raises CopyFailed."""
        try:
            for part in parts:
                self._copy_part(part, blocks, positions_needed, ended, to_device=to_device)
        finally:
            self._memory.synchronize()

    def _copy_part(
        self, part: CachePart, blocks: I64, positions_needed: range, ended: Callable[[], bool], *, to_device: bool
    ) -> None:
        """Enqueue the copies of one part. Raises CopyFailed."""
        per_chunk = self.group.blocks_per_chunk
        pieces = per_chunk * sum(len(each.starts) for each in self.group.tensors)
        step = max(1, PIECES_PER_STEP // pieces)
        for low in range(0, len(part.chunks), step):
            if ended():
                raise CopyFailed("the engine is gone")
            chunks, offsets = part.chunks[low : low + step], part.offsets[low : low + step]
            positions = np.tile(np.arange(per_chunk, dtype=np.int64), len(chunks))
            begins = np.repeat(offsets, per_chunk)
            numbers = blocks[chunks].ravel()
            if len(positions_needed) < blocks.size:
                chunk_positions = np.repeat(chunks * per_chunk, per_chunk) + positions
                selected = (chunk_positions >= positions_needed.start) & (chunk_positions < positions_needed.stop)
                positions, begins, numbers = positions[selected], begins[selected], numbers[selected]
            if not len(numbers):
                continue
            runs = self.group.runs(numbers, bases=self._bases, in_chunks=(positions, begins))
            if part.memory is None:
                self._memory.copy_within(runs, 0)
            else:
                assert isinstance(part.memory, PinnedMemory)  # from `segment`
                self._memory.copy(runs, part.memory, 0, to_device=to_device)

    def close(self) -> None:
        """Close all opened memory. No copy may be in progress."""
        self._memory.close()


def _address(at: int, opened: OpenedMemory, offset: int, nbytes: int) -> int:
    """Return the address of a tensor in this process. Raises ProtocolError."""
    if offset + nbytes > opened.nbytes:
        raise ProtocolError(
            Code.BAD_CACHE,
            f"it ends at {offset + nbytes} of an allocation of {opened.nbytes} bytes",
            f"tensors[{at}].offset",
        )
    return opened.address + offset
