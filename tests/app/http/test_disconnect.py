"""Work for one client ends when it disconnects; shielded work finishes."""

import asyncio
import itertools
import random
import re
import signal
import threading
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy.pool import QueuePool
from structlog.testing import capture_logs

from app.http.middleware import disconnect
from app.services.base.yielding import WorkAbandoned, awaited, in_thread, with_pauses
from tests.app.callers import create_token, guarding, send
from tests.app.plane import Plane
from tests.app.raw import connected
from tests.app.tokenizer_files import put
from tests.app.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disconnect, "GRACE_S", 0.1)


APPLY = "/api/v1/apply"
ENDLESS = "{% for x in range(99999) %}{% for y in range(99999) %}{% set z = 1 %}{% endfor %}{% endfor %}"


def large(records: int) -> str:
    """A document that takes seconds to read."""
    return "apiVersion: larder/v1\nquotas:\n" + "".join(
        f"  - tenant: t{number}\n    limit_bytes: {number + 1}\n    note: some words for people\n"
        for number in range(records)
    )


def given_up(plane: Plane) -> int:
    return answered(plane, 499)


def answered(plane: Plane, status: int, method: str = "") -> int:
    """Number of answers with a status, to all methods or to one."""
    ended = plane.app.parts.limits.counts.ended
    return sum(count for (used, _, was), count in ended.items() if was == status and used == (method or used))


async def leave(task: "asyncio.Task[httpx.Response]") -> None:
    """Close the connection on which it waits."""
    task.cancel()
    await asyncio.wait({task})


async def test_a_thread_ends_at_its_next_pause_once_its_request_is_cancelled() -> None:
    began, ended = threading.Event(), threading.Event()

    def work() -> None:
        try:
            for _ in with_pauses(itertools.count(), 1):
                began.set()
        except WorkAbandoned:
            ended.set()
            raise

    task = asyncio.create_task(in_thread(work))
    await until(began.is_set)
    task.cancel()
    await asyncio.wait({task})
    assert (task.cancelled(), ended.is_set()) == (True, True), "it is waited for"
    assert await in_thread(lambda: sum(with_pauses(range(10), 2))) == 45
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


async def test_work_of_a_thread_is_cancelled_with_it() -> None:
    loop, waits, gone = asyncio.get_running_loop(), threading.Event(), asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    def work() -> None:
        future = asyncio.run_coroutine_threadsafe(never(), loop)
        waits.set()
        awaited(future)

    task = asyncio.create_task(in_thread(work))
    await until(waits.is_set)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    async with asyncio.timeout(60):
        await gone.wait()


async def test_a_dry_run_ends_with_the_connection_and_the_next_has_its_turn(new_guarded: Plane) -> None:
    body = {"document": large(60_000), "dry_run": True}
    turns = new_guarded.app.parts.documents.apply._turns[True]
    first = asyncio.create_task(new_guarded.http.post(APPLY, json=body))
    await until(turns._running.total)
    second = asyncio.create_task(new_guarded.http.post(APPLY, json=body))
    await until(lambda: turns.waiting)
    for task, count in ((second, 1), (first, 2)):  # one that waits for its turn, and one that has it
        await leave(task)
        await until(lambda expected=count: given_up(new_guarded) == expected)
    assert turns._running.total() == 0
    small = await new_guarded.http.post(APPLY, json={"document": large(1), "dry_run": True})
    assert (small.status_code, small.json()["created"]) == (200, 1)


async def test_shielded_work_finishes_without_its_client(new_guarded: Plane) -> None:
    task = asyncio.create_task(new_guarded.http.post(APPLY, json={"document": large(2_000)}))
    await until(new_guarded.app.parts.documents.apply._turns[False]._running.total)
    await leave(task)
    await until(lambda: answered(new_guarded, 200, "POST") == 1)
    assert (await new_guarded.get("/api/v1/quotas"))["total"] == 2_000
    assert given_up(new_guarded) == 0


