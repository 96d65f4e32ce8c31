"""Models with recurrent state beside attention: what is stored, and which prefixes are hits. On a real data plane,
without vLLM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dataplane.engines.pages import pages_of
from dataplane.engines.vllm.copies import CpuCopies
from dataplane.engines.vllm.messages import GroupLayout, StepPlan
from dataplane.engines.vllm.request_keys import RequestKeys
from dataplane.engines.vllm.scheduler import SchedulerSide
from dataplane.engines.vllm.settings import ConnectorSettings
from dataplane.engines.vllm.states import StateGroups, ends_of
from dataplane.engines.vllm.worker import Results, WorkerSide
from dataplane.protocol.control.scopes import Invalidate, Scope
from dataplane.protocol.spaces import Space
from tests.dataplane.plane import Plane, wait_for
from tests.engines.vllm.fakes import BLOCKS, CHUNK_TOKENS, PAGE_TOKENS, TOKENS, Cache, Request, cache

PAGES = CHUNK_TOKENS // PAGE_TOKENS
CHUNKS = len(TOKENS) // CHUNK_TOKENS
STATE_BYTES = 80


def config(*kinds: tuple[str, int]) -> Any:
    """Return vLLM's configuration of KV-cache groups of these kinds and block sizes."""
    groups = []
    for kind, block_size in kinds:
        spec = type(kind, (), {})()
        spec.block_size = block_size
        groups.append(SimpleNamespace(kv_cache_spec=spec))
    return SimpleNamespace(kv_cache_groups=groups)


def state_cache() -> Cache:
    """Return a cache of states of one layer, in blocks with padding."""
    tensor = torch.zeros(BLOCKS, 1, 1, STATE_BYTES + 48, dtype=torch.int8)[..., :STATE_BYTES]
    pages = pages_of([tensor], tokens_per_block=CHUNK_TOKENS, chunk_tokens=CHUNK_TOKENS)
    space = Space(
        "m", layout="state", kv_group=1, block_bytes=pages.chunk_bytes, block_tokens=CHUNK_TOKENS, tail_blocks=1
    )
    return Cache([tensor], CpuCopies(pages, GroupLayout(space, CHUNK_TOKENS)))


