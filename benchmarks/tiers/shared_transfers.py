"""Stores and loads of a shared tier, beside a bare client that moves the same values, in turns."""

from collections.abc import Callable
from hashlib import sha256
from random import Random
from time import monotonic

from benchmarks.harness.memory import MiB
from benchmarks.harness.result import Result, at_least
from benchmarks.harness.timing import Throughput
from dataplane.base.units import format_size
from dataplane.protocol.checksums import checksum
from dataplane.protocol.stored_blocks import BlockName, Outcome, StoredBlock
from dataplane.tiers.header import pack_header
from dataplane.tiers.tier import BlockLoad, BlockStore, Tier

CLUSTER = b"benchmark-blocks"
BATCH_BYTES = 32 * MiB
SIZES = (256 << 10, 2 * MiB, 16 * MiB)
TARGET = 0.8
_DEADLINE_S = 120.0


class Batch:
    """Blocks of one size, and memory to load them into."""

    def __init__(self, block_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.data = [Random(number).randbytes(block_bytes) for number in range(BATCH_BYTES // block_bytes)]
        self.into = [memoryview(bytearray(block_bytes)) for _ in self.data]
        block_names = [BlockName(bytes(16), sha256(b"%d" % number).digest()) for number in range(len(self.data))]
        self.stores = [
            BlockStore(StoredBlock(name, "bench", 1, block_bytes, checksum(data)), data)
            for name, data in zip(block_names, self.data, strict=True)
        ]
        self.loads = [BlockLoad(name, into) for name, into in zip(block_names, self.into, strict=True)]
        self.headers = [pack_header(store.block, CLUSTER) for store in self.stores]

    def store(self, tier: Tier) -> None:
        """Store the blocks in one call. Raises RuntimeError if one was refused."""
        outcomes = tier.store(self.stores, monotonic() + _DEADLINE_S)
        if set(outcomes) != {Outcome.OK}:
            raise RuntimeError(f"stores ended as {set(outcomes)}")

    def load(self, tier: Tier) -> None:
        """Load the blocks in one call. Raises RuntimeError if one is missing."""
        outcomes = {loaded.outcome for loaded in tier.load(self.loads, monotonic() + _DEADLINE_S)}
        if outcomes != {Outcome.OK}:
            raise RuntimeError(f"loads ended as {outcomes}")


def measure(
    label: str, tier: Tier, batch: Batch, bare_store: Callable[[], None], bare_load: Callable[[], None], rounds: int
) -> list[Result]:
    """Return the ratios to the bare client, and GB/s with the bare client's as baseline."""
    batch.store(tier)
    bare_store()
    stored = Throughput(lambda: batch.store(tier), bare_store, BATCH_BYTES, rounds=rounds)
    loaded = Throughput(lambda: batch.load(tier), bare_load, BATCH_BYTES, rounds=rounds)
    size = f"{label}_{format_size(batch.block_bytes).replace(' ', '')}"
    return [
        at_least(f"{size}_store_ratio", stored.ratio, "of bare client", TARGET, stored.baseline_gbps),
        at_least(f"{size}_store", stored.gbps, "GB/s", None, stored.baseline_gbps),
        at_least(f"{size}_load_ratio", loaded.ratio, "of bare client", TARGET, loaded.baseline_gbps),
        at_least(f"{size}_load", loaded.gbps, "GB/s", None, loaded.baseline_gbps),
    ]
