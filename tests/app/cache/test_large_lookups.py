"""Look-ups of the most tokens: others are answered meanwhile, and the memory comes back."""

import asyncio
import gc
import json
import random
import threading
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import pytest

from app.errors import TooManyRequests
from app.schemas.base.fields import MAX_TOKENS
from app.schemas.cache.actions import LookupPost
from app.services.base.large_work import BOUNDS, LargeWork
from app.services.base.principals import PLANE
from app.services.records.chains import Chains
from app.services.records.tokenizers import Tokenizers
from dataplane.protocol.keys import chain
from tests.app.plane import Plane, serving, settings_in

pytestmark = pytest.mark.anyio
LOOKUPS = 20
WAIT_S = 300.0


def bodies_in_cycles() -> int:
    """Number of decoded bodies that are still there; only a garbage collection would free them."""
    return sum(type(each) is LookupPost for each in gc.get_objects())


async def looked_up(plane: Plane, body: bytes) -> int:
    url = urlsplit(str(plane.http.base_url))
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    try:
        writer.write(
            b"POST /api/v1/actions/lookup HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        for at in range(0, len(body), 65_536):
            writer.write(body[at : at + 65_536])
            await writer.drain()
        return int((await reader.read()).split(b" ", 2)[1])
    finally:
        writer.close()


@pytest.mark.full
@pytest.mark.timeout(400)
async def test_large_lookups_neither_keep_others_waiting_nor_keep_memory(socket_dir: Path) -> None:
    numbers = random.Random(1)
    body = json.dumps({"model": "m", "tokens": [numbers.randrange(150_000) for _ in range(MAX_TOKENS)]}).encode()
    # They come from one caller, which may use a quarter.
    settings = settings_in(socket_dir, body_budget_bytes=4 * LOOKUPS * len(body))
    async with serving(settings) as plane:
        gc.collect()
        gc.disable()
        try:
            async with asyncio.timeout(WAIT_S):
                asking = [asyncio.create_task(looked_up(plane, body)) for _ in range(LOOKUPS)]
                answered = 0
                while not all(task.done() for task in asking):
                    assert (await plane.http.get("/healthz")).status_code == 200
                    answered += not all(task.done() for task in asking)
                    await asyncio.sleep(0.005)
                # No node is connected: the look-up fails after its tokens were hashed.
                assert {task.result() for task in asking} == {503}
                while plane.app.parts.limits.body_budget.used_bytes or bodies_in_cycles():
                    await asyncio.sleep(0.05)
        finally:
            gc.enable()
    assert answered, "others are answered before the last look-up is"


async def test_many_tokens_are_hashed_to_the_keys_of_their_chain() -> None:
    numbers = random.Random(2)
    tokens = [numbers.randrange(1 << 32) for _ in range(50_001)]
    chains = Chains(cast(Tokenizers, None), LargeWork())
    for chunk_tokens in (16, 256, 50_001, 65_536):
        found = await chains.of_tokens(tokens, "salt", chunk_tokens, PLANE)
        assert found == chain(tokens, "salt", chunk_tokens=chunk_tokens)


async def test_callers_take_turns_with_large_work_and_too_many_are_refused() -> None:
    work, may_end = LargeWork(), threading.Event()
    order: list[str] = []
    first = asyncio.create_task(work.run("a", may_end.wait, WAIT_S))
    await asyncio.sleep(0)
    mine = [asyncio.create_task(work.run("a", order.append, "a")) for _ in range(BOUNDS.each_waiting)]
    await asyncio.sleep(0)
    other = asyncio.create_task(work.run("b", order.append, "b"))
    with pytest.raises(TooManyRequests, match="64 large requests of yours are waiting"):
        await work.run("a", order.append, "too many")
    may_end.set()
    async with asyncio.timeout(WAIT_S):
        await asyncio.gather(first, other, *mine)
    assert "b" in order[:2], "another caller does not wait for all of one"
    assert order.count("a") == BOUNDS.each_waiting


async def test_more_tokens_than_a_lookup_takes_are_refused_by_name(lone: Plane) -> None:
    for tokens, path, expected in (
        ([0] * (MAX_TOKENS + 1), "tokens", "expected at most 262144 tokens"),
        ([1_000_000] * 700_000, "tokens", "expected at most 262144 token ids, in a body of at most 4 MiB"),
        ([0] * 100_000 + [1 << 32], "tokens[100000]", "at most 4294967295"),
        ([0] * 100_000 + [-1], "tokens[100000]", "at least 0"),
    ):
        refused = await lone.http.post("/api/v1/actions/lookup", json={"model": "m", "tokens": tokens})
        (error,) = refused.json()["errors"]
        assert (refused.status_code, error["path"]) == (422, path), refused.text
        assert expected in error["message"]