class Engine:
    """One engine whose model has a group of attention and one of states."""

    def __init__(self, plane: Plane, **settings: Any) -> None:
        known = ConnectorSettings(
            socket=plane.socket, chunk_tokens=CHUNK_TOKENS, timeout_s=5.0, min_load_tokens=0, **settings
        )
        self.attention, self.state = cache(), state_cache()
        copies = [self.attention.copies, self.state.copies]
        self.scheduler = SchedulerSide(
            known, group="engine", engine="scheduler", block_tokens=CHUNK_TOKENS, evict=lambda blocks: None
        )
        self.worker = WorkerSide(known, copies, group="engine", engine="worker", holds_blocks=False)
        self.scheduler.workers_ready([[each.layout for each in copies]])
        self.groups = StateGroups(config(("FullAttentionSpec", CHUNK_TOKENS), ("MambaSpec", PAGE_TOKENS)))

    def run(self, plan: StepPlan) -> Results:
        self.worker.begin_loads(plan)
        self.worker.begin_saves(plan)
        results = self.worker.results()
        self.scheduler.stepped(self.worker.take_report(), results.received, results.failed)
        return results

    def compute(self, request: Request, blocks: list[int], ends: list[int], seed: int) -> None:
        """Compute a prompt in steps that end at these numbers of tokens, each of which leaves a state in a block of its
        own, and store it. States are in the blocks from 50 on."""
        assert self.scheduler.matched_tokens(request, 0) is not None
        self.scheduler.allocated(request, [[], []], 0)
        self.attention.fill(blocks, seed)
        for number, (start, end) in enumerate(pairwise([0, *ends])):
            request.num_computed_tokens = start
            pages = -(-end // PAGE_TOKENS)
            self.state.fill([50 + number], seed + end)
            table = [7] * (pages - 1) + [50 + number]
            saved = self.groups.left_by([blocks[:pages], table], end, [])
            self.run(self.scheduler.plan({request.request_id: end - start}, {request.request_id: saved}.get))
            self.state.fill([50 + number], 99)  # vLLM has the block for another state from now on
        assert not self.scheduler.finished(request)[0], "saves end with their step, because vLLM keeps no state longer"

    def load(self, request: Request, blocks: list[int], state: int, local: int = 0) -> tuple[int, Results | None]:
        """Load what is found of a prompt, and its state into a block. Return the number of tokens, and the results."""
        tokens = self.scheduler.matched_tokens(request, local)
        if not tokens:
            assert tokens is not None
            return 0, None
        pages = (local + tokens) // PAGE_TOKENS
        numbers = self.groups.at_chunk_ends([blocks[:pages], [*[0] * (pages - 1), state]])
        self.scheduler.allocated(request, numbers, tokens)
        results = self.run(self.scheduler.plan({}, lambda _: None))

        def ended() -> Results | None:
            nonlocal results
            results = results if results.received else self.run(self.scheduler.plan({}, lambda _: None))
            return results if results.received else None

        return tokens, wait_for(ended, "the load ends")

    def found(self, tokens: list[int]) -> int | None:
        request = Request(f"look {tokens[-1]} {len(tokens)}", tokens)
        found = self.scheduler.matched_tokens(request, 0)
        self.scheduler.finished(request)
        return found

    def close(self) -> None:
        self.worker.close()
        self.scheduler.close()


@pytest.fixture
def make(plane: Plane) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def new(**settings: Any) -> Engine:
        made.append(Engine(plane, **settings))
        return made[-1]

    yield new
    for each in made:
        each.close()


BLOCKS_OF = list(range(1, 14))
OTHER = list(range(40, 27, -1))


def same(one: list[list[torch.Tensor]], other: list[list[torch.Tensor]]) -> bool:
    return all(torch.equal(torch.stack(a), torch.stack(b)) for a, b in zip(one, other, strict=True))


def test_another_engine_loads_the_attention_of_all_chunks_and_the_state_at_their_end(
    make: Callable[..., Engine],
) -> None:
    first, second = make(), make()
    first.compute(Request("a", TOKENS), BLOCKS_OF, [192, 200], seed=3)
    tokens, results = second.load(Request("b", TOKENS), OTHER, state=20)
    assert (tokens, results and results.failed) == (192, set())
    assert same(first.attention.read(BLOCKS_OF[:12]), second.attention.read(OTHER[:12]))
    second.state.fill([21], 3 + 192)
    assert same(second.state.read([20]), second.state.read([21]))
    assert not second.state.read([22])[0][0].any(), "states of other chunks are neither stored nor loaded"


def test_the_longest_prefix_with_a_state_at_its_end_is_the_hit(make: Callable[..., Engine]) -> None:
    first, second = make(), make()
    first.compute(Request("a", TOKENS), BLOCKS_OF, [64, 192, 200], seed=3)
    beyond = [*TOKENS[:192], *range(10)]
    assert second.found(beyond) == 192
    assert second.found(TOKENS[:192]) == 64, "the last token is computed, and there is no state at 128"
    assert second.found([*TOKENS[:150], *range(60)]) == 64, "two chunks of attention, and no state at their end"
    assert second.found([*TOKENS[:50], *range(60)]) == 0
    tokens, results = second.load(Request("b", [*TOKENS[:150], *range(60)]), OTHER, state=20)
    assert (tokens, results and results.failed) == (64, set())
    second.state.fill([21], 3 + 64)
    assert same(second.state.read([20]), second.state.read([21]))


def test_a_load_begins_behind_the_engines_own_blocks(make: Callable[..., Engine]) -> None:
    first, second = make(), make()
    first.compute(Request("a", TOKENS), BLOCKS_OF, [192, 200], seed=3)
    tokens, results = second.load(Request("b", TOKENS), OTHER, state=20, local=80)
    assert (tokens, results and results.failed) == (112, set())
    assert not second.attention.read(OTHER[:5])[0][0].any()
    assert same(first.attention.read(BLOCKS_OF[5:12]), second.attention.read(OTHER[5:12]))
    second.state.fill([21], 3 + 192)
    assert same(second.state.read([20]), second.state.read([21]))


def test_a_load_without_a_block_for_its_state_fails(make: Callable[..., Engine]) -> None:
    first, second = make(), make()
    first.compute(Request("a", TOKENS), BLOCKS_OF, [192, 200], seed=3)
    _, results = second.load(Request("b", TOKENS), OTHER, state=0)
    assert results
    assert results.failed == {"b"}


def test_a_step_that_ends_within_a_chunk_stores_no_state(make: Callable[..., Engine]) -> None:
    first, second = make(), make()
    first.compute(Request("a", TOKENS), BLOCKS_OF, [80, 176, 200], seed=3)
    assert second.found(TOKENS) == 0
    first.compute(Request("b", TOKENS), BLOCKS_OF, [128, 200], seed=3)
    assert second.found(TOKENS) == 128


def test_a_lost_state_fails_the_whole_load_and_is_a_miss_afterwards(make: Callable[..., Engine]) -> None:
    first, second = make(), make()
    first.compute(Request("a", TOKENS), BLOCKS_OF, [64, 192, 200], seed=3)
    request = Request("b", TOKENS)
    assert second.scheduler.matched_tokens(request, 0) == 192
    second.scheduler.allocated(request, second.groups.at_chunk_ends([OTHER[:12], [*[0] * 11, 20]]), 192)
    plan = second.scheduler.plan({}, lambda _: None)
    (load,) = plan.loads
    object.__setattr__(load, "keys", load.keys[:64] + bytes(32))
    results = second.run(plan)

    def ended() -> set[str]:
        results.add(second.run(StepPlan()))
        return results.received

    wait_for(ended, "the load ends")
    assert (results.received, results.failed, results.bad_blocks) == ({"b"}, {"b"}, set())
    assert second.found([*TOKENS[:192], 1]) == 0, "its chunks are misses for a while"


def invalidate_first_chunk(plane: Plane) -> None:
    with plane.manager() as manager:
        manager.ask(
            Invalidate(
                "n",
                Scope(keys=RequestKeys(Request("", TOKENS), CHUNK_TOKENS).extend(Request("", TOKENS), CHUNK_TOKENS)[0]),
            )
        )


def test_an_invalidated_prefix_takes_the_states_behind_it_along(make: Callable[..., Engine], plane: Plane) -> None:
    """The state at 192 names the chunk before it, which has no state, so it may be behind the prefix."""
    first, second = make(), make()
    first.compute(Request("a", TOKENS), BLOCKS_OF, [64, 192, 200], seed=3)
    invalidate_first_chunk(plane)
    first.compute(Request("b", TOKENS), BLOCKS_OF, [64, 128, 200], seed=4)
    assert second.found([*TOKENS[:192], 1]) == 128


def test_states_are_hits_again_after_a_kill_of_the_data_plane(make: Callable[..., Engine], plane: Plane) -> None:
    first, second = make(), make()
    first.compute(Request("a", TOKENS), BLOCKS_OF, [64, 192, 200], seed=3)
    plane.kill()
    plane.start()
    wait_for(lambda: second.found(TOKENS) == 192, "the engine has attached again and finds the state")


def test_a_state_that_a_tier_alone_holds_is_loaded_and_stays_behind_its_prefix(
    make_plane: Callable[..., Plane], tmp_path: Path
) -> None:
    plane = make_plane(
        dataplane__disk_tier_directories=str(tmp_path / "tier"), dataplane__disk_tier_bytes="256MiB"
    ).start()
    first = Engine(plane)
    first.compute(Request("a", TOKENS), BLOCKS_OF, [64, 192, 200], seed=3)
    wait_for(lambda: plane.describe().tiers[0].blocks == CHUNKS + 2, "attention and both states are on disk")
    first.close()
    assert plane.stop() == 0
    plane.start()
    second = Engine(plane, tier_timeout_s=60.0)
    request = Request("b", TOKENS)
    assert wait_for(lambda: second.scheduler.matched_tokens(request, 0), "they are in memory") == 192
    tokens, results = second.load(request, OTHER, state=20)
    assert (tokens, results and results.failed) == (192, set())
    second.state.fill([21], 3 + 192)
    assert same(second.state.read([20]), second.state.read([21]))
    assert plane.describe().tiers[0].loaded_blocks == CHUNKS + 1, "the other state is not needed"
    invalidate_first_chunk(plane)
    second.compute(Request("c", TOKENS), BLOCKS_OF, [64, 128, 200], seed=4)
    assert second.found([*TOKENS[:192], 1]) == 128
    second.close()


# ---- blocks as vLLM numbers them


HYBRID = config(("FullAttentionSpec", 16), ("MambaSpec", 16), ("SlidingWindowSpec", 64))
"""A window of larger blocks makes chunks of several blocks of the others."""


def test_a_load_has_the_state_at_its_end() -> None:
    groups = StateGroups(HYBRID)
    assert groups
    assert groups.block_tokens == 64
    blocks = [[1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 0, 0, 0, 0, 9], [3, 4]]
    assert groups.at_chunk_ends(blocks) == [blocks[0], [0, 9], [3, 4]]


@pytest.mark.parametrize(
    ("end", "offers", "states"),
    [
        (128, [], [0, 9]),
        (128, [(1, 9, 128)], [0, 9]),
        (112, [], [0, 0]),
        (143, [], [0, 0]),
        (143, [(1, 9, 128), (1, 6, 112)], [0, 9]),
        (144, [(1, 5, 64)], [5, 0]),
        (None, [(1, 5, 64)], [5, 0]),
    ],
)
def test_a_step_leaves_the_states_at_its_end_and_those_that_vllm_hands_over(
    end: int | None, offers: list[tuple[int, int, int]], states: list[int]
) -> None:
    blocks = [[1, 2, 3, 4, 5, 6, 7, 8, 10], [0, 0, 0, 5, 0, 0, 0, 9, 6], [3, 4, 5]]
    assert StateGroups(HYBRID).left_by(blocks, end, offers) == [blocks[0], states, blocks[2]]


def test_models_without_states_choose_their_chunks() -> None:
    assert not StateGroups(config(("FullAttentionSpec", 16), ("SlidingWindowSpec", 64)))
    assert StateGroups(config(("MambaSpec", 528), ("FullAttentionSpec", 528))).block_tokens == 528


def test_a_step_ends_where_its_tokens_end() -> None:
    output = SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(req_id="new", num_computed_tokens=128)],
        scheduled_cached_reqs=SimpleNamespace(req_ids=["old", "paused"], num_computed_tokens=[64, 32]),
        num_scheduled_tokens={"new": 64, "old": 1, "unknown": 128},
    )
    assert ends_of(output) == {"new": 192, "old": 65}
