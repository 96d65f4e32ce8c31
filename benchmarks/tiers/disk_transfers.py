"""Stores and loads of a disk tier, beside raw writes and reads of the same sizes, in turns."""

from collections.abc import Callable
from statistics import median
from time import perf_counter, process_time

from benchmarks.harness.memory import MiB
from benchmarks.harness.result import Result, at_least, at_most
from benchmarks.harness.setting import FULL, Setting
from benchmarks.tiers.disk_files import TierFiles
from dataplane.base.units import format_size

SIZES = (64 << 10, 2 * MiB, 16 * MiB)
_BATCH_BYTES = 128 * MiB
_QUICK_BATCH_BYTES = 16 * MiB
_GB = 1e9


def run(setting: Setting) -> list[Result]:
    """Ratios to the raw file, pair by pair; GB per second of CPU time. Baselines: the raw file."""
    results = []
    batch_bytes = _BATCH_BYTES if setting.effort == FULL else _QUICK_BATCH_BYTES
    for threads in (1, 4):
        for size in SIZES:
            with TierFiles(size, batch_bytes, threads).in_use() as files:
                results += _measure(files, f"{format_size(size).replace(' ', '')}_{threads}t", setting.effort.rounds)
    return results


def _measure(files: TierFiles, label: str, rounds: int) -> list[Result]:
    files.store()
    actions = (files.raw_write, files.store, files.raw_read, files.load, files.delete)
    times: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        files.delete()
        for action in actions:
            times.setdefault(action.__name__, []).append(_timed(action))
        times.setdefault("first", []).append(_timed(files.store))
        times.setdefault("replace", []).append(_timed(files.store))

    def of_raw(action: str, raw: str) -> float:
        return median(raw_s / action_s for (action_s, _), (raw_s, _) in zip(times[action], times[raw], strict=True))

    def per_s(action: str, clock: int) -> float:
        return files.batch_bytes / _GB / median(times_of_run[clock] for times_of_run in times[action])

    deleted_us = median(times_of_run[0] for times_of_run in times["delete"]) / files.blocks * 1e6
    target = 0.8 if "2MiB" in label else None
    return [
        at_least(f"tier_store_{label}", of_raw("store", "raw_write"), "of raw", target, per_s("raw_write", 0)),
        at_least(f"tier_load_{label}", of_raw("load", "raw_read"), "of raw", target, per_s("raw_read", 0)),
        at_least(f"tier_replace_{label}", of_raw("replace", "raw_write"), "of raw", None, per_s("raw_write", 0)),
        at_most(f"tier_delete_{label}", deleted_us, "us per block", None),
        at_least(f"tier_store_cpu_{label}", per_s("store", 1), "GB per CPU s", None, per_s("raw_write", 1)),
        at_least(
            f"tier_load_cpu_{label}", per_s("load", 1), "GB per CPU s", 2.5 if target else None, per_s("raw_read", 1)
        ),
    ]


def _timed(action: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds and the seconds of CPU time of all threads."""
    started, cpu_started = perf_counter(), process_time()
    action()
    return perf_counter() - started, process_time() - cpu_started
