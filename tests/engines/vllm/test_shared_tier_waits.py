"""The scheduler's side on two real data planes that share a Redis server: requests wait for what another node stored,
and not for missing blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from dataplane.engines.vllm.request_keys import RequestKeys
from dataplane.engines.vllm.tier_waits import LOOK_AGAIN_S
from dataplane.protocol.tiers import TierSpec
from tests.clock import Clock
from tests.dataplane.plane import Plane, wait_for
from tests.dataplane.tiering.chains import copied, in_service, push
from tests.engines.vllm.fakes import CHUNK_TOKENS, Request
from tests.engines.vllm.sides import Step
from tests.tiers.redis_server import RedisServer

TOKENS = list(range(1000, 1200))
"""Three whole chunks and eight tokens."""
CHUNKED = 192
SOURCE = list(range(1, 14))
TARGET = list(range(40, 27, -1))
TIMEOUT_S = 60.0
MakeEngine = Callable[[Plane], Step]


@pytest.fixture
def planes(socket_dir: Path) -> Iterator[tuple[Plane, Plane]]:
    server = RedisServer()
    both: list[Plane] = []
    try:
        server.start()
        spec = TierSpec("shared", "redis", 64 << 20, {"servers": [server.address]})
        for name in ("a", "b"):
            (socket_dir / name).mkdir()
            both.append(Plane(socket_dir / name, {"dataplane__node": name}).start())
            push(both[-1], 1, spec)
            in_service(both[-1], "shared")
        yield both[0], both[1]
    finally:
        for plane in both:
            if plane.alive:
                plane.kill()
        server.stop()


@pytest.fixture
def make_engine(make_step: Callable[..., Step]) -> MakeEngine:
    return partial(make_step, tier_timeout_s=TIMEOUT_S)


def knows_tier(engine: Step) -> Step:
    """Wait until the engine knows that a shared tier is in service."""
    client = engine.scheduler._client
    assert client is not None
    keys = RequestKeys(Request("", [7] * 200), CHUNK_TOKENS).extend(Request("", [7] * 200), 200)
    wait_for(lambda: client.lookup_tiers(keys, counted=False).unknown, "it may have the chain")
    return engine


def wait(engine: Step, request: Request, clock: Clock) -> int:
    """Ask until there is an answer other than to ask again."""
    answers: list[int] = []

    def answered() -> bool:
        clock.now += LOOK_AGAIN_S
        found = engine.scheduler.matched_tokens(request, 0)
        if found is not None:
            answers.append(found)
        return found is not None

    wait_for(answered, "the request goes on")
    return answers[0]


def test_blocks_of_another_node_are_waited_for_and_loaded(
    planes: tuple[Plane, Plane], make_engine: MakeEngine, clock: Clock
) -> None:
    first, second = make_engine(planes[0]), knows_tier(make_engine(planes[1]))
    first.compute(Request("stored", TOKENS), SOURCE, seed=7)
    copied(planes[0], 3, "shared")
    request = Request("a", TOKENS)
    assert wait(second, request, clock) == CHUNKED
    assert second.load(request, TARGET)[0] == CHUNKED
    for one, loaded in zip(first.caches[0].read(SOURCE[:12]), second.caches[0].read(TARGET[:12]), strict=True):
        assert all(bool((a == b).all()) for a, b in zip(one, loaded, strict=True))
    assert (second.scheduler.finished(request)[1] or {})["larder"]["loaded_from"] == {"remote": CHUNKED}
    counts = second.scheduler.take_counts()
    assert (counts["tier_waits"], counts["tier_tokens"]) == (1, CHUNKED)
    assert "tier_waits_given_up" not in counts


def test_a_request_continues_when_no_node_stored_its_chain(
    planes: tuple[Plane, Plane], make_engine: MakeEngine, clock: Clock
) -> None:
    engine = knows_tier(make_engine(planes[1]))
    began = clock.now
    assert wait(engine, Request("a", TOKENS), clock) == 0
    assert clock.now - began < TIMEOUT_S, "it does not wait for its deadline"
    counts = engine.scheduler.take_counts()
    assert counts["tier_waits"] == 1
    assert "tier_waits_given_up" not in counts
    assert wait(engine, Request("b", TOKENS), clock) == 0
    assert len(engine.scheduler._tier_waits) == 0
