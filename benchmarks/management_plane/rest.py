"""The API as callers see it: reads a second of one record, a change until the node has applied it, and many browsers.

A real `larder up` with its data plane, over real sockets. What reads cost is taken in processor time of the server, so
that the figure is of one core whatever else the machine does.
"""

import asyncio
import os
import time

import numpy as np

from benchmarks.harness.result import Result, at_least, at_most
from benchmarks.harness.setting import QUICK, Setting
from benchmarks.management_plane.running import Running, running

CONNECTIONS = 8
BROWSERS = 200
BROWSERS_A_TOKEN = 50
"""A token may not have many more streams open."""


def run(setting: Setting) -> list[Result]:
    quick = setting.effort == QUICK
    with running() as server:
        put(server, "acme", 1 << 30)
        reads = asyncio.run(read(server, 400 if quick else 8000))
        changes, syncs = change(server, 20 if quick else 300)
        share, messages = asyncio.run(watch(server, 2.0 if quick else 12.0))
    return [
        at_least("rest_get_record_per_core", reads[0], "requests/s", 1500.0),
        at_least("rest_get_record", reads[1], "requests/s", None),
        at_most("rest_put_until_applied_p50", _ms(changes, 50), "ms", None, _ms(syncs, 50)),
        at_most("rest_put_until_applied_p99", _ms(changes, 99), "ms", 50.0, _ms(syncs, 99)),
        at_most("rest_200_browsers", share, "% of a core", 10.0),
        at_least("rest_200_browsers_updates", messages, "a second each", None),
    ]


def _ms(seconds: list[float], percent: float) -> float:
    return float(np.percentile(seconds, percent)) * 1e3


def change(server: Running, count: int) -> tuple[list[float], list[float]]:
    """Seconds of changes until the node has applied them; and beside each of them what the disk alone takes for one
    page, of which a change waits for one or two."""
    changes, syncs = [], []
    with (server.folder / "page").open("wb", buffering=0) as file:
        for number in range(count):
            changes.append(put(server, "acme", (1 << 30) + number))
            started = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            syncs.append(time.perf_counter() - started)
    return changes, syncs


def asking(token: str, path: str, accept: str = "application/json") -> bytes:
    """A GET as it goes over the wire."""
    head = f"GET /api/v1/{path} HTTP/1.1\r\nhost: localhost\r\naccept: {accept}\r\n"
    return f"{head}authorization: Bearer {token}\r\n\r\n".encode()


def put(server: Running, tenant: str, limit: int) -> float:
    """Seconds until the node has applied it."""
    started = time.perf_counter()
    answer = server.http.put(f"/api/v1/quotas/{tenant}?wait=5s", json={"limit_bytes": limit}, headers={"If-Match": "*"})
    if answer.status_code == 412:  # the first one
        answer = server.http.put(f"/api/v1/quotas/{tenant}?wait=5s", json={"limit_bytes": limit})
    if not answer.is_success or not answer.json()["status"]["applied"]:
        raise RuntimeError(f"the quota was not applied: {answer.text[:200]}")
    return time.perf_counter() - started


async def read(server: Running, count: int) -> tuple[float, float]:
    """Requests for a second of the server's processor time, and for a second of the clock."""

    request = asking(server.token, "quotas/acme")

    async def one(requests: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for _ in range(requests):
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"the record was not answered: {head[:80]!r}")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]))
        writer.close()

    await one(200)
    cpu_s, started = server.cpu_s(), time.perf_counter()
    await asyncio.gather(*(one(count // CONNECTIONS) for _ in range(CONNECTIONS)))
    seconds, used_s = time.perf_counter() - started, server.cpu_s() - cpu_s
    return count / max(used_s, 1e-3), count / seconds


async def watch(server: Running, seconds: float) -> tuple[float, float]:
    """What browsers add to the server's work, in percent of a core; overviews that each of them got a second."""
    overviews = 0
    tokens = [server.new_token(f"people-{number}") for number in range(BROWSERS // BROWSERS_A_TOKEN)]

    async def browser(number: int) -> None:
        nonlocal overviews
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(asking(tokens[number % len(tokens)], "events", "text/event-stream"))
        try:
            if not (head := await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"the stream was not opened: {head[:80]!r}")
            while data := await reader.read(1 << 16):
                overviews += data.count(b"event: overview")
        finally:
            writer.close()

    async def share() -> float:
        cpu_s, started = server.cpu_s(), time.perf_counter()
        await asyncio.sleep(seconds)
        return 100 * (server.cpu_s() - cpu_s) / (time.perf_counter() - started)

    async def now_and_then() -> None:
        number = 0
        while True:
            number += 1
            await asyncio.to_thread(put, server, "acme", (2 << 30) + number)
            await asyncio.sleep(1.0)

    changing = asyncio.create_task(now_and_then())
    alone = await share()
    browsers = [asyncio.create_task(browser(number)) for number in range(BROWSERS)]
    await asyncio.sleep(1.0)
    overviews = 0
    watched = await share()
    overviews_per_s = overviews / BROWSERS / seconds
    for task in (changing, *browsers):
        task.cancel()
    for ended in await asyncio.gather(changing, *browsers, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended
    return watched - alone, overviews_per_s
