"""A data plane of a test's own process whose blocks have GPU copies, or what it says are some: it shows and lists them
as it is asked to. The bytes in its pool are other ones, so that a load tells where it read.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dataplane.protocol import engine as wire
from dataplane.protocol.codes import Code
from dataplane.protocol.gpu_copies import GpuCopyIndex, location_of, table_bytes
from dataplane.protocol.layout import H_MEMORY, HOT_CONTROL, pack_keys
from tests.dataplane.broken_plane import SEALS, SPACE, BrokenPlane, memory
from tests.gpu.machines import Machine, Other
from tests.gpu.paged_memory import POISON

IDENTITY = 77
POOL_BYTES = 64 << 20
Answer = tuple[Any, list[int]] | bytes | None


@dataclass
class GpuCopyPlane(BrokenPlane):
    """`refusal` is what it answers instead of GPU copies; `change` gets each of its answers before it is sent."""

    refusal: Code | None = None
    change: Callable[[wire.GpuCopiesMapped, list[int]], Answer] = lambda answer, fds: (answer, fds)
    extents: dict[int, wire.ExtentGrant] = field(default_factory=dict)
    old: bool = False
    """It is of a release that does not know the question."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.answer = self._answer
        self.index.header[H_MEMORY] = IDENTITY
        self.pool_fd = memory(POOL_BYTES)
        with mmap.mmap(self.pool_fd, POOL_BYTES) as pool:
            pool[: 32 << 20] = bytes([POISON]) * (32 << 20)
        self.table_fd = memory(table_bytes(self.max_blocks), name="gpu_copy-table")
        self.table = GpuCopyIndex(memoryview(mmap.mmap(self.table_fd, 0)), self.max_blocks)
        self.table.format(IDENTITY)

    @property
    def gpu_copy_requests(self) -> list[wire.MapGpuCopies]:
        return [request for request in self.requests if isinstance(request, wire.MapGpuCopies)]

    def block(self, key: bytes, at: int, nbytes: int) -> None:
        """A block of the pool, which has no GPU copy yet."""
        buckets, _ = self.index.buckets_and_tags(pack_keys([key]), SPACE)
        assert not self.index.entries[int(buckets[0, 0]), 0], "its bucket is taken: choose another key"
        self.publish(key, offset=at * nbytes, nbytes=nbytes, at=at)

    def make_gpu_copies(self, at: int, extent: int, offset: int) -> None:
        self.table.show(at, int(self.index.hot[at, HOT_CONTROL]), location_of(extent, offset))

    def export(self, number: int, machine: Machine, other: Other, offset: int = 0) -> None:
        """The memory of another process is an extent, from an offset on. It is not listed before `list_extents`."""
        reply = other.ask(do="handle")
        body, nbytes = bytes.fromhex(reply["body"]), int(reply["nbytes"])
        self.extents[number] = wire.ExtentGrant(number, body, reply["offset"] + offset, nbytes - offset)

    def list_extents(self) -> None:
        self.table.list_extents(list(self.extents))

    def give_up(self) -> None:
        """Withdraw the GPU copies of its three blocks, and all extents."""
        self.table.hide(np.arange(3))
        self.extents.clear()
        self.list_extents()

    def _answer(self, request: Any) -> Answer:
        number = request.id
        if isinstance(request, wire.MapGpuCopies):
            if self.old:
                return wire.Refused(0, int(Code.MALFORMED), "Invalid value 'map_gpu_copies'", "$[0]"), []
            if self.refusal is not None:
                return wire.Refused(number, int(self.refusal), "as the test says", "device"), []
            grants = [self.extents[each] for each in request.extents if each in self.extents]
            fds = [os.dup(self.table_fd)] if request.table else []
            return self.change(wire.GpuCopiesMapped(number, grants), fds)
        if isinstance(request, wire.Map):
            grant = wire.SegmentGrant(1, POOL_BYTES, False)
            return wire.SegmentsMapped(number, [grant]), [os.dup(self.pool_fd)]
        if isinstance(request, wire.Detach):
            return wire.Detached(number), []
        if isinstance(request, wire.Reserve):
            keys = len(request.keys) // 32
            outcomes = bytes([Code.POOL_FULL]) * keys
            return wire.Reserved(number, 0, outcomes, bytes(4 * keys), bytes(8 * keys), []), []
        return wire.Refused(number, int(Code.UNSUPPORTED), "it does nothing else"), []

    def leased(self) -> int:
        """Leases on its blocks."""
        return int(self.area.counters.sum())

    def close(self) -> None:
        super().close()
        os.close(self.pool_fd)
        os.close(self.table_fd)


def table_of(max_blocks: int, identity: int, seals: int = SEALS) -> int:
    """A fresh table's descriptor."""
    fd = memory(table_bytes(max_blocks), seals, "gpu_copy-table")
    GpuCopyIndex(memoryview(mmap.mmap(fd, 0)), max_blocks).format(identity)
    return fd
