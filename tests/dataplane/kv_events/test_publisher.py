"""Published events for changes of a pool, on an in-process node whose time and loop the test controls."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain as chained
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dataplane.core.pool.changes import BlockChanges
from dataplane.kv_events.messages import block_hash, rank
from dataplane.kv_events.publisher import KvEventOptions, KvEventPublisher
from dataplane.kv_events.token_ids import TokenIds
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.spaces import Space
from tests.dataplane import factories as make
from tests.dataplane.bench_node import Bench, BenchEngine
from tests.dataplane.kv_events.decoders import Decoded, llm_d

PAGE = 4096
OPTIONS = KvEventOptions("map", ("kv@bench@{model}",), "CPU", token_ids=False, block_tokens=0)
TOPIC = b"kv@bench@llama"
TOKENS = bytes(range(256)) * 4


class Timers:
    """A fake loop: `run` calls all scheduled callbacks at once."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def once(self, delay_s: float, call: Callable[[], None]) -> None:
        assert delay_s >= 0
        self.waiting.append(call)

    def every(self, interval_s: float, call: Callable[[], None]) -> None:
        """Ignore periodic calls: they guard sockets, and these streams have none."""

    def run(self) -> None:
        for _ in range(10_000):
            if not self.waiting:
                return
            self.waiting.pop(0)()
        raise AssertionError("timers that never end")


class Sent:
    """A stream that records its batches."""

    replay = None
    url = "tcp://127.0.0.1:1"

    def guard(self) -> None: ...

    def __init__(self) -> None:
        self.batches: list[tuple[bytes, list[Decoded]]] = []
        self.published = self.dropped = self.replayed = self.malformed = 0
        self.closed = False

    def send(self, topic: bytes, head: bytes, events: int) -> None:
        decoded = llm_d(head + rank(0))
        assert len(decoded) == events
        self.batches.append((topic, decoded))

    def skip(self, events: int) -> None:
        self.dropped += events

    def close(self) -> None:
        self.closed = True


class Published:
    """A publisher on a bench, and the state of a router that applies its events."""

    def __init__(self, bench: Bench, folder: Path, **options: Any) -> None:
        self.bench, self.loop, self.stream = bench, Timers(), Sent()
        self.publisher = KvEventPublisher(
            bench.node.pool,
            self.loop,  # type: ignore[arg-type]
            [self.stream],  # type: ignore[list-item]
            replace(OPTIONS, **options),
            lambda: bench.now,
            folder / "models.json",
        )

    def events(self, topic: bytes = TOPIC) -> list[Decoded]:
        """Return the events published since the last call."""
        self.loop.run()
        batches, self.stream.batches = self.stream.batches, []
        return [event for on, events in batches for event in events if on == topic]


def known(events: list[Decoded], before: set[int] | None = None) -> set[int]:
    """Return the final state of a router that applies every event."""
    cached = set(before or ())
    for event in events:
        if event.kind == "BlockStored":
            cached.update(event.hashes)
        elif event.kind == "BlockRemoved":
            cached.difference_update(event.hashes)
        else:
            cached.clear()
    return cached


def hashes(chain: list[bytes]) -> list[int]:
    return [block_hash(key) for key in chain]


def ready(bench: Bench) -> set[int]:
    return {block_hash(block.key) for block in bench.node.pool.table.blocks.values() if block.entry}


@pytest.fixture
def bench() -> Bench:
    return Bench(64 * PAGE, segment_bytes=2 * make.MIB, max_blocks=64)


@pytest.fixture
def engine(bench: Bench) -> BenchEngine:
    return bench.attach()


@pytest.fixture
def published(bench: Bench, tmp_path: Path) -> Published:
    made = Published(bench, tmp_path)
    assert made.events() == []
    return made


def test_a_stored_chain_is_one_event_with_its_parent(published: Published, engine: BenchEngine):
    chain = make.keys(5)
    engine.store(chain[:3], PAGE)
    first, second = published.events()
    engine.store(chain, PAGE)
    (third,) = published.events()
    assert first == Decoded("AllBlocksCleared")
    assert second == Decoded("BlockStored", tuple(hashes(chain[:3])), None, (), 256, "CPU")
    assert third == Decoded("BlockStored", tuple(hashes(chain[3:])), block_hash(chain[2]), (), 256, "CPU")


