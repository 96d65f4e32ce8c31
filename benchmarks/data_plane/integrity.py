"""What integrity costs: storing with checksums beside without, reading verified beside unverified, in one run."""

from functools import partial
from statistics import median

from benchmarks.data_plane.transfers import BATCH_BYTES, SIZES, retrieve, store
from benchmarks.harness.memory import Memcpy
from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import Setting, fill_pool
from benchmarks.harness.timing import once_ns
from dataplane.base.units import format_size
from dataplane.client import Client
from dataplane.protocol.checksums import checksum
from dataplane.protocol.layout import U64


def run(setting: Setting) -> list[Result]:
    """Cost in percent of the time without, pair by pair. Baseline: GB/s of hashing alone, bytes in memory."""
    results = []
    for block_bytes in SIZES:
        with (
            setting.memcpy(BATCH_BYTES) as memcpy,
            setting.client(block_bytes) as plain,
            setting.another(plain, block_bytes, checksums=True) as summed,
            setting.another(plain, block_bytes, verify="always") as verified,
        ):
            results += _measure(setting, memcpy, plain, summed, verified, block_bytes)
    return results


def _measure(
    setting: Setting, memcpy: Memcpy, plain: Client, summed: Client, verified: Client, block_bytes: int
) -> list[Result]:
    effort = setting.effort
    count = BATCH_BYTES // block_bytes
    fill_pool(setting, plain, block_bytes, effort.pool_bytes, count)
    fill_pool(setting, summed, block_bytes, effort.pool_bytes, count)  # its own mapping is touched as well
    storing = []
    batches: list[U64] = []
    for _ in range(effort.rounds):
        bare, keys = setting.new_keys(count), setting.new_keys(count)
        without = once_ns(partial(store, plain, memcpy, bare, block_bytes))
        storing.append(_percent(once_ns(partial(store, summed, memcpy, keys, block_bytes)), without))
        batches.append(keys)
    resident = [keys for keys in batches if verified.lookup(keys) == count]
    if not resident:
        raise RuntimeError("expected the last batches to be present")
    for client in (plain, verified):  # both map every segment before they are compared
        for keys in resident:
            retrieve(client, memcpy, keys)
    reading = []
    for number in range(effort.rounds):
        keys = resident[number % len(resident)]
        other_keys = resident[(number + 1) % len(resident)]
        without = once_ns(partial(retrieve, plain, memcpy, other_keys))
        reading.append(_percent(once_ns(partial(retrieve, verified, memcpy, keys)), without))
    size = format_size(block_bytes).replace(" ", "")
    hashing = _hashing_gbps(memcpy, block_bytes)
    return [
        at_most(f"store_{size}_checksums_cost", median(storing), "% more time", None, hashing),
        at_most(f"retrieve_{size}_verify_cost", median(reading), "% more time", None, hashing),
    ]


def _percent(taken_ns: int, without_ns: int) -> float:
    return 100.0 * (taken_ns / without_ns - 1.0)


def _hashing_gbps(memcpy: Memcpy, block_bytes: int) -> float:
    view = memcpy.engine.view
    hashing_ns = once_ns(lambda: [checksum(view[at : at + block_bytes]) for at in range(0, BATCH_BYTES, block_bytes)])
    return BATCH_BYTES / hashing_ns
