"""What is measured: a disk tier, and beside it plain reads and writes of one preallocated file."""

import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from time import monotonic

from benchmarks.harness.memory import MiB
from dataplane.protocol.checksums import checksum
from dataplane.protocol.stored_blocks import BlockName, Outcome, StoredBlock
from dataplane.tiers.disk.disk_tier import DiskTier, open_disk_tier
from dataplane.tiers.disk.parameters import DiskParameters
from dataplane.tiers.header import HEADER_BYTES
from dataplane.tiers.registry import TierContext
from dataplane.tiers.tier import BlockLoad, BlockStore

_CLUSTER = b"a bench cluster!"
_SPACE = b"a bench's space!"
_DEADLINE_S = 600.0
_SEGMENT_BYTES = 256 * MiB


def name(number: int) -> BlockName:
    return BlockName(_SPACE, number.to_bytes(32, "big"))


@contextmanager
def opened(directory: str, *, budget_bytes: int, segment_bytes: int, threads: int = 4) -> Iterator[DiskTier]:
    parameters = DiskParameters([directory], segment_bytes=segment_bytes, threads=threads)
    tier = open_disk_tier(parameters, TierContext(_CLUSTER, "bench", budget_bytes))
    try:
        yield tier
    finally:
        tier.close()


class TierFiles:
    """A batch of blocks of one size in page-aligned memory, an empty tier for them, and a raw file."""

    def __init__(self, block_bytes: int, batch_bytes: int, threads: int) -> None:
        self.batch_bytes = batch_bytes
        self._threads = threads
        self._block_bytes = block_bytes
        self._count = batch_bytes // block_bytes
        self._source = memoryview(mmap.mmap(-1, batch_bytes))
        self._target = memoryview(mmap.mmap(-1, batch_bytes))
        self._source[:] = os.urandom(MiB) * (batch_bytes // MiB)
        self._target[:] = bytes(batch_bytes)  # touch it
        self._header = memoryview(mmap.mmap(-1, HEADER_BYTES))
        self._checksums = [checksum(self._part(self._source, number)) for number in range(self._count)]
        self._sequences = count(1)

    @contextmanager
    def in_use(self) -> Iterator["TierFiles"]:
        """Open the files in a folder that is removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="larder-bench-") as folder:
            stored = 2 * (self.batch_bytes + self._count * HEADER_BYTES)
            with opened(
                f"{folder}/tier",
                budget_bytes=4 * stored + _SEGMENT_BYTES,
                segment_bytes=_SEGMENT_BYTES,
                threads=self._threads,
            ) as self.tier:
                direct = os.O_DIRECT if self.tier.health(monotonic() + _DEADLINE_S).reason == "" else 0
                self._raw = os.open(f"{folder}/raw", os.O_RDWR | os.O_CREAT | direct, 0o600)
                try:
                    os.posix_fallocate(self._raw, 0, stored)
                    self.raw_write()
                    yield self
                finally:
                    os.close(self._raw)

    def store(self) -> None:
        stores = [self._stored(number) for number in range(self._count)]
        outcomes = self.tier.store(stores, monotonic() + _DEADLINE_S)
        if set(outcomes) != {Outcome.OK}:
            raise RuntimeError(f"stored: {outcomes[:3]}")

    def load(self) -> None:
        loads = [BlockLoad(name(number), self._part(self._target, number)) for number in range(self._count)]
        loaded = self.tier.load(loads, monotonic() + _DEADLINE_S)
        if {load.outcome for load in loaded} != {Outcome.OK}:
            raise RuntimeError(f"loaded: {loaded[:3]}")

    def delete(self) -> None:
        self.tier.delete([name(number) for number in range(self._count)], monotonic() + _DEADLINE_S)

    def raw_write(self) -> None:
        self._spread(
            lambda number: os.pwritev(self._raw, [self._header, self._part(self._source, number)], self._at(number))
        )

    def raw_read(self) -> None:
        self._spread(
            lambda number: os.preadv(self._raw, [self._header, self._part(self._target, number)], self._at(number))
        )

    @property
    def blocks(self) -> int:
        return self._count

    def _stored(self, number: int) -> BlockStore:
        block = StoredBlock(name(number), "bench", next(self._sequences), self._block_bytes, self._checksums[number])
        return BlockStore(block, self._part(self._source, number))

    def _part(self, memory: memoryview, number: int) -> memoryview:
        return memory[number * self._block_bytes : (number + 1) * self._block_bytes]

    def _at(self, number: int) -> int:
        return number * (self._block_bytes + HEADER_BYTES)

    def _spread(self, move: Callable[[int], int]) -> None:
        """Move all blocks on as many threads as the tier has."""
        numbers = iter(range(self._count))

        def work() -> None:
            for number in numbers:
                if move(number) != self._block_bytes + HEADER_BYTES:
                    raise RuntimeError("a short read or write of the raw file")

        threads = [threading.Thread(target=work) for _ in range(self._threads - 1)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join(60)
