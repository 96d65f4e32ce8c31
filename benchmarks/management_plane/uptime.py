"""What stays behind of work that is over: memory, open files and threads of the management plane.

Rounds of requests that are all different (names that there are and that there are not, refusals, wrong tokens), of
streams that are opened and closed, and of changes that are pushed. What the first rounds take is kept for good: caches
fill, and the heap finds its size. What the later ones add is what would add up over a year.
"""

import asyncio
import os
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import median

from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import QUICK, Setting
from benchmarks.management_plane.rest import asking, put
from benchmarks.management_plane.running import Running, running

ROUNDS = 12
"""Half of them to warm up; the growth is that from then on."""
REQUESTS = 3000
STREAMS = 100
CHANGES = 40
CONNECTIONS = 8
SETTLE_S = 2.0
FREE = 8
"""Connections of a pool, with a thread and three files each, come and go."""


def run(setting: Setting) -> list[Result]:
    quick = setting.effort == QUICK
    rounds, scale = (4, 10) if quick else (ROUNDS, 1)
    warm = rounds // 2
    memory_bytes: list[int] = []
    samples: list[tuple[int, int]] = []
    with running() as server:
        for number in range(rounds):
            asyncio.run(_round(server, number, scale))
            memory_bytes.append(server.memory_bytes())
            samples.append(_memory_of(server))
    before, after = ends_of(memory_bytes[warm - 1 :])
    (files, threads), (files_after, threads_after) = samples[warm - 1], samples[-1]
    thousands = (rounds * REQUESTS // scale) / 1000
    return [
        at_most("uptime_requests", thousands, "thousand", None),
        at_most("uptime_memory", after / 1e6, "MB", None, before / 1e6),
        at_most("uptime_memory_grown", 100 * (after / before - 1), "%", 1.0),
        at_most("uptime_open_files", files_after, "files", files + FREE, files),
        at_most("uptime_threads", threads_after, "threads", threads + FREE, threads),
    ]


def ends_of(samples: Sequence[float]) -> tuple[float, float]:
    """Return the first and the last value of the line through samples of equal distance: median slope, median height.

    Medians: a collection of garbage that came early or late does not say everything.
    """
    last = len(samples) - 1
    slope = median((samples[to] - samples[at]) / (to - at) for at, to in combinations(range(len(samples)), 2))
    first = median(sample - slope * at for at, sample in enumerate(samples))
    return first, first + slope * last


async def _round(server: Running, number: int, scale: int) -> None:
    requests = _requests(server, number, REQUESTS // scale)
    share = -(-len(requests) // CONNECTIONS)
    await asyncio.gather(
        *(_send_all(server, requests[at : at + share]) for at in range(0, len(requests), share)),
        _watch(server, STREAMS // scale),
        asyncio.to_thread(_change, server, number, CHANGES // scale),
    )
    await asyncio.sleep(SETTLE_S / scale)  # what is written later is written


def _requests(server: Running, number: int, count: int) -> list[bytes]:
    """Each of them new."""
    requests = []
    for index in range(count):
        name = f"r{number}-{index}"
        paths = (
            "quotas/acme",
            f"quotas/{name}",
            f"quotas?limit=5&managed_by={name}",
            f"pins/{name}",
            "overview",
            f"nowhere/{name}",
            f"tenants?sort=-bytes&limit={1 + index % 1000}",
            f"events/history?name={name}",
        )
        is_refused = index % 500 == 499  # few, or they are kept waiting
        token = f"larder_{name.replace('-', '')}_{'0' * 64}" if is_refused else server.token
        requests.append(asking(token, paths[index % len(paths)]))
    return requests


async def _send_all(server: Running, requests: list[bytes]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for request in requests:
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if head.startswith(b"http/1.1 5"):
            raise RuntimeError(f"a request was answered {head[:80]!r}")
        await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
        if b"connection: close" in head:
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.close()


async def _watch(server: Running, count: int) -> None:
    """Streams that are left again, some in the middle of a message."""
    for number in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(asking(server.token, "events", "text/event-stream"))
        await reader.read(1 << 12 if number % 2 else 1)
        writer.close()


def _change(server: Running, number: int, count: int) -> None:
    for index in range(count):
        put(server, "acme", (1 << 30) + number * count + index)


def _memory_of(server: Running) -> tuple[int, int]:
    """Open files and threads."""
    process = Path(f"/proc/{server.process.pid}")
    return len(os.listdir(process / "fd")), len(os.listdir(process / "task"))
