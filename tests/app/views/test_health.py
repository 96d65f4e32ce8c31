"""Health checks are answered in bounded time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.http.middleware import stack
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio


async def test_a_health_check_does_not_wait_for_a_database_that_hangs(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, auth = plane.app.parts.database, plane.app.parts.access.auth
    read, answers = database.read, asyncio.Event()

    @contextlib.asynccontextmanager
    async def hanging() -> AsyncIterator[AsyncSession]:
        await answers.wait()
        async with read() as session:
            yield session

    try:
        with monkeypatch.context() as patched:
            patched.setattr(database, "read", hanging)
            patched.setattr(stack, "HEALTH_TIMEOUT_S", 0.1)
            for path in ("/healthz", "/readyz", "/healthz/fleet"):
                auth.forget("")  # the caller is looked up again
                answer = await asyncio.wait_for(plane.http.get(path), 60)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                assert answer.json()["type"] == "urn:larder:problem:store-unavailable"
    finally:
        answers.set()
    assert (await plane.http.get("/healthz")).status_code == 200


async def test_health_checks_of_a_hanging_database_share_one_query(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, answers, pings = plane.app.parts.database, asyncio.Event(), []

    async def ping() -> None:
        pings.append(True)
        await answers.wait()

    try:
        with monkeypatch.context() as patched:
            patched.setattr(database, "ping", ping)
            patched.setattr(stack, "HEALTH_TIMEOUT_S", 0.1)
            for path in ("/healthz", "/readyz", "/healthz/fleet"):
                assert (await asyncio.wait_for(plane.http.get(path), 60)).status_code == 503
    finally:
        answers.set()
    assert len(pings) == 1
    for _ in range(2):
        assert (await plane.http.get("/healthz")).status_code == 200