def test_each_model_has_its_topic(tmp_path: Path):
    bench = Bench(8 * make.MIB)
    published = Published(bench, tmp_path)
    engine = bench.attach(make.space("a"), make.space("b/c"), pid=7, group="two")
    for at in range(2):
        engine.store(make.keys(2, at), PAGE, space=at)
    published.loop.run()
    assert {topic for topic, _ in published.stream.batches} == {b"kv@bench@a", b"kv@bench@b/c"}


def test_all_topics_get_every_event(bench: Bench, engine: BenchEngine, tmp_path: Path):
    published = Published(bench, tmp_path, topics=("kv@pod-a@{model}", "kv@pod-b@{model}"))
    engine.store(make.keys(2), PAGE)
    published.loop.run()
    assert published.stream.batches[0][1] == published.stream.batches[1][1]
    assert [topic for topic, _ in published.stream.batches] == [b"kv@pod-a@llama", b"kv@pod-b@llama"]


def test_chunks_are_published_as_blocks_of_the_engines_size(bench: Bench, engine: BenchEngine, tmp_path: Path):
    published = Published(bench, tmp_path, block_tokens=16)
    published.events()
    chain = make.keys(2)
    engine.store(chain, PAGE)
    stored = published.events()[1]
    assert len(stored.hashes) == 32
    assert stored.block_size == 16
    assert (stored.hashes[15], stored.hashes[31]) == tuple(hashes(chain))
    bench.node.clear(bench.now, permanent=True)
    bench.pass_time(0.05)
    assert known(published.events(), set(stored.hashes)) == set()


def test_a_size_that_does_not_divide_a_chunk_leaves_chunks_whole(bench: Bench, engine: BenchEngine, tmp_path: Path):
    published = Published(bench, tmp_path, block_tokens=48)
    engine.store(make.keys(1), PAGE)
    assert published.events()[1].block_size == 256