async def test_a_text_whose_request_was_cancelled_costs_nothing_more(
    new_plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(new_plane, chat_template=ENDLESS)
    children: list[Process] = []
    start = asyncio.create_subprocess_exec

    async def started(*arguments: Any, **options: Any) -> Process:
        children.append(await start(*arguments, **options))
        return children[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
    turns = new_plane.app.parts.records.tokenizers._tokenizing._limiter
    message = [{"role": "user", "content": "w1"}]
    lookup = {"model": "m", "messages": message}
    documents = {"apiVersion": "larder/v1", "pins": {"p": {"model": "m", "messages": message}}}
    for number, (path, body) in enumerate(
        (
            ("/api/v1/actions/lookup", lookup),
            ("/api/v1/actions/locate", lookup),
            ("/api/v1/actions/dry-run", {"pins": {"p": lookup}}),
            (APPLY, {"document": documents, "dry_run": True}),
        ),
        1,
    ):
        task = asyncio.create_task(send(new_plane, "", "POST", path, json=body))
        await until(lambda expected=number: len(children) == expected)
        await leave(task)
        await until(lambda expected=number: given_up(new_plane) == expected)
        await until(lambda: turns._running.total() == 0)
    ends = [child.returncode for child in children]
    assert ends == [-signal.SIGKILL] * 4, "not by the limit of processor time, which is SIGXCPU"


async def test_a_wait_that_was_left_releases_its_slot(new_plane: Plane) -> None:
    index = (await new_plane.get("/api/v1/snapshot"))["index"]
    slots = new_plane.app.parts.limits.stream_slots
    task = asyncio.create_task(send(new_plane, "", "GET", f"/api/v1/snapshot?index={index + 1}&wait=300s"))
    await until(lambda: slots.in_use)
    await leave(task)
    await until(lambda: not slots.in_use)


async def test_a_stream_before_another_request_ends_with_its_connection(new_plane: Plane) -> None:
    slots = new_plane.app.parts.limits.stream_slots
    async with connected(new_plane) as (reader, writer):
        writer.write(
            b"GET /api/v1/events HTTP/1.1\r\nhost: localhost\r\n\r\nGET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"
        )
        with capture_logs() as logged:
            await reader.readuntil(b"retry: 1000")
            writer.transport.abort()
            await until(lambda: not slots.in_use)
    assert "request.crashed" not in {line["event"] for line in logged}


async def test_a_body_that_never_ends_is_given_up_with_its_connection(new_plane: Plane) -> None:
    head = "POST /api/v1/apply HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 99"
    async with connected(new_plane) as (reader, writer):
        writer.write(f"{head}\r\nexpect: 100-continue\r\n\r\n".encode())
        await reader.readuntil(b"100 Continue\r\n\r\n")  # it is being read
        writer.write(b'{"document"')
    await until(lambda: given_up(new_plane) == 1)


def request(method: str, path: str, body: Any = None, token: str = "") -> bytes:
    content = b"" if body is None else msgspec.json.encode(body)
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"authorization: Bearer {token}\r\n" if token else ""
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


async def half_closed(plane: Plane, sent: bytes) -> bytes:
    """Return what the server sends to a client that sends its last bytes and their end together."""
    async with connected(plane) as (reader, writer):
        writer.write(sent)
        writer.write_eof()
        return await reader.read()


async def test_a_client_that_sends_no_more_is_answered(lone: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disconnect, "GRACE_S", 60.0)
    ready = request("GET", "/readyz")
    for sent, statuses in (
        (b"GET /healthz HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /healthz HTTP/1.0\r\n\r\n\n", b"200"),  # what `echo` sends
        (request("PUT", "/api/v1/quotas/half", {"limit_bytes": 1}), b"201"),
        (ready + request("GET", "/api/v1/quotas/half") + ready, b"200 200 200"),
        (ready + ready + b"GET /rea", b"200 200"),
        (request("GET", "/api/v1/audit/export"), b"200"),
        (request("GET", "/api/v1/snapshot?index=999&wait=1ms"), b"200"),
        (request("POST", "/api/v1/actions/dry-run", {"quotas": {"a": {"weight": 2}}}), b"503"),  # no node
        (request("POST", APPLY, {"document": large(1), "dry_run": True}), b"200"),
        (request("PUT", "/api/v1/quotas/part", {"limit_bytes": 1})[:-1], b""),
    ):
        answer = await half_closed(lone, sent)
        found = re.findall(rb"HTTP/1\.1 (\d+) ", answer)
        assert b" ".join(found) == statuses, (sent, answer)
    assert (await lone.http.get("/api/v1/quotas/part")).status_code == 404


async def test_work_and_streams_end_when_their_client_sends_no_more(new_plane: Plane) -> None:
    """The end of what a client sends is all that the server sees when the client leaves."""
    index = (await new_plane.get("/api/v1/snapshot"))["index"]
    slots = new_plane.app.parts.limits.stream_slots
    for path in ("/api/v1/events", f"/api/v1/snapshot?index={index + 1}&wait=300s"):
        async with connected(new_plane) as (reader, writer):
            writer.write(request("GET", path))
            if path.endswith("events"):
                await reader.readuntil(b"retry: 1000")
            await until(lambda: slots.in_use)
            writer.write_eof()
            await reader.read()
            await until(lambda: not slots.in_use)


async def test_a_wait_ends_whose_client_sent_its_last_before_it_began(new_guarded: Plane) -> None:
    path = f"/api/v1/snapshot?index={(await new_guarded.get('/api/v1/snapshot'))['index'] + 1}&wait=300s"
    ready = request("GET", "/readyz")
    for number, statuses in enumerate(([b"499"], [b"200", b"499"], [b"499", b"499"])):
        token = await create_token(new_guarded, f"t{number}")  # the end comes while the server looks it up
        waits = statuses.count(b"499") * request("GET", path, token=token)
        async with asyncio.timeout(10):
            answer = await half_closed(new_guarded, ready * (len(statuses) - statuses.count(b"499")) + waits)
        assert re.findall(rb"HTTP/1\.1 (\d+) ", answer) == statuses
    assert not new_guarded.app.parts.limits.stream_slots.in_use


async def test_leaving_at_any_moment_leaves_nothing_open(socket_dir: Path, database_url: str) -> None:
    chance = random.Random(7)
    async with guarding(socket_dir, database_url) as plane:
        pool = plane.app.parts.database.engine.pool
        assert isinstance(pool, QueuePool)
        for _ in range(60):
            kind = chance.randrange(3)
            if kind == 0:
                asking = plane.http.post(APPLY, json={"document": large(200), "dry_run": True})
            elif kind == 1:
                asking = plane.http.get("/api/v1/snapshot?index=1&wait=1s")
            else:
                asking = plane.http.post("/api/v1/actions/dry-run", json={"quotas": {"a": {"weight": 2}}})
            task = asyncio.create_task(asking)
            await asyncio.wait({task}, timeout=chance.random() * 0.03)
            await leave(task)
        await until(lambda: pool.checkedout() == 0)
        await until(
            lambda: not any(turns._running.total() for turns in plane.app.parts.documents.apply._turns.values())
        )
        assert (await plane.http.post(APPLY, json={"document": large(3)})).json()["created"] == 3
        assert answered(plane, 500, "POST") == 0
