"""Sessions and tiers: what a session has in them, and what a prefetch loads."""

from __future__ import annotations

import pytest
from msgspec import structs

from dataplane.core.tiering import sessions
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.control.sessions import ActOnSession, ListSessions, SessionActed, SessionAction, SessionState
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST
from dataplane.protocol.tiers import MEMORY
from tests.core.tiering.tier_bench import PAGE, TierBench, tier, tier_bench
from tests.dataplane import factories as make


def act(
    run: TierBench, action: SessionAction, session: str = "s", seconds: float = 60.0, salt: str = ""
) -> SessionActed:
    seconds = 0.0 if action == "release" else seconds
    return run.bench.node.act_on_session(ActOnSession("n", action, salt, session, seconds), run.now)


def state_of(run: TierBench, session: str = "s") -> SessionState:
    (state,) = run.bench.node.list_sessions(ListSessions("n", None, session), run.now).sessions
    return state


def in_tier(blocks: int) -> tuple[TierBench, list[bytes]]:
    """A chain of the session `s`, which a tier holds, and memory does not."""
    run = tier_bench(64, tier())
    chain = make.keys(blocks)
    run.engine.store(chain, PAGE, session="s")
    run.settle()
    run.evict_all()
    return run, chain


def test_a_prefetch_loads_what_only_a_tier_holds() -> None:
    run = tier_bench(64, tier())
    chain = make.keys(12)
    run.engine.store(chain, PAGE, session="s")
    run.settle()
    assert state_of(run).bytes == {"memory": 12 * PAGE, "disk": 12 * PAGE}
    run.evict_all()
    assert (state_of(run).bytes, state_of(run).chunks) == ({"disk": 12 * PAGE}, 12)
    assert act(run, "prefetch") == SessionActed("n", True, 12, 12 * PAGE)
    run.settle()
    assert run.engine.lookup(chain) == 12
    assert act(run, "prefetch") == SessionActed("n", True)
    assert run.bench.node.pool.totals.prefetched_session_blocks == 12


def test_loaded_blocks_belong_to_the_session_that_names_them_first() -> None:
    run, chain = in_tier(12)
    act(run, "prefetch")
    run.settle()
    run.engine.store(chain[:8], PAGE, session="s")
    assert act(run, "release").blocks == 8
    run.engine.store(chain[:4], PAGE, session="other")
    assert (act(run, "release").blocks, act(run, "release", "other").blocks) == (4, 0)


def test_blocks_of_all_spaces_of_a_model_are_loaded() -> None:
    spaces = [make.space(block_bytes=PAGE, world_size=2, rank=rank) for rank in range(2)]
    run = tier_bench(1024, tier(), spaces=spaces)
    chain = make.keys(6)
    for space in range(2):
        run.engine.store(chain, PAGE, space=space, session="s")
    run.settle()
    run.evict_all()
    assert state_of(run).bytes == {"disk": 12 * PAGE}
    assert act(run, "prefetch").blocks == 12
    run.settle()
    assert [run.engine.lookup(chain, space) for space in range(2)] == [6, 6]


def test_of_states_beside_attention_the_last_one_is_loaded() -> None:
    spaces = [make.space(block_bytes=PAGE), structs.replace(make.space(block_bytes=PAGE), kv_group=1, tail_blocks=1)]
    run = tier_bench(1024, tier(), spaces=spaces)
    chain = make.keys(12)
    run.engine.store(chain, PAGE, session="s")
    for at in (3, 9):
        run.engine.store([chain[at]], PAGE, parent=chain[at - 1], space=1, session="s")
    run.settle()
    run.evict_all()
    assert act(run, "prefetch").blocks == 13
    run.settle()
    assert run.engine.lookup(chain) == 12
    assert [run.engine.lookup([chain[at]], 1) for at in (3, 9)] == [0, 1]


def test_of_states_those_of_the_longest_usable_prefix_are_loaded() -> None:
    """A load needs two successive states of the tenant."""
    spaces = [make.space(block_bytes=PAGE), structs.replace(make.space(block_bytes=PAGE), kv_group=1, tail_blocks=2)]
    run = tier_bench(1024, tier(), spaces=spaces)
    chain = make.keys(12)
    run.engine.store(chain, PAGE, session="s")
    for at in (2, 3, 6, 8, 9, 11):
        tenant = "rival" if at == 9 else ""
        run.engine.store([chain[at]], PAGE, parent=chain[at - 1], tenant=tenant, space=1)
    run.settle()
    run.evict_all()
    assert act(run, "prefetch").blocks == 14
    run.settle()
    assert run.engine.lookup(chain) == 12
    assert [at for at, loaded in enumerate(run.engine.has(chain, 1)) if loaded] == [2, 3]


