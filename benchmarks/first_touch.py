"""The first bytes into a fresh pool against the same bytes when every page was touched before."""

from functools import partial
from statistics import median

from benchmarks.memory import Mapping, MiB
from benchmarks.result import Result, at_least
from benchmarks.setting import Setting
from benchmarks.timing import once_ns
from dataplane.client import Client

BLOCK_BYTES = 2 * MiB
BATCH_BYTES = 32 * MiB


def run(setting: Setting) -> list[Result]:
    """Baselines: copies to a mapping that nobody touched, and to the same mapping again. Reported, no target."""
    pool_bytes = setting.effort.pool_bytes
    batches = pool_bytes // BATCH_BYTES
    source = Mapping(BATCH_BYTES)
    fresh = Mapping(pool_bytes, prefault=False)
    try:
        bare = [[once_ns(partial(_copy, fresh, source, turn)) for turn in range(batches)] for _ in range(2)]
        with setting.client(BLOCK_BYTES) as client:
            ours = [
                [once_ns(partial(_store, setting, client, source)) for _ in range(batches)] for _ in range(2)
            ]
    finally:
        source.close()
        fresh.close()
    return [
        at_least(f"store_{name}", _gbps(ours[turn]), "GB/s", None, _gbps(bare[turn]))
        for turn, name in enumerate(("first_touch", "touched"))
    ]


def _copy(fresh: Mapping, source: Mapping, turn: int) -> None:
    fresh.view[turn * BATCH_BYTES : (turn + 1) * BATCH_BYTES] = source.view


def _store(setting: Setting, client: Client, source: Mapping) -> None:
    keys = setting.new_keys(BATCH_BYTES // BLOCK_BYTES)
    with client.reserve(keys, BLOCK_BYTES) as reservation:
        for position in reservation.writable:
            at = position * BLOCK_BYTES
            reservation.view(position)[:] = source.view[at : at + BLOCK_BYTES]
        reservation.commit()


def _gbps(taken_ns: list[int]) -> float:
    return median(BATCH_BYTES / taken for taken in taken_ns)
