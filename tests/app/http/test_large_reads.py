"""A caller that reads lists on many connections delays neither other callers nor the health checks."""

import asyncio
from contextlib import ExitStack
from typing import Any

import pytest
from litestar.handlers import HTTPRouteHandler

from app.http.middleware.turns import LARGE_READS, in_turn
from app.http.principals import serve_as
from app.services.access.auth import Credentials
from app.services.base.principals import Principal
from tests.app.plane import Plane
from tests.app.waiting import until

pytestmark = pytest.mark.anyio
HERE = "127.0.0.1"
LARGE = {"getOverview", "getSeries", "listFindings", "exportDocument"}
PINS = "/api/v1/pins"


def _get_handlers(plane: Plane) -> list[HTTPRouteHandler]:
    return [
        handler
        for route in plane.app.litestar.routes
        for handler in getattr(route, "route_handlers", [])
        if "GET" in handler.http_methods
    ]


async def test_every_list_is_read_in_turn(plane: Plane) -> None:
    handlers = _get_handlers(plane)
    in_turns = {handler.operation_id for handler in handlers if in_turn in handler.resolve_middleware()}
    lists = {handler.operation_id for handler in handlers if "limit" in handler.parsed_fn_signature.parameters}
    assert len(lists) == 17
    assert in_turns == lists | LARGE


async def test_lists_wait_for_their_turn_while_other_requests_and_callers_do_not(plane: Plane) -> None:
    turns = plane.app.parts.limits.large_reads
    for _ in range(LARGE_READS.each_at_once):
        assert turns.begin(HERE)
    waiting = [asyncio.create_task(plane.http.get(PINS)) for _ in range(LARGE_READS.each_waiting)]
    await until(lambda: turns.waiting >= len(waiting))

    refused = await plane.http.get(PINS)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["type"] == "urn:larder:problem:too-many-requests"
    assert "64 large reads of yours are waiting already" in refused.json()["detail"]
    for path in ("/healthz", "/api/v1/whoami"):
        assert (await plane.http.get(path)).status_code == 200
    assert turns.begin("another"), "another caller has turns of its own"
    turns.end("another")
    assert not any(task.done() for task in waiting)

    for _ in range(LARGE_READS.each_at_once):
        turns.end(HERE)
    assert {(await task).status_code for task in waiting} == {200}
    assert (turns.waiting, turns.callers) == (0, 0)


async def test_a_response_that_its_client_does_not_read_holds_no_turn(plane: Plane) -> None:
    unread = asyncio.Event()
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert plane.app.parts.limits.large_reads.callers == 1
        await send({"type": "http.response.start"})
        await send({"type": "http.response.body"})

    async def send(message: Any) -> None:
        sent.append(message)
        await unread.wait()

    serve_as(Principal(source=HERE), Credentials(), ExitStack())
    serve: Any = in_turn(app)
    serving: asyncio.Task[None] = asyncio.create_task(serve({"litestar_app": plane.app.litestar}, None, send))
    await until(lambda: sent)
    assert len(sent) == 1
    assert plane.app.parts.limits.large_reads.callers == 0
    unread.set()
    await serving
    assert len(sent) == 2


async def test_a_read_that_fails_releases_its_turn(plane: Plane) -> None:
    for _ in range(LARGE_READS.each_at_once + 1):
        assert (await plane.http.get(f"{PINS}?sort=colour")).status_code == 422
    assert plane.app.parts.limits.large_reads.callers == 0
