"""A device as the core sees it: work is taken and done, and engines read GPU copies under their leases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dataplane.core.gpu_copies.extents import Extent
from dataplane.core.gpu_copies.pool import FreeExtent, PendingCopy
from dataplane.protocol.gpu_copies import GpuCopyIndex, table_bytes
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.stats.pins import GpuCopyPoolStats
from tests.dataplane.bench_node import Bench, BenchEngine

UUID = "7717ca5e-0000-4000-8000-000000000000"
Bytes = tuple[int, int]
"""What a slot has in place of bytes: the descriptor and control word of the block that was copied there."""


@dataclass
class BenchDevice:
    """One GPU. Its work waits until it is asked to go on."""

    bench: Bench
    capacity_bytes: int
    device: str = UUID
    queue: list[PendingCopy | FreeExtent] = field(default_factory=list)
    memory: dict[int, dict[int, Bytes]] = field(default_factory=dict)
    """Of allocated extents: what was written, by offset."""
    refuses: bool = False
    """More memory."""
    seen: dict[int, dict[int, tuple[int, int, Bytes]]] = field(default_factory=dict)
    """What engines read, by client and descriptor: extent, offset, and what must be there."""
    open_in: dict[int, dict[int, Extent]] = field(default_factory=dict)
    """Extents that engines have mapped."""

    def __post_init__(self) -> None:
        self.table = GpuCopyIndex(bytearray(table_bytes(self.bench.index.max_blocks)), self.bench.index.max_blocks)
        self.table.format(1)

    def read_by(self, *engines: BenchEngine) -> None:
        gpu_copies = self.bench.node.gpu_copies
        if self.device not in gpu_copies.pools:
            gpu_copies.open(self.device, "bench", self.capacity_bytes, self.table, self.bench.now)
        for engine in engines:
            gpu_copies.read_by(engine.client, self.device)
            self.open_in.setdefault(engine.client, {})

    # ---- what the data plane's side does

    def take(self) -> None:
        self.queue += self.bench.node.gpu_copies.work(self.device)

    def do_one(self) -> None:
        """The next piece of work."""
        work = self.queue.pop(0)
        gpu_copies = self.bench.node.gpu_copies
        if isinstance(work, FreeExtent):
            for known in self.open_in.values():
                assert work.extent.number not in known, "memory that an engine has open is given back"
            del self.memory[work.extent.number]
            return
        gpu_copy, extent = work.gpu_copy, work.gpu_copy.extent
        if extent.number not in self.memory:
            if self.refuses:
                gpu_copies.failed(self.device, work, "out of memory", self.bench.now, memory=True, lasting=False)
                return
            self.memory[extent.number] = {}
        block = gpu_copy.block
        assert self.bench.memory.segments[work.segment] >= work.offset + block.nbytes
        self.memory[extent.number][gpu_copy.offset] = block.number, block.control
        gpu_copies.copied(self.device, [work])

    def fail_one(self, *, lasting: bool = False) -> None:
        """The next copy fails after its memory was allocated."""
        work = self.queue.pop(0)
        assert isinstance(work, PendingCopy)
        self.bench.node.gpu_copies.failed(
            self.device, work, "an illegal address", self.bench.now, memory=False, lasting=lasting
        )

    def run(self, seconds: float = 0.6, times: int = 4) -> None:
        """Time passes, and all work is done."""
        for _ in range(times):
            self.bench.pass_time(seconds)
            self.take()
            while self.queue:
                self.do_one()
                self.take()

    # ---- what engines do

    def load(self, engine: BenchEngine, chain: Sequence[bytes], space: int = 0) -> list[bool]:
        """Lease a chain and find its GPU copies: which blocks have one. They are in use until `release`."""
        hits = engine.acquire(chain, space)
        numbers, controls = self.bench.index.find(pack_keys(list(chain[:hits])), engine.spaces[space])
        extents, offsets = self.table.locations(numbers, controls)
        seen = self.seen.setdefault(engine.client, {})
        opened = self.open_in[engine.client]
        for extent in set(extents.tolist()) - opened.keys() - {0}:
            for granted in self.bench.node.gpu_copies.grant(engine.client, self.device, [extent]):
                opened[extent] = granted
        found = []
        for number, control, extent, offset in zip(
            numbers.tolist(), controls.tolist(), extents.tolist(), offsets.tolist(), strict=True
        ):
            if extent:
                seen[number] = extent, offset, (number, control)
            found.append(extent != 0)
        return found

    def release(self, engine: BenchEngine) -> None:
        engine.release()
        self.seen.pop(engine.client, None)

    def close_gone(self, engine: BenchEngine) -> None:
        """The engine looks at the table and closes what is not listed any more."""
        gone = [number for number in self.open_in[engine.client] if number not in self.table.extents()]
        for number in gone:
            del self.open_in[engine.client][number]
        self.bench.node.gpu_copies.closed(engine.client, self.device, gone)

    def end(self, engine: BenchEngine) -> None:
        """The engine's process is gone, and its mappings with it."""
        self.seen.pop(engine.client, None)
        self.open_in.pop(engine.client, None)

    # ---- what must hold

    @property
    def stats(self) -> GpuCopyPoolStats:
        return next(each for each in self.bench.node.stats(self.bench.now).gpu_copy_pools if each.device == self.device)

    def shown(self) -> dict[int, Bytes]:
        """What the table says, by descriptor."""
        every = np.arange(self.bench.index.max_blocks, dtype=np.int64)
        extents, offsets = self.table.locations(every, self.bench.index.control.copy())
        return {
            number: self.memory[extent][offset]
            for number, (extent, offset) in enumerate(zip(extents.tolist(), offsets.tolist(), strict=True))
            if extent
        }

    def faults(self) -> list[str]:
        found = []
        for number, there in self.shown().items():
            if there[0] != number:
                found.append(f"the table shows block {number} where {there} was copied")
        for client, blocks in self.seen.items():
            for number, (extent, offset, bytes_) in blocks.items():
                if self.memory.get(extent, {}).get(offset) != bytes_:
                    found.append(f"client {client} reads block {number}, and something else was written there")
        stats = self.stats
        allocated = set(self.memory)
        pool = self.bench.node.gpu_copies.pools[self.device]
        known = {each.number for each in (*pool.extents.values(), *pool.leaving.values(), *pool.freeing)}
        known |= {each.extent.number for each in self.queue if isinstance(each, FreeExtent)}
        if not allocated <= known:
            found.append(f"memory of extents {sorted(allocated - known)} is lost")
        if stats.used_bytes > self.capacity_bytes:
            found.append(f"{stats.used_bytes} of {self.capacity_bytes} bytes are used")
        return found
