"""A scrape of three nodes with a thousand tenants each: how long it takes, how long it keeps others waiting, and how
much is sent.

A real server over a real socket in this process. Its nodes are made up: before each scrape all of them report new
counts of every tenant, as they do between two scrapes.
"""

import asyncio
import http.client
import logging
import socket
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import structlog
import uvicorn

from app.asgi import App, create_app
from app.http.server import Server
from app.ingest.fleet import FleetNode
from app.settings import AppSettings, Settings
from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import QUICK, Setting
from dataplane.base.settings import Common, with_defaults
from dataplane.protocol.stats.engines import EngineStats
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pins import PinStats
from dataplane.protocol.stats.pool import PoolStats, SpaceStats, Totals
from dataplane.protocol.stats.tenants import TenantStats

NODES = 3
TENANTS = 1_000
ROUTES = 150
TICK_S = 0.0005
OPENMETRICS = "application/openmetrics-text"


def run(setting: Setting) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="larder-bench-", dir="/tmp") as folder:
        _quiet()
        return asyncio.run(_measure(Path(folder), 10 if setting.effort == QUICK else 200))


def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


async def _measure(folder: Path, scrapes: int) -> list[Result]:
    common = Common(state_dir=str(folder), http_port=0)
    app = create_app(
        Settings(
            common=with_defaults(common, {}),
            app=AppSettings(embedded_data_plane=False, node_lost_s=3600, anonymous_metrics=True),
        )
    )
    scrape_times: list[float] = []
    worked: list[float] = []
    waits: list[float] = []
    plain = packed = b""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, loop="none", ws="none", log_config=None, access_log=False)
        server = Server(config)
        task = asyncio.create_task(server.serve([listener]))
        while not server.started:
            if task.done():
                raise RuntimeError("the server did not start")
            await asyncio.sleep(0.01)
        port = listener.getsockname()[1]
        _be_busy(app)
        for turn in range(scrapes):
            _report(app, 2 * turn)
            used = time.process_time()
            seconds, plain = await asyncio.to_thread(_get, port, "identity")
            worked.append(time.process_time() - used)
            scrape_times.append(seconds)
            _report(app, 2 * turn + 1)
            ticking = asyncio.create_task(_tick(waits))
            await asyncio.to_thread(_get, port, "identity")
            ticking.cancel()
            await asyncio.wait({ticking})
        _, packed = await asyncio.to_thread(_get, port, "gzip")
        server.should_exit = True
        await task
    return [
        at_most("scrape_1000_tenants_p50", float(np.percentile(scrape_times, 50)) * 1e3, "ms", 50.0),
        at_most("scrape_1000_tenants_p99", float(np.percentile(scrape_times, 99)) * 1e3, "ms", None),
        at_most("scrape_1000_tenants_cpu", float(np.percentile(worked, 50)) * 1e3, "ms", 50.0),
        at_most("scrape_others_wait_p50", float(np.percentile(waits, 50)) * 1e3, "ms", None),
        at_most("scrape_others_wait_p99", float(np.percentile(waits, 99)) * 1e3, "ms", None),
        at_most("scrape_size", len(plain) / 1e6, "MB", 2.0),
        at_most("scrape_size_gzip", len(packed) / 1e6, "MB", None),
    ]


async def _tick(waits: list[float]) -> None:
    """Note how late the loop is while it answers, the longest delay of a scrape."""
    longest = 0.0
    try:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(TICK_S)
            longest = max(longest, time.perf_counter() - started - TICK_S)
    finally:
        waits.append(longest)


def _get(port: int, encoding: str) -> tuple[float, bytes]:
    """Seconds of a scrape, with its bytes as they were sent."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        started = time.perf_counter()
        connection.request("GET", "/metrics", headers={"Accept": OPENMETRICS, "Accept-Encoding": encoding})
        answer = connection.getresponse()
        body = answer.read()
        seconds = time.perf_counter() - started
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"/metrics answered {answer.status}")
    return seconds, body


def _be_busy(app: App) -> None:
    """Let every route have been asked."""
    for number in range(ROUTES):
        for status in (200, 404):
            app.parts.limits.counts.count("GET", f"/api/v1/resource-{number}/{{name}}", status, 0.01)


def _report(app: App, turn: int) -> None:
    for number in range(NODES):
        name = f"node-{number}"
        node = app.parts.fleet.nodes.setdefault(name, FleetNode(name, f"ipc:///nowhere/{number}"))
        node.seen = time.monotonic()
        # Encoded and decoded, because no object of a report is one of the report before.
        node.stats = msgspec.msgpack.decode(msgspec.msgpack.encode(_stats(name, turn)), type=NodeStats)


def _stats(node: str, turn: int) -> NodeStats:
    return NodeStats(
        at=time.time(),
        node=node,
        epoch="e",
        uptime_s=1.0,
        armed=True,
        pool=PoolStats(capacity_bytes=1 << 40, used_bytes=1 << 39),
        totals=Totals(requested_blocks=turn * 1_000_003, hit_blocks=turn * 700_001),
        refused={"over_limit": turn, "no_room": turn},
        tenants=[
            TenantStats(
                f"tenant-{number:05}",
                bytes=(TENANTS - number) << 20,
                blocks=TENANTS - number,
                limit_bytes=1 << 34,
                floor_bytes=1 << 30,
                requested_blocks=turn * 1_003,
                hit_blocks=turn * 703,
                evicted_blocks=turn * 13,
                refused_blocks=turn * 2,
                refused={"over_limit": turn, "no_room": turn},
            )
            for number in range(TENANTS)
        ],
        other_tenants=None,
        pins=[PinStats(f"pin-{number}", 10, 10, 1 << 20, 10, tier="gpu", gpu_copies=number) for number in range(200)],
        engines=[
            EngineStats(number, number, f"pid-{number}", f"vllm {number % 4}", 0.0, ["m"], connected=True)
            for number in range(200)
        ],
        observed={},
        spaces=[
            SpaceStats(f"{number:032x}", "model", "", "bf16", 8, number % 8, 1 << 20, 9, 9 << 20, 0, 1)
            for number in range(200)
        ],
    )
