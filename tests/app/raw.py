"""Requests as bytes, each on a connection of its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.app.plane import WAIT_S, Plane


@asynccontextmanager
async def connected(plane: Plane, source: str = "") -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is closed at the end; what comes in between has a minute. `source` is its own address."""
    where = plane.http.base_url
    reader, writer = await asyncio.open_connection(where.host, where.port, local_addr=(source, 0) if source else None)
    try:
        async with asyncio.timeout(WAIT_S):
            yield reader, writer
    finally:
        writer.close()


async def answered(plane: Plane, *parts: bytes) -> bytes:
    """Return all bytes that the server sends before it closes the connection. Each part is sent after the previous
    one."""
    async with connected(plane) as (reader, writer):
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.02)
        return await reader.read()


def status_of(answer: bytes) -> int:
    """Return the status of an answer; 0 if there is none."""
    return int(answer.split(b" ", 2)[1]) if answer else 0
