"""Calls between tiers that do not return: the moves of other tiers go on, and the move says what happened."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.tiers import TierSpec
from dataplane.tiering import mover
from dataplane.tiering.worker import HANG_S
from tests.dataplane import factories as make
from tests.dataplane.tiering.faulty_tier import FaultyTier
from tests.dataplane.tiering.mover_bench import MoverBench


class MovesBench(MoverBench):
    """A node with three tiers: `t`, which has blocks of two tenants, and the empty ones `hangs` and `good`."""

    def __init__(self) -> None:
        super().__init__()
        self.tiers = {"t": self.tier, "hangs": FaultyTier(), "good": FaultyTier()}
        self.runs = {"t": self.run}
        for number, name in enumerate(("hangs", "good"), 1):
            spec = TierSpec(name=name, type="faulty", budget_bytes=1 << 30, spill="off", order=number)
            state = TierState(number, spec, self.tier.stored_size)
            self.tiering.add_tier(state)
            self.runs[name] = self.mover.add(state, self.tiers[name])
            self.mover.opened(self.runs[name])
        for tenant in ("acme", "other"):
            self.store(make.keys(8, tenant), tenant)
        self.until(lambda: len(self.tier.stored) == 16 and not self.state.spilling_bytes)

    def move(self, tenant: str, to: str, source: str = "t") -> MoveState:
        message = Move("n", Scope(tenant=tenant), to, release=True, source=source)
        return self.node.operator.moves().start(message, time.time())

    def give_up(self) -> None:
        """Let the time of the transfer that hangs pass."""
        assert self.tiering.table.crossing
        for job in self.tiering.table.crossing.values():
            job.give_up_at = time.monotonic()
        self.mover.step()

    def close(self) -> None:
        for tier in self.tiers.values():
            tier.fault = ""
            tier.go_on.set()
        super().close()


@pytest.fixture
def run() -> Iterator[MovesBench]:
    bench = MovesBench()
    yield bench
    bench.close()


def test_a_target_that_hangs_fails_its_move_and_the_copy_counts_if_it_ends_later(run: MovesBench) -> None:
    hanging, target = run.tiers["hangs"], run.runs["hangs"]
    hanging.fault = "hang"
    stuck = run.move("acme", "hangs")
    run.until(lambda: hanging.hanging)
    other = run.move("other", "good")
    run.until(lambda: other.ended_at)
    run.give_up()
    assert (other.moved_blocks, other.released_blocks, other.refused) == (8, 8, {})
    run.until(lambda: stuck.ended_at)
    assert (stuck.moved_blocks, stuck.released_blocks, stuck.refused) == (0, 0, {"hung": 8})
    run.until(lambda: {block.tenant for block, _ in run.tier.stored.values()} == {"acme"})
    assert len(run.tier.stored) == 8, "nothing is lost"
    hanging.fault = ""
    hanging.go_on.set()
    run.until(lambda: not target.state.spilling_bytes)
    assert len(target.state.contents) == len(hanging.stored) == 8


def test_a_source_that_hangs_frees_the_room_in_the_target_at_once(run: MovesBench) -> None:
    ready = run.move("other", "good")
    run.until(lambda: ready.ended_at and len(run.tier.stored) == 8)
    run.tier.fault = "hang"
    stuck = run.move("acme", "hangs")
    run.until(lambda: run.tier.hanging)
    assert run.runs["hangs"].state.spilling_bytes
    other = run.move("other", "hangs", source="good")
    run.give_up()
    run.until(lambda: other.ended_at and stuck.ended_at)
    assert (other.moved_blocks, other.refused) == (8, {})
    assert (stuck.moved_blocks, stuck.refused) == (0, {"hung": 8})
    run.tier.fault = ""
    run.tier.go_on.set()
    run.until(lambda: not run.run.worker.hangs_s())
    assert len(run.tiers["hangs"].stored) == 8, "what was loaded too late is not stored"


def test_a_tier_is_not_in_service_while_a_call_hangs(run: MovesBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its probes succeed, because they run on another thread."""
    hanging, target = run.tiers["hangs"], run.runs["hangs"]
    hanging.fault = "hang"
    run.move("acme", "hangs")
    run.until(lambda: hanging.hanging)
    hanging.fault = ""
    probes: list[str] = []
    probed = target.breaker.probed

    def noted(why: str, now: float) -> None:
        probes.append(why)
        probed(why, now)

    monkeypatch.setattr(target.breaker, "probed", noted)
    monkeypatch.setattr(mover, "CALL_S", -HANG_S)  # calls count as hanging at once
    run.until(lambda: not target.serves)
    run.until(lambda: len(probes) >= 2)
    assert not target.serves
    assert "a call has not returned" in target.breaker.reason
    hanging.go_on.set()
    run.until(lambda: target.serves)


def test_a_target_that_is_removed_while_its_blocks_are_loaded_ends_the_copy(run: MovesBench) -> None:
    run.tier.fault = "hang"
    stuck = run.move("acme", "good")
    run.until(lambda: run.tier.hanging)
    target, closed = run.runs["good"], []
    run.tiering.remove_tier(target.state)
    run.mover.remove(target, lambda: closed.append(True))
    run.until(lambda: closed)
    run.mover.step()
    run.tier.fault = ""
    run.tier.go_on.set()
    run.until(lambda: stuck.ended_at and not run.tiering.table.crossing)
    assert (stuck.moved_blocks, stuck.released_blocks) == (0, 0)
    assert len(run.tier.stored) == 16, "nothing is lost"
