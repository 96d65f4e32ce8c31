"""Answers that stay open: so many for a token, a session and an address, and what they show is made once for all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.errors import TooManyRequests
from app.http.routes.views.events import EventMessages
from app.services.base.concurrency_limiter import ConcurrencyLimiter
from app.services.base.principals import Principal
from tests.app.callers import ADMIN, bearer, create_token, guarding
from tests.app.plane import Plane, serving, settings_in
from tests.app.waiting import until

pytestmark = pytest.mark.anyio
EVENTS, SNAPSHOT = "/api/v1/events", "/api/v1/snapshot"


@asynccontextmanager
async def stream(plane: Plane, token: str, **headers: str) -> AsyncIterator[httpx.Response]:
    """An answer that has begun, for its status or its first lines."""
    base = str(plane.http.base_url)
    async with (
        httpx.AsyncClient(base_url=base, trust_env=False, verify=False, timeout=60) as http,
        http.stream("GET", EVENTS, headers={**(bearer(token) if token else {}), **headers}) as answer,
    ):
        yield answer


async def status(plane: Plane, token: str, **headers: str) -> int:
    async with stream(plane, token, **headers) as answer:
        return answer.status_code


async def until_free(plane: Plane) -> None:
    """The server notices by itself that a client is gone."""
    await until(lambda: not plane.app.parts.limits.stream_slots.in_use)


async def test_streams_of_a_token_are_bounded_and_those_of_others_are_not_delayed(socket_dir: Path) -> None:
    async with guarding(socket_dir, streams_per_token=2) as plane, AsyncExitStack() as opened:
        greedy, other = (await create_token(plane, "greedy"), await create_token(plane, "other", tenants=["acme"]))
        for _ in range(2):
            assert (await opened.enter_async_context(stream(plane, greedy))).status_code == 200
        async with stream(plane, greedy) as refused:
            problem: dict[str, Any] = httpx.Response(200, content=await refused.aread()).json()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        assert problem["type"] == "urn:larder:problem:too-many-requests"
        assert problem["detail"].startswith("2 streams and waiting requests of the token 'greedy' are open")
        assert "app.streams_per_token" in problem["detail"]
        waiting = await plane.http.get(f"{SNAPSHOT}?index=1&wait=1ms", headers=bearer(greedy))
        assert waiting.status_code == 429, "what waits is as good as a stream"
        assert (await plane.http.get(SNAPSHOT, headers=bearer(greedy))).status_code == 200, "and what does not is not"
        assert await status(plane, other) == 200
        assert await status(plane, ADMIN) == 200
        await opened.aclose()
        await until_free(plane)
        assert await status(plane, greedy) == 200


async def test_streams_of_a_session_and_of_an_address_are_bounded(socket_dir: Path) -> None:
    settings: dict[str, Any] = {"streams_per_session": 1, "streams_per_address": 2, "trusted_proxies": "127.0.0.1"}
    async with guarding(socket_dir, **settings) as plane, AsyncExitStack() as opened:
        token, cookies = await create_token(plane, "wall"), []
        for _ in range(2):
            login = await plane.http.post("/api/v1/session", json={"token": token}, headers={"authorization": ""})
            cookies.append(login.headers["set-cookie"].partition(";")[0])
        here = {"x-forwarded-for": "203.0.113.1"}
        first = await opened.enter_async_context(stream(plane, "", cookie=cookies[0], **here))
        assert first.status_code == 200
        assert await status(plane, "", cookie=cookies[0], **here) == 429, "one for each browser"
        second = await opened.enter_async_context(stream(plane, "", cookie=cookies[1], **here))
        assert second.status_code == 200
        assert await status(plane, token, **here) == 429, "two for each address"
        assert await status(plane, token, **{"x-forwarded-for": "203.0.113.2"}) == 200


async def test_without_tokens_addresses_are_bounded(socket_dir: Path) -> None:
    async with serving(settings_in(socket_dir, streams_per_address=1)) as plane, stream(plane, "") as first:
        assert first.status_code == 200
        assert await status(plane, "") == 429


def test_a_network_of_ipv6_counts_as_one_address_and_a_place_comes_back() -> None:
    limiter = ConcurrencyLimiter(token=9, session=9, address=1)
    with limiter.taken(Principal(source="2001:db8::1")):
        with pytest.raises(TooManyRequests), limiter.taken(Principal(source="2001:db8::2")):
            pass
        with limiter.taken(Principal(source="2001:db8:0:1::1")):
            pass
    with limiter.taken(Principal(source="2001:db8::2")):
        pass
    assert limiter.in_use == 0


async def test_the_overview_is_made_once_for_callers_of_the_same_tenants(lone: Plane) -> None:
    await lone.put_quota("acme", 5, wait="")
    await lone.put_quota("other", 5, wait="")
    overview = lone.app.parts.views.overview
    messages = EventMessages(lone.app.parts.bus, overview)
    one, two = (Principal(actor="a", salts=frozenset({"acme"})), Principal(actor="b", salts=frozenset({"acme"})))
    both = Principal(actor="c", salts=frozenset({"acme", "other"}))
    before = overview.built
    shown = await asyncio.gather(*(messages.overview(by) for by in (one, two, both, Principal()) * 25))
    assert overview.built - before == 3, "for acme, for both, and for those who see everything"
    texts = [{id(text) for _, text in shown[at::4]} for at in range(4)]
    assert texts[0] == texts[1], "not even encoded twice"
    assert [len(each) for each in texts] == [1, 1, 1, 1]
    for at, names in enumerate((["acme"], ["acme"], ["acme", "other"], ["acme", "other"])):
        text = shown[at][1].decode()
        assert [name for name in ("acme", "other") if f'"tenant":"{name}"' in text] == names
