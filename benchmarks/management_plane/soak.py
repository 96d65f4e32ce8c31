"""Checks that memory does not grow: both planes with all features on, in use for half an hour (`LARDER_BENCH_SOAK_S`).

Engines come and go and evict each other's blocks, a dashboard and a router follow, Prometheus scrapes, people read
pages that exist and pages that do not, and quotas and pins change. Memory is sampled all the time; the figure is its
slope after the first third.
"""

import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from benchmarks.harness.drift import drift
from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import QUICK, Setting
from benchmarks.management_plane.observability import client_of, observed, replay, written_trace
from benchmarks.management_plane.running import Running

SECONDS = float(os.environ.get("LARDER_BENCH_SOAK_S", "1800"))
SAMPLE_S = 5.0
REQUESTS = 400
"""Of one engine."""
MB_PER_HOUR = {"management": 8.0, "data": 32.0}
"""The rings of the trace, and those of events, take their pages during the first hour."""
QUOTAS = 20
PINS = 10
PAGES = (
    "overview",
    "quotas",
    "pins",
    "tenants?sort=-bytes",
    "nodes",
    "prefixes",
    "events/history",
    "usage",
    "managers",
)


def run(setting: Setting) -> list[Result]:
    seconds = 10.0 if setting.effort == QUICK else SECONDS
    sizes: dict[str, list[tuple[float, float]]] = {"management": [], "data": []}
    with tempfile.TemporaryDirectory(prefix="larder-bench-", dir="/tmp") as name:
        folder = Path(name)
        with observed(folder / "kv.sock") as server:
            uses = [engines_that_leave(folder), _read_pages, _change_records]
            ended = threading.Event()
            failures: list[BaseException] = []
            threads = [threading.Thread(target=_guarded, args=(use, server, ended, failures)) for use in uses]
            for thread in threads:
                thread.start()
            data_plane = server.data_plane_pid()
            end = time.monotonic() + seconds
            while time.monotonic() < end and not failures:
                ended.wait(min(SAMPLE_S, seconds / 10))
                for plane, pid in (("management", 0), ("data", data_plane)):
                    sizes[plane].append((time.monotonic(), server.memory_bytes(pid) / 1e6))
            ended.set()
            for thread in threads:
                thread.join(120)
            if failures:
                raise failures[0]
    rows: list[Result] = []
    for plane, samples in sizes.items():
        rows.append(at_most(f"soak_{plane}_plane_memory", samples[-1][1], "MB", None, samples[0][1]))
        slope = drift(samples)
        if slope is not None:
            name = f"soak_{plane}_plane_drift"
            rows += [
                at_most(name, slope.per_hour, "MB/h", None),
                at_most(f"{name}_low", slope.low, "MB/h", MB_PER_HOUR[plane]),
                at_most(f"{name}_high", slope.high, "MB/h", None),
            ]
    return rows


Use = Callable[[Running, threading.Event], None]


def _guarded(use: Use, server: Running, ended: threading.Event, failures: list[BaseException]) -> None:
    try:
        use(server, ended)
    except BaseException as failure:
        failures.append(failure)
        raise


def engines_that_leave(folder: Path) -> Use:
    """Return a use of engines that attach, store prompts that were not sent before, and leave."""

    def engines(server: Running, ended: threading.Event) -> None:
        for number in count():
            if ended.wait(1):
                return
            replay(written_trace(folder / "trace.jsonl", REQUESTS, seed=number), server)

    return engines


def _read_pages(server: Running, ended: threading.Event) -> None:
    chance = random.Random(1)
    with client_of(server) as http:
        for number in count():
            if ended.wait(0.05):
                return
            page = chance.choice([*PAGES, f"quotas/none-{number}", f"prefixes?tenant=none-{number}"])
            if http.get(f"/api/v1/{page}").is_server_error:
                raise RuntimeError(f"{page} failed")


def _change_records(server: Running, ended: threading.Event) -> None:
    chance = random.Random(2)
    with client_of(server) as http:
        for number in count():
            if ended.wait(0.5):
                return
            quota = {"limit_bytes": (1 << 26) + 4096 * number}
            state = {"If-Match": "*"} if number >= QUOTAS else {}
            http.put(f"/api/v1/quotas/t{number % QUOTAS}", json=quota, headers=state).raise_for_status()
            tokens = [chance.randrange(1000) for _ in range(512)]
            pin = {"tenant": f"t{number % 5}", "model": "m", "tokens": tokens}
            state = {"If-Match": "*"} if number >= PINS else {}
            http.put(f"/api/v1/pins/p{number % PINS}", json=pin, headers=state).raise_for_status()
