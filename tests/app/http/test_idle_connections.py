"""Idle connections end, and are never so many that other clients get none."""

import asyncio
import gc
import resource
from contextlib import AsyncExitStack, suppress
from socket import SO_LINGER, SOL_SOCKET
from struct import pack

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from app.http.middleware import connections, server_protocol
from tests.app.plane import Plane
from tests.app.raw import answered, connected
from tests.app.waiting import until

pytestmark = pytest.mark.anyio
HEAD = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
PUT = (
    b"PUT /api/v1/quotas/a HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n"
)


async def served(plane: Plane) -> bool:
    try:
        return (await plane.http.get("/healthz")).status_code == 200
    except httpx.TransportError:  # refused before it was asked
        return False


async def test_a_connection_ends_if_its_request_does_not_arrive(lone: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_protocol, "HEAD_S", 0.2)
    monkeypatch.setattr(server_protocol, "BODY_S", 0.2)
    whole = HEAD + b"\r\n"
    for sent in (b"", HEAD + b"X: ", b"\r\n", whole + HEAD, PUT, PUT + b'{"limit_bytes"'):
        await answered(lone, sent)
    monkeypatch.setattr(server_protocol, "HEAD_S", 60)
    async with connected(lone) as (reader, writer):  # nor does an empty line after an answer
        writer.write(whole)
        await reader.readuntil(b"}")
        monkeypatch.setattr(server_protocol, "HEAD_S", 0.2)
        writer.write(b"\r\n")
        await reader.read()
    async with connected(lone) as (reader, writer):  # a byte now and then buys no time
        ended = asyncio.create_task(reader.read())
        writer.write(HEAD + b"X: ")
        while not ended.done():
            writer.write(b"x")
            await asyncio.wait([ended], timeout=0.02)
        with suppress(ConnectionError):  # what was sent too late may have reset it
            await ended
    monkeypatch.setattr(server_protocol, "HEAD_S", 60)
    assert (await lone.http.get("/healthz")).status_code == 200


async def test_an_idle_connection_outlives_those_of_proxies(lone: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_protocol.IDLE_S > 60
    monkeypatch.setattr(server_protocol, "IDLE_S", 0.2)
    await answered(lone, HEAD + b"\r\n")


async def test_an_answer_that_takes_long_is_left_alone(lone: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_protocol, "HEAD_S", 0.1)
    monkeypatch.setattr(server_protocol, "BODY_S", 0.1)
    async with connected(lone) as (reader, writer):
        # Part of another request behind the stream does not end the stream either.
        writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\nGET /heal")
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(3):
            await answered(lone)
        monkeypatch.setattr(server_protocol, "HEAD_S", 60)
        monkeypatch.setattr(server_protocol, "BODY_S", 60)
        await lone.put_quota("acme", 5, wait="")
        await reader.readuntil(b"acme")


@pytest.mark.parametrize(
    ("reason", "most", "sources"),
    [("all", 2, ["127.0.0.2", "127.0.0.3", "127.0.0.4"]), ("address", 4, ["127.0.0.2"] * 3)],
)
async def test_one_connection_too_many_is_refused_and_the_next_after_it_is_served(
    lone: Plane, monkeypatch: pytest.MonkeyPatch, reason: str, most: int, sources: list[str]
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", most)
    async with AsyncExitStack() as opened:
        for source in sources:
            reader, _ = await opened.enter_async_context(connected(lone, source))
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n"), answer
    assert lone.app.parts.limits.connections.ended[reason] >= 1
    assert b"\r\nretry-after: 1\r\n" in answer
    assert b"urn:larder:problem:too-many-connections" in answer
    await until(lambda: served(lone))


async def test_a_body_that_trickles_is_given_up_with_a_problem_and_counted(
    lone: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_protocol, "BODY_S", 0.2)
    ended_before = lone.app.parts.limits.connections.ended["slow_body"]
    async with connected(lone) as (reader, writer):
        writer.write(PUT + b"{")
        answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n"), answer
    assert b"urn:larder:problem:body-too-slow" in answer
    async with connected(lone) as (reader, writer):
        ended = asyncio.create_task(reader.read())
        writer.write(PUT.replace(b"50", b"5000000") + b"{")
        while not ended.done():  # a byte now and then buys no time
            writer.write(b" ")
            await asyncio.wait([ended], timeout=0.02)
        with suppress(ConnectionError):  # what was sent too late may have reset it
            await ended
    metrics = (await lone.http.get("/metrics")).text
    assert f'larder_http_connections_ended_total{{reason="slow_body"}} {ended_before + 2}.0' in metrics


async def test_incomplete_heads_of_all_connections_have_a_bound(lone: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_protocol, "MAX_UNFINISHED_BYTES", 10_000)
    counts = lone.app.parts.limits.connections
    part = HEAD + b"X: " + b"x" * 6000
    async with connected(lone) as (_, first), connected(lone) as (reader, second):
        first.write(part)
        await until(lambda: counts.unfinished_bytes == len(part))
        second.write(part)
        assert b"urn:larder:problem:too-many-connections" in await reader.read()
        await until(lambda: counts.unfinished_bytes == len(part))
        first.write(b"\r\n\r\n")
        await until(lambda: counts.unfinished_bytes == 0)
    assert counts.ended["heads"] == 1


@pytest.mark.parametrize("end", ["reset", "closed", "idle"])
async def test_an_answered_request_is_released_however_its_connection_ends(lone: Plane, end: str) -> None:
    request = HEAD + b"".join(b"x-%d: 1\r\n" % number for number in range(80)) + b"Content-Length: 5\r\n\r\nabcde"
    async with AsyncExitStack() as opened:
        for _ in range(5):
            reader, writer = await opened.enter_async_context(connected(lone))
            writer.write(request)
            await reader.readuntil(b"}")
            if end == "reset":
                writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
            if end != "idle":
                writer.close()
        await until(lambda: kept(lone) == 0)
    counts = lone.app.parts.limits.connections
    await until(lambda: sum(counts.of_address.values()) <= 1)  # that of the client of the lone


def requests() -> list[RequestResponseCycle]:
    return [each for each in gc.get_objects() if type(each) is RequestResponseCycle]


def kept(plane: Plane) -> int:
    """Return the closed connections that are kept, and the header fields and bytes of bodies that requests and
    connections keep."""
    gc.collect()
    connections = [each for each in gc.get_objects() if isinstance(each, server_protocol.ProblemProtocol)]
    closed = [
        each
        for each in connections
        if each._counts is plane.app.parts.limits.connections and each.transport.is_closing()
    ]
    fields = sum(len(list(each.scope.get("headers", ()))) + len(each.body) for each in requests())
    return len(closed) + fields + sum(len(each.headers or ()) for each in connections)


async def test_a_closed_connection_leaves_no_request_behind(lone: Plane) -> None:
    """Of requests that wait behind a stream, none but the last one waits for the garbage collector."""
    count = server_protocol.MAX_WAITING + 1
    gc.collect()
    before = len(requests())
    gc.disable()
    try:
        for behind in range(count):
            async with connected(lone) as (reader, writer):
                writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n" + (HEAD + b"\r\n") * behind)
                await reader.readuntil(b"\r\n\r\n")
                writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, pack("ii", 1, 0))
        await until(lambda: len(requests()) <= before + 2 * count)  # the streams, and the last ones
    finally:
        gc.enable()
    await until(lambda: kept(lone) == 0)


def test_connections_leave_descriptors_for_other_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((64, 32), (1024, 512), (4096, 3584), (1 << 20, 16_384), (resource.RLIM_INFINITY, 16_384)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert connections.most_connections() == most
