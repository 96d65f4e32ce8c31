"""Spaces that are forgotten while moves and loads of their blocks wait, and tables that do not grow with them."""

from __future__ import annotations

import pytest

from dataplane.core.tiering import loads
from dataplane.protocol.control.moves import MoveState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.spaces import Space
from dataplane.protocol.tiers import MEMORY
from tests.core.tiering.tier_bench import PAGE, Spaces, TierBench, tier, tier_bench
from tests.dataplane import factories as make
from tests.dataplane.bench_node import BenchEngine

CHAIN = make.keys(6, "chain")
OTHER = make.space("other-model", block_bytes=PAGE)
FORGET_S = 0.6
"""Seconds after which the node has forgotten spaces without engines and blocks."""


def waiting_move() -> tuple[TierBench, MoveState, BenchEngine]:
    """A tier that holds a chain, a move that waits to load it, and an engine of its space."""
    run = tier_bench(64, tier())
    run.hold(CHAIN, space=OTHER)
    engine = run.bench.attach(OTHER, pid=200)
    run.bench.pass_time(0.1)
    run.ask(make.keys(1, "unknown"))  # the move waits for the request of an engine
    state = run.begin_move(MEMORY, Scope(model="other-model"))
    run.bench.pass_time(0.05, times=4)
    return run, state, engine


def mover_spaces(run: TierBench) -> list[int]:
    return list(run.tiering.loads._engine.spaces)


def test_a_move_goes_on_after_its_space_was_forgotten_and_attached_again() -> None:
    run, state, engine = waiting_move()
    engine.detach_cleanly()
    run.bench.pass_time(FORGET_S)
    assert not run.spaces("other-model")
    engine = run.bench.attach(OTHER, pid=200)
    run.pass_time(0.1, times=20)
    assert (state.moved_blocks, state.refused) == (6, {})
    assert engine.lookup(CHAIN) == 6


def test_a_move_attaches_a_space_that_was_forgotten_meanwhile() -> None:
    run, state, engine = waiting_move()
    engine.detach_cleanly()
    run.bench.pass_time(FORGET_S)
    run.pass_time(0.1, times=20)
    assert (state.moved_blocks, state.refused) == (6, {})


def test_a_move_refuses_blocks_of_a_space_that_cannot_be_attached_again() -> None:
    run, state, engine = waiting_move()
    engine.detach_cleanly()
    del run.catalog.known_spaces.spaces[bytes.fromhex(OTHER.identity())]  # type: ignore[attr-defined]
    run.bench.pass_time(FORGET_S)
    run.pass_time(0.1, times=20)
    assert (state.moved_blocks, state.refused) == (0, {"detached": 6})
    assert state.ended_at is not None


@pytest.mark.parametrize("shared", [False, True])
def test_a_request_whose_space_is_forgotten_while_it_waits_ends(shared: bool) -> None:
    """The engine that asks has no part in the space, like a scheduler of LMCache."""
    run = tier_bench(64, tier(max_bytes_in_flight=1 << 20))
    disk = run.tiering.tiers[0]
    disk.shared = shared
    if not shared:
        run.hold(CHAIN, space=OTHER)
        disk.loading_bytes = 1 << 20  # other loads fill the tier: the request is BUSY
    engine = run.bench.attach(OTHER, pid=200)
    run.bench.pass_time(0.1)
    request = run.tiering.loads.request(run.engine.client, engine.spaces[0], make.packed(CHAIN), run.now + 5)
    assert request is not None
    run.begin()
    assert len(run.tiering.loads) == 1
    engine.detach_cleanly()
    run.bench.pass_time(FORGET_S)
    disk.loading_bytes = 0
    run.tiering.step(run.now)
    run.settle()
    assert (len(run.tiering.loads), run.loads) == (0, [])


def test_the_mover_keeps_no_space_that_it_has_loaded_into() -> None:
    run = tier_bench(64, tier())
    run.hold(CHAIN, space=OTHER)
    engine = run.bench.attach(OTHER, pid=200)
    run.tiering.loads.request(engine.client, engine.spaces[0], make.packed(CHAIN), run.now + 5)
    run.begin()
    run.bench.pass_time(0.1)
    assert mover_spaces(run) == engine.spaces, "the load is under way"
    run.end_loads()
    engine.detach_cleanly()
    run.evict_all()
    run.pass_time(FORGET_S, times=2)
    assert mover_spaces(run) == []
    run.bench.attach(make.space("other-model", block_bytes=2 * PAGE), pid=200)


def test_the_mover_keeps_a_space_as_long_as_a_thread_may_write_to_its_memory() -> None:
    run = tier_bench(64, tier())
    run.hold(CHAIN, space=OTHER)
    engine = run.bench.attach(OTHER, pid=200)
    run.tiering.loads.request(engine.client, engine.spaces[0], make.packed(CHAIN), run.now + 5)
    run.begin()
    engine.detach_cleanly()
    run.bench.pass_time(1000.0)
    assert run.tiering.loads._engine.expired
    assert mover_spaces(run) == engine.spaces
    run.end_loads()
    run.pass_time(FORGET_S, times=2)
    assert (mover_spaces(run), run.spaces("other-model")) == ([], [])


def test_a_move_holds_a_space_while_its_request_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loads, "MAX_JOBS", 0)
    run = tier_bench(64, tier())
    run.hold(CHAIN, space=OTHER)
    run.catalog.know_space(bytes.fromhex(OTHER.identity()), OTHER)
    state = run.begin_move(MEMORY, Scope(model="other-model"))
    run.pass_time(FORGET_S, times=4)
    assert mover_spaces(run) == run.spaces("other-model") != []
    monkeypatch.undo()
    run.pass_time(0.1, times=5)
    assert state.moved_blocks == 6


def test_numbers_of_spaces_that_the_pool_has_forgotten_are_dropped() -> None:
    run = tier_bench(64, tier())
    for number in range(20):
        engine = run.bench.attach(make.space(f"model-{number}", block_bytes=PAGE), pid=200)
        run.bench.pass_time(0.1)
        assert run.catalog.identity(engine.spaces[0]) is not None
        engine.detach_cleanly()
        run.bench.pass_time(FORGET_S)
        assert run.catalog.identity(engine.spaces[0]) is None
    assert list(run.catalog.space_numbers().values()) == run.engine.spaces
    assert len(run.catalog._identities) == 1


class NewestSpace(Spaces):
    """Records of the space that was attached last."""

    def add(self, identity: bytes, space: Space) -> None:
        self.spaces, self.models = {identity: space}, {identity: space.model}


def test_models_are_known_as_long_as_a_tier_holds_blocks_of_their_spaces() -> None:
    run = tier_bench(64, tier(), known=NewestSpace())
    run.hold(CHAIN, space=OTHER)
    for space in (OTHER, *(make.space(f"model-{number}", block_bytes=PAGE) for number in range(20))):
        engine = run.bench.attach(space, pid=200)
        run.bench.pass_time(0.1)
        engine.detach_cleanly()
        run.bench.pass_time(FORGET_S)
    assert len(run.catalog._models) == len(run.catalog.spaces_of_model) <= 4
    assert "other-model" in run.catalog.spaces_of_model
    disk = run.tiering.tiers[0]
    for entry in list(disk.contents.entries.values()):
        run.catalog.release(disk, entry)
    run.settle()
    for number in range(4):
        run.bench.attach(make.space(f"later-{number}", block_bytes=PAGE), pid=200 + number)
        run.bench.pass_time(0.1)
    assert "other-model" not in run.catalog.spaces_of_model