def test_a_move_to_memory_loads_states_behind_gaps() -> None:
    run = tier_bench(1024, tier(), spaces=[structs.replace(make.space(block_bytes=PAGE), tail_blocks=1)])
    chain = make.keys(12)
    for at in (3, 9):
        run.engine.store([chain[at]], PAGE, parent=chain[at - 1])
    run.settle()
    run.evict_all()
    assert (run.move(MEMORY).moved_blocks, run.move(MEMORY).refused) == (2, {})


def test_a_session_whose_engines_and_blocks_left_memory_is_loaded() -> None:
    run = tier_bench(64, tier())
    chain = make.keys(6)
    run.engine.store(chain, PAGE, session="s")
    run.pass_time(0.1)
    run.evict_all()
    run.engine.detach_cleanly()
    run.pass_time(1, 3)
    assert act(run, "prefetch").blocks == 6
    run.settle()
    assert len(run.bench.node.pool.table.blocks) == 6


def test_a_chain_ends_with_the_last_block_that_a_tier_holds() -> None:
    """Only blocks that were used are copied to the tier: those of the last turn are lost."""
    run = tier_bench(64, tier(spill="second_touch"))
    chain = make.keys(12)
    run.engine.store(chain[:8], PAGE, session="s")
    run.engine.acquire(chain[:8])
    run.engine.release()
    run.engine.store(chain[8:], PAGE, parent=chain[7], session="s")
    run.settle()
    run.evict_all()
    assert state_of(run).chunks == 8
    assert act(run, "prefetch").blocks == 8
    run.settle()
    assert run.engine.lookup(chain) == 8


def test_what_no_tier_holds_is_not_loaded() -> None:
    run = tier_bench(64, tier(spill="off"))
    run.engine.store(make.keys(6), PAGE, session="s")
    run.evict_all()
    assert act(run, "prefetch") == SessionActed("n", True)
    assert (state_of(run).bytes, run.loads) == ({}, [])
    assert act(run, "prefetch", "other") == SessionActed("n", False)
    assert act(run, "prefetch", salt="tenant") == SessionActed("n", False)


def test_invalidated_blocks_are_not_loaded() -> None:
    run, chain = in_tier(6)
    run.invalidate(Scope(keys=make.packed(chain[3:4])))
    assert act(run, "prefetch").blocks == 0, "the rest of the chain is not known any more"


def test_a_prefetch_loads_at_most_a_part_of_the_pool() -> None:
    run = tier_bench(16, tier())
    chain = make.keys(12)
    for first in range(0, 12, 4):
        run.engine.store(chain[first : first + 4], PAGE, parent=chain[first - 1] if first else b"", session="s")
        run.settle()
    run.evict_all()
    most = int(16 * sessions.MAX_LOADED_RATIO)
    assert act(run, "prefetch").blocks == most
    run.settle()
    assert run.engine.lookup(chain) == most


def test_a_prefetch_without_a_place_is_refused() -> None:
    run, _ = in_tier(6)
    others = make.keys(600, "others")
    loads = run.tiering.loads
    space = run.engine.spaces[0]
    while loads._queue.has_room(loads.client):
        loads.request(loads.client, space, make.packed(others), run.now + 60)
    assert act(run, "prefetch") == SessionActed("n", True, refused_blocks=6)


def test_a_prefetch_ends_with_its_time() -> None:
    run, chain = in_tier(6)
    assert act(run, "prefetch", seconds=1.0).blocks == 6
    run.bench.pass_time(2)
    run.settle()
    assert run.engine.lookup(chain) == 0


def test_a_prefetch_ends_a_release() -> None:
    run = tier_bench(64, tier())
    chain = make.keys(6)
    run.engine.store(chain, PAGE, session="s")
    run.settle()
    act(run, "release")
    act(run, "prefetch")
    assert not state_of(run).released
    run.engine.store(make.keys(60, "more"), PAGE)
    assert run.engine.lookup(chain) == 4, "its last blocks went, as those that were used least recently"


def test_a_long_chain_is_loaded_in_parts() -> None:
    positions = [*range(3, 3 + 2 * MAX_KEYS_PER_REQUEST, 2)]
    parts = list(sessions._parts(positions))
    assert [at for part in parts for at in part] == positions
    assert all(part[-1] - max(0, part[0] - 1) < MAX_KEYS_PER_REQUEST for part in parts)


def test_a_page_looks_at_a_bounded_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LOOKED_AT", 10)
    run = tier_bench(64, tier())
    for name in ("a", "b", "c"):
        run.engine.store(make.keys(10, name), PAGE, session=name)
    after, listed = 0, list[list[str]]()
    while after or not listed:
        page = run.bench.node.list_sessions(ListSessions("n", after=after, limit=3), run.now)
        listed.append([state.session for state in page.sessions])
        after = page.next
    assert listed == [["a"], ["b"], ["c"]]


def test_a_node_without_sessions_knows_none_of_a_name() -> None:
    run = tier_bench(8, tier())
    assert run.bench.node.list_sessions(ListSessions("n", session="s"), run.now).sessions == []
