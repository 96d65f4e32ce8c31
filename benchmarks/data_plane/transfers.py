"""Storing and retrieving 64 MiB at a time, in blocks of 64 KiB, 2 MiB and 32 MiB, through a full pool; no checksums."""

from benchmarks.harness.memory import Memcpy, MiB
from benchmarks.harness.result import Result, at_least
from benchmarks.harness.setting import Setting, fill_pool
from benchmarks.harness.timing import Throughput
from dataplane.base.units import format_size
from dataplane.client import Client
from dataplane.protocol.layout import U64

SIZES = (64 << 10, 2 * MiB, 32 * MiB)
BATCH_BYTES = 64 * MiB
TARGET = 0.9


def run(setting: Setting) -> list[Result]:
    """Baseline: memcpy of the same bytes between two mappings as large as engine memory and the pool."""
    results = []
    for block_bytes in SIZES:
        with setting.memcpy(BATCH_BYTES) as memcpy, setting.client(block_bytes) as client:
            results += _measure(setting, client, memcpy, block_bytes)
    return results


def _measure(setting: Setting, client: Client, memcpy: Memcpy, block_bytes: int) -> list[Result]:
    effort = setting.effort
    count = BATCH_BYTES // block_bytes
    fill_pool(setting, client, block_bytes, effort.pool_bytes, count)
    batches = [setting.new_keys(count) for _ in range(effort.rounds)]
    coming = iter(batches)
    stored = Throughput(
        lambda: store(client, memcpy, next(coming), block_bytes), memcpy.into_arena, BATCH_BYTES, rounds=effort.rounds
    )
    resident = [keys for keys in batches if client.lookup(keys) == count]
    if not resident:
        raise RuntimeError("expected the last batches to be present")
    turns = (resident[number % len(resident)] for number in range(effort.rounds))
    read = Throughput(
        lambda: retrieve(client, memcpy, next(turns)), memcpy.out_of_arena, BATCH_BYTES, rounds=effort.rounds
    )
    setting.memcpy_gbps += [stored.baseline_gbps, read.baseline_gbps]
    size = format_size(block_bytes).replace(" ", "")
    return [
        at_least(f"store_{size}_ratio", stored.ratio, "of memcpy", TARGET, stored.baseline_gbps),
        at_least(f"store_{size}", stored.gbps, "GB/s", None, stored.baseline_gbps),
        at_least(f"retrieve_{size}_ratio", read.ratio, "of memcpy", TARGET, read.baseline_gbps),
        at_least(f"retrieve_{size}", read.gbps, "GB/s", None, read.baseline_gbps),
    ]


def store(client: Client, memcpy: Memcpy, keys: U64, block_bytes: int) -> None:
    """Copy a batch into the arena and publish it. RuntimeError when a block is refused."""
    engine = memcpy.engine.view
    with client.reserve(keys, block_bytes) as reservation:
        reservation.copy_from(engine)
        written = reservation.commit().blocks
    if written != len(keys):
        raise RuntimeError(f"stored {written} of {len(keys)} blocks: {reservation.refused}")


def retrieve(client: Client, memcpy: Memcpy, keys: U64) -> None:
    """Copy a batch out of the arena. RuntimeError when a block is missing."""
    engine = memcpy.engine.view
    with client.acquire(keys) as lease:
        lease.copy_to(engine)
        hits = len(lease)
    if hits != len(keys):
        raise RuntimeError(f"retrieved {hits} of {len(keys)} blocks")