class TestTokens:
    def test_they_are_omitted_by_default(self, published: Published):
        assert published.publisher.token_ids is None

    def test_they_come_with_the_salt_at_the_start_of_a_chain(self, bench: Bench, engine: BenchEngine, tmp_path: Path):
        published = Published(bench, tmp_path, token_ids=True)
        published.events()
        chain = make.keys(3)
        assert published.publisher.token_ids is not None
        for key in chain:
            published.publisher.token_ids.add(key, TOKENS)
        engine.store(chain[:2], PAGE, tenant="acme")
        _, first = published.events()
        engine.store(chain, PAGE, tenant="acme")
        (second,) = published.events()
        assert len(first.tokens) == 512
        assert len(second.tokens) == 256
        assert (first.extra, second.extra) == ([["acme"], None], None)

    def test_a_block_is_published_again_when_its_tokens_come(self, bench: Bench, engine: BenchEngine, tmp_path: Path):
        published = Published(bench, tmp_path, token_ids=True)
        published.events()
        chain = make.keys(2)
        engine.store(chain, PAGE, tenant="acme")
        assert [event.tokens for event in published.events()[1:]] == [()]
        assert published.publisher.token_ids is not None
        published.publisher.token_ids.add(chain[0], TOKENS)
        withdrawn, event = published.events()
        assert withdrawn == Decoded("BlockRemoved", (block_hash(chain[0]),), medium="CPU")
        assert (event.hashes, len(event.tokens), event.extra) == ((block_hash(chain[0]),), 256, [["acme"]])
        published.publisher.token_ids.add(chain[0], TOKENS)
        assert published.events() == []

    def test_a_resend_requests_only_those_of_cached_blocks(
        self, bench: Bench, engine: BenchEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("dataplane.kv_events.token_ids.MAX_REQUESTED", 4)
        published = Published(bench, tmp_path, token_ids=True)
        published.events()
        gone, chain = make.keys(4, "gone"), make.keys(1, "stays")
        engine.store(gone, PAGE)
        published.events()
        changes = BlockChanges(published.publisher._wake, 1)
        published.publisher._changes = bench.node.pool.changes = changes
        bench.node.invalidate(Scope(tenant=""), bench.now)
        bench.pass_time(0.05)
        engine.store(chain, PAGE)
        assert Decoded("AllBlocksCleared") in published.events(), "changes were lost"
        assert published.publisher.token_ids is not None
        published.publisher.token_ids.add(gone[0], TOKENS)
        assert published.events() == []
        published.publisher.token_ids.add(chain[0], TOKENS)
        assert [event.kind for event in published.events()] == ["BlockRemoved", "BlockStored"]

    def test_their_number_is_bounded(self):
        tokens = TokenIds(lambda key, models: None, max_chunks=3)
        for key in make.keys(10):
            tokens.add(key, TOKENS)
        assert [bool(tokens.get(key)) for key in make.keys(10)] == [False] * 7 + [True] * 3


class TestStarts:
    @pytest.mark.parametrize("sweeping", [False, True])
    def test_cached_blocks_are_published_ancestors_first_after_all_were_cleared(
        self, bench: Bench, engine: BenchEngine, tmp_path: Path, sweeping: bool
    ):
        for turn in range(6):
            engine.store(make.keys(9, turn), PAGE)
        blocks = bench.node.pool.table.blocks
        for number in sorted(blocks, reverse=True):  # as after a restart: in another order, and without references
            blocks[number] = blocks.pop(number)
            blocks[number].before = None
        if sweeping:
            bench.node.invalidate(Scope(tenant="nobody"), bench.now)
        published = Published(bench, tmp_path)
        events = published.events()
        assert events[0] == Decoded("AllBlocksCleared")
        assert known(events) == ready(bench)
        seen: set[int | None] = {None}
        for event in events[1:]:
            assert event.parent in seen
            seen.update(event.hashes)

    def test_a_cold_start_publishes_a_reset_for_the_models_of_the_previous_process(
        self, bench: Bench, engine: BenchEngine, tmp_path: Path
    ):
        before = Published(bench, tmp_path)
        engine.store(make.keys(1), PAGE)
        before.events()
        cold = Published(Bench(64 * PAGE), tmp_path)
        assert cold.events() == [Decoded("AllBlocksCleared")]

    @pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"a": 1}', "\0", "[" * 200_000])
    def test_a_damaged_file_of_models_is_ignored(self, bench: Bench, tmp_path: Path, text: str):
        (tmp_path / "models.json").write_text(text)
        assert Published(bench, tmp_path).events() == []

    def test_changes_that_were_lost_leave_a_gap_and_all_is_published_again(
        self, published: Published, bench: Bench, engine: BenchEngine
    ):
        engine.store(make.keys(9, 1), PAGE)
        cached = known(published.events())
        small = BlockChanges(published.publisher._wake, 10)
        published.publisher._changes = bench.node.pool.changes = small
        for turn in range(2, 6):
            engine.store(make.keys(9, turn), PAGE)
        bench.node.invalidate(Scope(tenant=""), bench.now)
        bench.pass_time(0.05)
        engine.store(make.keys(3, 6), PAGE)
        events = published.events()
        assert published.stream.dropped == 9 * 4 + 9 * 5 + 3
        assert Decoded("AllBlocksCleared") in events
        assert known(events, cached) == ready(bench) == set(hashes(make.keys(3, 6)))

    def test_the_end_of_the_cache_is_published(self, published: Published, engine: BenchEngine):
        engine.store(make.keys(1), PAGE)
        published.publisher.close(released=True)
        assert [event.kind for event in published.events()] == ["AllBlocksCleared", "BlockStored", "AllBlocksCleared"]
        assert published.stream.closed
        engine.store(make.keys(1, "later"), PAGE)


def test_a_change_of_many_blocks_is_taken_in_parts():
    calls: list[int] = []
    changes = BlockChanges(lambda: calls.append(1), max_blocks=10)
    blocks: list[Any] = list(range(7))

    def taken(most: int) -> list[Any]:
        return list(changes.take(most))

    changes.changed(blocks)
    changes.changed(blocks[:2])
    assert taken(3) == [0, 1, 2]
    assert taken(5) == [3, 4, 5, 6, 0]
    assert changes.blocks == 1
    assert taken(5) == [1]
    changes.changed(blocks)
    assert calls == [1, 1]
    changes.changed(blocks)
    changes.changed(blocks[:1])
    assert (changes.blocks, changes.lost_blocks, changes.clear()) == (7, 8, 15)


def test_without_a_publisher_nothing_is_recorded(bench: Bench, engine: BenchEngine):
    engine.store(make.keys(3), PAGE)
    assert bench.node.pool.changes is None


