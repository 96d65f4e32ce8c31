"""The scheduler's side on real data planes with tiers, without vLLM: requests wait for evicted blocks, and for what
another node stored in a tier that both share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from dataplane.client import Client, attach
from dataplane.client.tiers import TierHits
from dataplane.engines.vllm.rates import GRACE_S, BreakEven
from dataplane.engines.vllm.request_keys import RequestKeys
from dataplane.engines.vllm.tier_waits import LOOK_AGAIN_S, TierWaits
from dataplane.protocol.engine import Prefetch
from dataplane.protocol.tiers import TierSpec
from tests.clock import Clock
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane, wait_for
from tests.dataplane.tiering.chains import copied, in_service, push
from tests.engines.vllm.fakes import CHUNK_TOKENS, CHUNKED, SOURCE, TARGET, TOKENS, Request
from tests.engines.vllm.sides import Make, Step
from tests.tiers.redis_server import RedisServer

TIMEOUT_S = 60.0


@pytest.fixture
def tiered(make_plane: Callable[..., Plane], tmp_path: Path) -> Plane:
    """A running data plane with a disk tier, and 16 MiB of memory."""
    return make_plane(
        dataplane__disk_tier_directories=str(tmp_path / "tier"), dataplane__disk_tier_bytes="256MiB"
    ).start()


@pytest.fixture
def make_engine(make_step: Make, tiered: Plane) -> Make:
    return partial(make_step, tiered, tier_timeout_s=TIMEOUT_S)


def keys_of_chain() -> list[bytes]:
    return RequestKeys(Request("", TOKENS), CHUNK_TOKENS).extend(Request("", TOKENS), len(TOKENS))


def store(engine: Step, plane: Plane) -> None:
    """Store the chain of TOKENS in memory and on disk."""
    engine.compute(Request("stored", TOKENS), SOURCE, seed=7)
    blocks = 3 * len(engine.caches)
    wait_for(lambda: plane.describe().tiers[0].blocks >= blocks, "the blocks are on disk")


def on_disk_alone(engine: Step, plane: Plane, make_engine: Make, **settings: Any) -> Step:
    """Store the chain, restart the data plane, whose memory is then empty, and return a new engine that knows it."""
    store(engine, plane)
    assert plane.stop() == 0
    plane.start()
    return found_on_disk(make_engine(len(engine.caches), **settings))


def found_on_disk(engine: Step) -> Step:
    wait_for(lambda: engine.lookup(Request("", TOKENS))[:2] == (0, 3), "tiers alone have the chain")
    return engine


def raw(engine: Step, plane: Plane) -> Client:
    return attach(plane.socket, [engine.caches[0].copies.layout.space], timeout_s=30)


def push_out(engine: Step, plane: Plane) -> None:
    """Store other blocks until the chain is no longer in memory."""
    chain, nbytes = keys_of_chain(), engine.caches[0].copies.layout.space.block_bytes
    with raw(engine, plane) as client:
        number = 0
        while client.lookup(chain):
            with client.reserve(make.keys(64, ("filler", number)), nbytes) as reservation:
                reservation.commit()
            number += 1


def ask(engine: Step, request: Request, clock: Clock, local: int = 0) -> int | None:
    """Ask once, when the request is due."""
    clock.now += LOOK_AGAIN_S
    return engine.scheduler.matched_tokens(request, local)


def wait(engine: Step, request: Request, clock: Clock, local: int = 0) -> int:
    """Ask until there is an answer other than to ask again."""
    answers: list[int] = []

    def answered() -> bool:
        found = ask(engine, request, clock, local)
        if found is not None:
            answers.append(found)
        return found is not None

    wait_for(answered, "the request goes on")
    return answers[0]


def waits(engine: Step) -> int:
    return len(engine.scheduler._tier_waits)


def test_an_evicted_chain_is_waited_for_and_loaded(make_engine: Make, tiered: Plane, clock: Clock) -> None:
    first, second = make_engine(), make_engine()
    store(first, tiered)
    push_out(first, tiered)
    found_on_disk(second)
    request, other = Request("a", TOKENS), Request("b", [*TOKENS[:CHUNKED], 1, 2])
    assert second.scheduler.matched_tokens(request, 0) is None
    assert second.scheduler.matched_tokens(other, 0) is None
    assert second.scheduler.matched_tokens(request, 0) is None, "not looked up again yet"
    assert wait(second, other, clock) == CHUNKED
    assert wait(second, request, clock) == CHUNKED
    assert waits(second) == 0
    assert second.load(request, TARGET)[0] == CHUNKED
    for one, loaded in zip(first.caches[0].read(SOURCE[:12]), second.caches[0].read(TARGET[:12]), strict=True):
        assert all(bool((a == b).all()) for a, b in zip(one, loaded, strict=True))
    second.scheduler.allocated(other, [SOURCE], CHUNKED)
    assert (second.scheduler.finished(request)[1] or {})["larder"]["loaded_from"] == {"disk": CHUNKED}
    counts = second.scheduler.take_counts()
    assert (counts["lookups"], counts["hit_tokens"]) == (2, 2 * CHUNKED)
    assert (counts["tier_waits"], counts["tier_tokens"]) == (2, 2 * CHUNKED)
    assert "tier_waits_given_up" not in counts
    assert counts["tier_wait_seconds"] > 0


@pytest.mark.parametrize("local", [0, 80])
def test_a_chain_of_several_ranks_is_served_when_all_have_it(
    make_engine: Make, tiered: Plane, clock: Clock, local: int
) -> None:
    engine = on_disk_alone(make_engine(2), tiered, make_engine)
    request = Request("a", TOKENS)
    assert wait(engine, request, clock, local) == CHUNKED - local
    tokens, found = engine.load(request, TARGET, local)
    assert tokens == CHUNKED - local
    assert not any(each.bad_blocks for each in found)


def test_only_the_missing_part_is_waited_for(make_engine: Make, tiered: Plane, clock: Clock) -> None:
    engine = on_disk_alone(make_engine(), tiered, make_engine)
    assert wait(engine, Request("a", TOKENS[:100]), clock) == CHUNK_TOKENS
    assert engine.scheduler.take_counts()["tier_tokens"] == CHUNK_TOKENS
    # The last chunk ends the prompt, so its last block is computed.
    assert wait(engine, Request("b", TOKENS[:CHUNKED]), clock) == CHUNKED - 16
    assert engine.scheduler.take_counts()["tier_tokens"] == CHUNKED - 16 - CHUNK_TOKENS


def test_a_frozen_data_plane_holds_a_request_until_the_deadline_and_never_again(
    make_engine: Make, tiered: Plane, clock: Clock
) -> None:
    engine = on_disk_alone(make_engine(), tiered, make_engine, tier_timeout_s=5.0)
    request = Request("a", TOKENS)
    tiered.signal(signal.SIGSTOP)
    try:
        began = clock.now
        assert engine.scheduler.matched_tokens(request, 0) is None
        clock.now = began + 4.9
        assert engine.scheduler.matched_tokens(request, 0) is None
        clock.now = began + 5.0
        assert engine.scheduler.matched_tokens(request, 0) == 0
        assert waits(engine) == 0
        assert ask(engine, request, clock) == 0, "asked again, for example after a preemption"
        counts = engine.scheduler.take_counts()
        assert (counts["tier_waits"], counts["tier_waits_given_up"], counts["tier_tokens"]) == (1, 1, 0)
    finally:
        tiered.signal(signal.SIGCONT)
    assert ask(engine, request, clock) is not None, "nor if the tiers work again"
    assert wait(engine, Request("b", TOKENS), clock) == CHUNKED, "later requests wait"


def test_a_data_plane_that_dies_ends_the_wait_before_the_deadline(
    make_engine: Make, tiered: Plane, clock: Clock
) -> None:
    engine = on_disk_alone(make_engine(), tiered, make_engine)
    tiered.signal(signal.SIGSTOP)
    request = Request("a", TOKENS)
    assert ask(engine, request, clock) is None
    tiered.kill()
    assert wait(engine, request, clock) == 0
    assert clock.now < 60.0
    assert engine.scheduler.take_counts()["tier_waits_given_up"] == 1


def test_a_bad_block_ends_the_wait_with_the_blocks_before_it(
    make_engine: Make, tiered: Plane, clock: Clock, tmp_path: Path
) -> None:
    first = make_engine()
    store(first, tiered)
    with raw(first, tiered) as client, client.acquire(keys_of_chain()) as lease:
        second_block = bytes(lease.view(1))
    assert tiered.stop() == 0
    damaged = 0
    for segment in (tmp_path / "tier").rglob("*"):
        if segment.is_file() and second_block in (data := segment.read_bytes()):
            damaged += 1
            with segment.open("r+b") as file:
                file.seek(data.index(second_block) + 100)
                file.write(b"wrong")
    assert damaged == 1
    tiered.start()
    engine = found_on_disk(make_engine())
    assert wait(engine, Request("a", TOKENS), clock) == CHUNK_TOKENS
    counts = engine.scheduler.take_counts()
    assert clock.now < 60.0
    assert (counts["tier_waits_given_up"], counts["tier_tokens"]) == (1, CHUNK_TOKENS)


@pytest.mark.parametrize("how", ["aborted", "reset"])
def test_waits_end_and_their_loads_are_cancelled_by_an_abort_and_by_a_reset(
    make_engine: Make, tiered: Plane, clock: Clock, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    engine = on_disk_alone(make_engine(), tiered, make_engine)
    request = Request("a", TOKENS)
    client = engine.scheduler._client
    assert client is not None
    prefetch, cancelled = client._tiers.prefetch, list[bool]()

    def noted(words: Any, spaces: Any, wait_s: float, first_space: int) -> int:
        cancelled.append(not wait_s)
        return prefetch(words, spaces, wait_s, first_space)

    monkeypatch.setattr(client._tiers, "prefetch", noted)
    tiered.signal(signal.SIGSTOP)
    try:
        assert ask(engine, request, clock) is None
        assert waits(engine) == 1
        if how == "aborted":
            assert engine.scheduler.finished(request) == (False, None)
        else:
            assert engine.scheduler.reset()
        assert waits(engine) == 0
        assert cancelled == [False, True]
    finally:
        tiered.signal(signal.SIGCONT)
    if how == "aborted":
        assert wait(engine, Request("b", TOKENS), clock) == CHUNKED
    else:
        assert ask(engine, request, clock) == 0


def test_each_space_gets_one_request_although_the_link_has_room_for_one_request_at_a_time(
    make_engine: Make, tiered: Plane, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = on_disk_alone(make_engine(3), tiered, make_engine)
    client = engine.scheduler._client
    assert client is not None
    attachment = client._memory.current
    assert attachment is not None
    post, spaces_by_time = client._link.post, dict[float, int]()

    def post_one(new: Any, callback: Any) -> int:
        request = new(0)
        if isinstance(request, Prefetch):
            if clock.now in spaces_by_time:
                return 0
            spaces_by_time[clock.now] = request.space
        return post(new, callback)

    monkeypatch.setattr(client._link, "post", post_one)
    assert wait(engine, Request("a", TOKENS), clock) == CHUNKED
    assert list(spaces_by_time.values()) == attachment.spaces


def test_other_requests_do_not_wait(make_engine: Make, tiered: Plane, clock: Clock) -> None:
    engine = on_disk_alone(make_engine(), tiered, make_engine)
    settings: list[dict[str, Any]] = [{"tier_timeout_s": 0.0}, {"min_load_tokens": CHUNKED + 1}]
    others = [found_on_disk(make_engine(**each)) for each in settings]
    no_reads = {"kv_transfer_params": {"larder.skip_load": True}}, {"skip_reading_prefix_cache": True}
    for each, local, fields in (
        *((other, 0, {}) for other in others),
        *((engine, 0, fields) for fields in no_reads),
        (engine, 0, {"cache_salt": "rival"}),  # nothing of it is in tiers
        (engine, CHUNKED, {}),  # the engine has it in its own cache
    ):
        for _ in range(3):
            assert ask(each, Request("a", TOKENS, **fields), clock, local) == 0
        assert "tier_waits" not in each.scheduler.take_counts()
    assert tiered.describe().tiers[0].loaded_blocks == 0


# ---- a tier that nodes share


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
def two_nodes(planes: tuple[Plane, Plane], make_step: Make) -> tuple[Step, Step]:
    """An engine on each node. The second one knows that the shared tier is in service."""
    first, second = (make_step(plane, tier_timeout_s=TIMEOUT_S) for plane in planes)
    wait_for(lambda: second.lookup(Request("", [7] * 200)).unknown, "the tier may have the chain")
    return first, second


def test_blocks_of_another_node_are_waited_for_and_loaded(
    planes: tuple[Plane, Plane], two_nodes: tuple[Step, Step], clock: Clock
) -> None:
    first, second = two_nodes
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


class Held:
    """A lease, which lasts as long as it exists."""

    chains: ClassVar[list[list[bytes]]] = []
    """The keys of all leases."""

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = keys
        self.chains.append(keys)

    def __del__(self) -> None:
        self.chains.remove(self._keys)


@pytest.mark.parametrize("ends", ["with the blocks", "with the request"])
def test_what_is_in_memory_is_leased_until_the_wait_ends(ends: str) -> None:
    """Room for blocks from tiers is made by evicting others."""
    client: Any = SimpleNamespace(spaces=1, prefetch=lambda keys, wait_s, first_space: 1, hold=Held)
    client.cancel_prefetch = lambda keys: True
    waits = TierWaits(TIMEOUT_S, BreakEven(0), lambda: 0.0, lambda name, by: None)
    answers = [TierHits(1, 3, 0.1, sources=bytes(3)), TierHits(4, 0, 0.0)]
    client.lookup_tiers = lambda keys, **_: answers.pop(0)
    keys = [bytes([at]) * 32 for at in range(5)]
    look_up = partial(waits.look_up, client, "r", keys, lambda hits: 64 * hits, tenant="", may_wait=True)
    assert look_up() is None
    assert Held.chains == [keys[:4]]
    if ends == "with the blocks":
        assert look_up() is not None
    else:
        waits.forget(client, "r")
    assert Held.chains == []


def test_chunks_that_came_before_the_answer_of_a_shared_tier_was_seen_are_remote() -> None:
    """Of five chunks one is in memory, one on disk, and one is being written."""
    client: Any = SimpleNamespace(spaces=1, prefetch=lambda keys, wait_s, first_space: 1, hold=Held)
    waits = TierWaits(TIMEOUT_S, BreakEven(0), lambda: 0.0, lambda name, by: None)
    answers = [TierHits(1, 1, 0.1, unknown=3, writing=2, sources=b"\1"), TierHits(5, 0, 0.0)]
    client.lookup_tiers = lambda keys, **_: answers.pop(0)
    keys = [bytes([at]) * 32 for at in range(5)]
    look_up = partial(waits.look_up, client, "r", keys, lambda hits: 64 * hits, tenant="", may_wait=True)
    assert look_up() is None
    found = look_up()
    assert found is not None
    assert (found.hits, found.sources) == (5, {1: "disk", 3: "remote", 4: "remote"})


@pytest.mark.parametrize(
    "hits", [TierHits(1, 2, 0.01), TierHits(1, 0, 0.0, unknown=2), TierHits(1, 0, 0.01, writing=2)]
)
def test_a_request_does_not_wait_much_longer_than_the_computation_of_its_tokens_takes(hits: TierHits) -> None:
    clock, rates = Clock(), BreakEven("auto")
    rates.note_step(1000, 1.0)
    client: Any = SimpleNamespace(
        spaces=1, prefetch=lambda keys, wait_s, first_space: 1, lookup_tiers=lambda keys, **_: hits, hold=Held
    )
    waits = TierWaits(TIMEOUT_S, rates, clock, lambda name, by: None)
    keys = [bytes([at]) * 32 for at in range(3)]
    look_up = partial(waits.look_up, client, "r", keys, lambda hits: 64 * hits, tenant="", may_wait=True)
    limit_s = 2 * 64 / 1000 + GRACE_S
    assert look_up() is None
    clock.now = 0.99 * limit_s
    assert look_up() is None
    clock.now = 1.01 * limit_s
    found = look_up()
    assert found is not None
    assert found.hits == 1


def test_a_request_continues_when_no_node_stored_its_chain(two_nodes: tuple[Step, Step], clock: Clock) -> None:
    _, engine = two_nodes
    began = clock.now
    assert wait(engine, Request("a", TOKENS), clock) == 0
    assert clock.now - began < TIMEOUT_S, "it does not wait for its deadline"
    counts = engine.scheduler.take_counts()
    assert counts["tier_waits"] == 1
    assert "tier_waits_given_up" not in counts
    assert wait(engine, Request("b", TOKENS), clock) == 0
    assert waits(engine) == 0
