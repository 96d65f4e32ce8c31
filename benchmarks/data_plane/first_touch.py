"""The first bytes into a pool: at once after its start, when its memory was taken ahead, when it was written before."""

import time
from functools import partial
from statistics import median

from benchmarks.harness.memory import Mapping, MiB
from benchmarks.harness.result import Result, at_least
from benchmarks.harness.setting import TIMEOUT_S, Setting, attached
from benchmarks.harness.timing import once_ns
from dataplane.client import Client
from dataplane.replay.control import ControlLink
from dataplane.replay.plane import Plane, own

BLOCK_BYTES = 2 * MiB
BATCH_BYTES = 32 * MiB


def run(setting: Setting) -> list[Result]:
    """Baselines: copies to a mapping without any pages, and to the same mapping again. Reported, no target."""
    pool_bytes = setting.effort.pool_bytes
    batches = pool_bytes // BATCH_BYTES
    source = Mapping(BATCH_BYTES)
    fresh = Mapping(pool_bytes, prefault=False)
    try:
        bare = [[once_ns(partial(_copy, fresh, source, turn)) for turn in range(batches)] for _ in range(2)]
        at_once = _passes(setting, source, ahead=False)
        ahead = _passes(setting, source, ahead=True)
    finally:
        source.close()
        fresh.close()
    return [
        at_least("store_first_touch", _gbps(at_once[0]), "GB/s", None, _gbps(bare[0])),
        at_least("store_prefaulted", _gbps(ahead[0]), "GB/s", None, _gbps(bare[0])),
        at_least("store_touched", _gbps(at_once[1] + ahead[1]), "GB/s", None, _gbps(bare[1])),
    ]


def _passes(setting: Setting, source: Mapping, *, ahead: bool) -> list[list[int]]:
    """Two fills of a new pool, batch by batch; `ahead`: once the pool has taken all of its memory."""
    pool_bytes = setting.effort.pool_bytes
    with own(pool_bytes) as plane:
        if ahead:
            _wait_for_memory(plane, pool_bytes)
        with attached(plane.engine_socket, BLOCK_BYTES, checksums=False, verify="off") as client:
            batches = range(pool_bytes // BATCH_BYTES)
            return [[once_ns(partial(_store, setting, client, source)) for _ in batches] for _ in range(2)]


def _wait_for_memory(plane: Plane, nbytes: int) -> None:
    assert plane.control_url is not None
    deadline = time.monotonic() + TIMEOUT_S
    with ControlLink(plane.control_url) as link:
        while link.describe(TIMEOUT_S).stats.pool.prefaulted_bytes < nbytes:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the pool did not take {nbytes} bytes ahead within {TIMEOUT_S} s")
            time.sleep(0.05)


def _copy(fresh: Mapping, source: Mapping, turn: int) -> None:
    fresh.view[turn * BATCH_BYTES : (turn + 1) * BATCH_BYTES] = source.view


def _store(setting: Setting, client: Client, source: Mapping) -> None:
    keys = setting.new_keys(BATCH_BYTES // BLOCK_BYTES)
    with client.reserve(keys, BLOCK_BYTES) as reservation:
        for position in reservation.writable:
            at = position * BLOCK_BYTES
            reservation.view(position)[:] = source.view[at : at + BLOCK_BYTES]
        reservation.commit()


def _gbps(times_ns: list[int]) -> float:
    return median(BATCH_BYTES / time_ns for time_ns in times_ns)