class Counting:
    """A router that counts the events of each hash, as consumers do that know no other state of a block."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.events: Counter[str] = Counter()

    def apply(self, events: Sequence[Decoded]) -> None:
        for event in events:
            self.events[event.kind] += 1
            if event.kind == "AllBlocksCleared":
                self.counts.clear()
            self.counts.update(event.hashes if event.kind == "BlockStored" else ())
            self.counts.subtract(event.hashes if event.kind == "BlockRemoved" else ())
            wrong = {each: count for each in event.hashes if (count := self.counts[each]) not in (0, 1)}
            assert not wrong, f"after {event.kind}: {wrong}"

    @property
    def known(self) -> set[int]:
        return set(+self.counts)


TP3 = [make.space(rank=rank, world_size=3) for rank in range(3)]
TP2 = [make.space(rank=rank, world_size=2) for rank in range(2)]
HYBRID = [*TP2, *(msgspec.structs.replace(each, kv_group=1) for each in TP2)]
PIPELINE = [msgspec.structs.replace(each, layout=f"layers of stage {each.rank}", block_bytes=1) for each in TP2]
STAGES = [msgspec.structs.replace(make.space(), pipeline_stage=stage, block_bytes=stage) for stage in range(3)]
FP8 = [make.space(dtype="fp8")]
SERVERS: dict[str, list[list[Space]]] = {
    "ranks": [TP3],
    "KV groups": [HYBRID],
    "stages of vLLM": [PIPELINE],
    "stages of SGLang": [STAGES],
    "two world sizes": [TP2, TP3],
    "ranks and stages": [HYBRID, PIPELINE],
    "two dtypes": [FP8, [make.space()]],
    "two models": [TP2, [make.space("other")]],
}


class Pool:
    """Engines of several servers on one bench, and what their blocks add up to."""

    def __init__(self, servers: list[list[Space]], folder: Path, **options: Any) -> None:
        self.bench = Bench(96 * PAGE, segment_bytes=8 * PAGE, max_blocks=256)
        self.published = Published(self.bench, folder, **options)
        self.servers = servers
        self.spaces = list(chained.from_iterable(servers))
        self.engines: dict[int, BenchEngine] = {}
        self.routers = {space.model: Counting() for space in self.spaces}

    def engine(self, at: int) -> BenchEngine:
        if at not in self.engines:
            space = self.spaces[at]
            self.engines[at] = self.bench.attach(msgspec.structs.replace(space, block_bytes=PAGE), pid=1000 + at)
        return self.engines[at]

    def flush(self) -> None:
        """Run one timer."""
        if self.published.loop.waiting:
            self.published.loop.waiting.pop(0)()
        self.deliver()

    def deliver(self) -> None:
        for topic, events in self.published.stream.batches:
            self.routers[topic.decode().removeprefix("kv@bench@")].apply(events)
        self.published.stream.batches.clear()

    def settle(self) -> None:
        self.bench.pass_time(1.0, times=4)
        self.published.loop.run()
        self.deliver()

    def cached(self, model: str) -> set[int]:
        """The hashes of the chunks of which an engine has all parts here, if all servers have engines."""
        held: dict[int, set[bytes]] = {}
        for block in self.bench.node.pool.table.blocks.values():
            if block.entry is not None:
                held.setdefault(block.space, set()).add(block.key)
        found: set[bytes] = set()
        for server in self.servers:
            if server[0].model == model:
                numbers = [
                    number for space in server if (number := self.bench.node.pool.spaces.known(space)) is not None
                ]
                parts = [held.get(number, set()) for number in numbers]
                found |= set.intersection(*parts) if parts else set()
        return {block_hash(key) for key in found}


class TestCounts:
    @pytest.mark.parametrize("servers", SERVERS.values(), ids=SERVERS)
    @pytest.mark.parametrize(("seed", "most_waiting"), [(1, 1 << 18), (2, 1 << 18), (3, 12)])
    def test_no_hash_is_counted_other_than_once_and_counts_agree_with_the_pool(
        self, servers: list[list[Space]], seed: int, most_waiting: int, tmp_path: Path
    ):
        draw = random.Random(seed)
        pool = Pool(servers, tmp_path, token_ids=seed == 2)
        bench, published = pool.bench, pool.published
        bench.node.pool.changes = published.publisher._changes = BlockChanges(published.publisher._wake, most_waiting)
        chains = [make.keys(5, name) for name in range(6)]
        for at in range(len(pool.spaces)):
            pool.engine(at)

        def store() -> None:
            chain = draw.choice(chains)[: draw.randint(1, 5)]
            for at in draw.sample(range(len(pool.spaces)), draw.randint(1, len(pool.spaces))):
                pool.engine(at).store(chain, PAGE, tenant=f"t{len(chain) % 2}")

        def evict() -> None:
            pool.engine(draw.randrange(len(pool.spaces))).store(make.keys(20, draw.random()), PAGE)

        def lose() -> None:
            blocks = [each for each in bench.node.pool.table.blocks.values() if each.entry]
            bench.node.pool.mark_dead(draw.sample(blocks, min(len(blocks), 3)))

        def leave() -> None:
            (server,) = draw.sample(servers, 1)
            first = pool.spaces.index(server[0])
            for at in range(first, first + len(server)):
                pool.engines.pop(at).detach_cleanly()

        def tokens() -> None:
            if published.publisher.token_ids is not None:
                for key in draw.choice(chains):
                    published.publisher.token_ids.add(key, TOKENS)

        def arrive() -> None:
            for at in range(len(pool.spaces)):
                pool.engine(at)

        steps: list[Callable[[], object]] = [
            *[store] * 6, *[pool.flush] * 4, evict, lose, tokens, leave, arrive,
            lambda: bench.node.invalidate(Scope(tenant="t1"), bench.now),
            lambda: bench.node.clear(bench.now, permanent=True),
            lambda: bench.pass_time(0.5),
        ]  # fmt: skip
        agreed = 0
        for _ in range(60):
            for step in draw.choices(steps, k=draw.randint(1, 12)):
                step()
                arrive()
            pool.settle()
            for model, router in pool.routers.items():
                assert router.known == pool.cached(model)
                agreed += len(router.known)
        assert agreed > 50

    def test_a_chunk_is_withdrawn_when_a_rank_comes_and_published_when_it_is_gone(self, tmp_path: Path):
        pool = Pool([TP2], tmp_path)
        (router,) = pool.routers.values()
        chain = make.keys(3)
        pool.engine(0).store(chain, PAGE)
        pool.settle()
        assert router.known == set(hashes(chain))
        pool.engine(1).store(chain[:1], PAGE)
        pool.settle()
        assert router.known == set(hashes(chain[:1]))
        pool.bench.node.pool.mark_dead(
            [each for each in pool.bench.node.pool.table.blocks.values() if each.space == pool.engine(1).spaces[0]]
        )
        pool.settle()
        assert router.known == set()
        pool.engine(1).detach_cleanly()
        pool.settle()
        assert router.known == set(hashes(chain))

    def test_chunks_that_no_attached_engine_can_load_are_withdrawn_until_one_attaches_that_can(self, tmp_path: Path):
        earlier, now = (msgspec.structs.replace(make.space(), revision=weights) for weights in "12")
        pool = Pool([[earlier], [now]], tmp_path)
        (router,) = pool.routers.values()
        chain = make.keys(4)
        pool.engine(0).store(chain, PAGE)
        pool.settle()
        assert router.known == set(hashes(chain))
        pool.engines.pop(0).detach_cleanly()
        pool.settle()
        assert router.known == set(hashes(chain)), "an engine may start again"
        pool.engine(1).store(chain[:1], PAGE)
        pool.settle()
        assert router.known == set(hashes(chain[:1]))
        pool.engine(0)
        pool.settle()
        assert router.known == set(hashes(chain)), "engines with either weights run"
        pool.engines.pop(0).detach_cleanly()
        pool.settle()
        assert router.known == set(hashes(chain[:1]))
        sent = sum(router.events.values())
        for _ in range(3):  # the only engine restarts
            pool.engines.pop(1).detach_cleanly()
            pool.settle()
            pool.engine(1)
            pool.settle()
        assert sum(router.events.values()) == sent
        pool.engine(1).store(chain[:2], PAGE)
        pool.settle()
        assert router.known == set(hashes(chain[:2]))
        pool.engine(0)
        pool.settle()
        assert router.known == set(hashes(chain))

    def test_a_chunk_that_two_ranks_store_in_one_interval_is_one_event(self, tmp_path: Path):
        pool = Pool([TP2], tmp_path)
        chain = make.keys(4)
        pool.settle()
        for at in range(2):
            pool.engine(at).store(chain, PAGE)
        assert [event.kind for event in pool.published.events()] == ["AllBlocksCleared", "BlockStored"]
        pool.bench.node.clear(pool.bench.now, permanent=True)
        pool.bench.pass_time(0.05)
        for at in range(2):
            pool.engine(at).store(chain, PAGE)
        assert pool.published.events() == []
