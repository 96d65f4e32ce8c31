"""Idle connections end, and are never so many that other clients get none."""

import asyncio
import resource
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from app.http.middleware import connections, server_protocol
from tests.app.plane import Plane, serving, settings_in
from tests.app.raw import answered, connected

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


async def test_a_connection_ends_if_its_request_does_not_arrive(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_protocol, "HEAD_S", 0.2)
    monkeypatch.setattr(server_protocol, "BODY_S", 0.2)
    async with serving(settings_in(socket_dir)) as plane:
        whole = HEAD + b"\r\n"
        for sent in (b"", HEAD + b"X: ", b"\r\n", whole + HEAD, PUT, PUT + b'{"limit_bytes"'):
            await answered(plane, sent)
        monkeypatch.setattr(server_protocol, "HEAD_S", 60)
        async with connected(plane) as (reader, writer):  # nor does an empty line after an answer
            writer.write(whole)
            await reader.readuntil(b"}")
            monkeypatch.setattr(server_protocol, "HEAD_S", 0.2)
            writer.write(b"\r\n")
            await reader.read()
        async with connected(plane) as (reader, writer):  # a byte now and then buys no time
            ended = asyncio.create_task(reader.read())
            writer.write(HEAD + b"X: ")
            while not ended.done():
                writer.write(b"x")
                await asyncio.wait([ended], timeout=0.02)
            with suppress(ConnectionError):  # what was sent too late may have reset it
                await ended
        monkeypatch.setattr(server_protocol, "HEAD_S", 60)
        assert (await plane.http.get("/healthz")).status_code == 200


async def test_an_idle_connection_outlives_those_of_proxies(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert server_protocol.IDLE_S > 60
    monkeypatch.setattr(server_protocol, "IDLE_S", 0.2)
    async with serving(settings_in(socket_dir)) as plane:
        await answered(plane, HEAD + b"\r\n")


async def test_an_answer_that_takes_long_is_left_alone(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_protocol, "HEAD_S", 0.1)
    monkeypatch.setattr(server_protocol, "BODY_S", 0.1)
    async with serving(settings_in(socket_dir)) as plane, connected(plane) as (reader, writer):
        # Part of another request behind the stream does not end the stream either.
        writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\nGET /heal")
        await reader.readuntil(b"\r\n\r\n")
        for _ in range(3):
            await answered(plane)
        monkeypatch.setattr(server_protocol, "HEAD_S", 60)
        monkeypatch.setattr(server_protocol, "BODY_S", 60)
        await plane.put_quota("acme", 5, wait="")
        await reader.readuntil(b"acme")


async def test_one_connection_too_many_is_refused_and_the_next_after_it_is_served(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(settings_in(socket_dir)) as plane:
        monkeypatch.setattr(connections, "MAX_CONNECTIONS", 2)
        async with connected(plane), connected(plane), connected(plane) as (reader, _):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n"), answer
        assert b"\r\nretry-after: 1\r\n" in answer
        assert b"urn:larder:problem:too-many-connections" in answer
        async with asyncio.timeout(60):
            while not await served(plane):
                await asyncio.sleep(0.01)


async def test_a_body_that_trickles_is_given_up_with_a_problem_and_counted(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_protocol, "BODY_S", 0.2)
    async with serving(settings_in(socket_dir)) as plane:
        async with connected(plane) as (reader, writer):
            writer.write(PUT + b"{")
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n"), answer
        assert b"urn:larder:problem:body-too-slow" in answer
        async with connected(plane) as (reader, writer):
            ended = asyncio.create_task(reader.read())
            writer.write(PUT.replace(b"50", b"5000000") + b"{")
            while not ended.done():  # a byte now and then buys no time
                writer.write(b" ")
                await asyncio.wait([ended], timeout=0.02)
            with suppress(ConnectionError):  # what was sent too late may have reset it
                await ended
        metrics = (await plane.http.get("/metrics")).text
        assert 'larder_http_connections_ended_total{reason="slow_body"} 2.0' in metrics


def test_connections_leave_descriptors_for_other_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, most in ((64, 32), (1024, 512), (4096, 3584), (1 << 20, 16_384), (resource.RLIM_INFINITY, 16_384)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
        assert connections.most_connections() == most
