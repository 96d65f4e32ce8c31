"""The mover beside a tier that fails in every way: memory is served, and the tier is used again when it is back."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from dataplane.core.tiering.jobs import JobState
from dataplane.core.tiering.tier_state import TierState
from dataplane.io import peers
from dataplane.io.peers import open_process
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.events import TierLost, TierRecovered
from dataplane.protocol.layout import pack_keys
from dataplane.protocol.stored_blocks import BlockName, Outcome
from dataplane.protocol.tiers import TierSpec
from dataplane.tiering import tier_run
from dataplane.tiering.service import TierService
from dataplane.tiering.worker import HANG_S
from dataplane.tiers.tier import TierError
from tests.dataplane import factories as make
from tests.dataplane.tiering.faulty_tier import FaultyTier
from tests.dataplane.tiering.mover_bench import NBYTES, POOL_BLOCKS, LoopBench, MoverBench


@pytest.fixture
def run() -> Iterator[MoverBench]:
    bench = MoverBench()
    yield bench
    bench.close()


def test_blocks_go_to_the_tier_and_come_back_with_their_bytes(run: MoverBench) -> None:
    chain = make.keys(16, "chain")
    run.store(chain)
    run.until(lambda: run.listed(chain) == 16)
    run.evict_all()
    assert run.ready(chain) == 0
    run.ask(chain)
    run.until(lambda: run.ready(chain) == 16)
    assert [run.content(key) for key in chain] == chain
    assert run.node.check() == []
    durations = run.run.rates.histogram()
    assert sum(durations.counts) >= 1
    assert durations.total > 0


@pytest.mark.parametrize("fault", ["error", "crash", "failed"])
def test_a_tier_that_fails_is_taken_out_of_service_and_is_back_after_a_probe(run: MoverBench, fault: str) -> None:
    chain = make.keys(16, "chain")
    run.store(chain)
    run.until(lambda: run.listed(chain) == 16)
    run.tier.fault = fault
    for number in range(4):
        assert run.store(make.keys(16, number)) == 16, "memory is served"
        run.until(lambda: not run.waits())  # a call for each
    run.until(lambda: not run.state.serves)
    run.mover.step()
    assert len(run.directory.leading(pack_keys(chain), run.word).tiers) == 0, "engines do not wait for it"
    assert run.run.stats().reason
    run.tier.fault = ""
    run.until(lambda: run.state.serves)
    lost, recovered = run.events
    assert isinstance(lost, TierLost)
    assert isinstance(recovered, TierRecovered)
    assert (lost.tier, bool(lost.reason), recovered.tier) == ("t", True, "t")
    run.evict_all()
    run.ask(chain)
    run.until(lambda: run.ready(chain) == 16)


def test_a_tier_that_fails_while_its_contents_are_read_is_lost_before_it_is_recovered(run: MoverBench) -> None:
    run.run.opened = run.state.serves = False  # as before its contents are known
    run.run.judge(TierError("a call hangs"), ())
    assert run.events == []
    run.mover.opened(run.run)
    (lost,) = run.events
    assert isinstance(lost, TierLost)
    assert (lost.tier, lost.reason) == ("t", "a call hangs")
    run.until(lambda: run.state.serves)
    assert isinstance(run.events[1], TierRecovered)
    assert len(run.events) == 2


def test_a_tier_that_hangs_delays_nothing_and_its_memory_is_safe(run: MoverBench) -> None:
    chain = make.keys(8, "chain")
    run.store(chain)
    run.until(lambda: run.listed(chain) == 8)
    run.evict_all()
    run.until(lambda: not run.waits())
    run.tier.fault = "hang"
    run.ask(chain)
    run.until(lambda: run.tier.hanging)
    reserved = run.node.pool.reserved_bytes
    assert reserved == 8 * NBYTES
    for number in range(POOL_BLOCKS // 8):
        assert run.store(make.keys(8, ("during", number))) == 8, "stores go on"
    assert run.node.pool.reserved_bytes == reserved, "no other block gets the memory that is loaded into"
    run.tier.fault = ""
    run.tier.go_on.set()
    run.until(lambda: run.ready(chain) == 8)


def test_blocks_invalidated_during_an_outage_of_the_tier_are_deleted_after_it(run: MoverBench) -> None:
    chain = make.keys(8, "chain")
    run.store(chain, "acme")
    run.until(lambda: run.listed(chain) == 8)
    run.tier.fault = "error"
    run.node.invalidate(Scope(tenant="acme"), time.time())
    run.until(lambda: not run.state.serves)
    assert len(run.tombstones) == 1
    assert len(run.tier.stored) == 8
    run.tier.fault = ""
    run.until(lambda: not run.tier.stored)
    run.until(lambda: not run.tombstones)


def test_the_mover_answers_in_place_of_a_tier_out_of_service(run: MoverBench) -> None:
    """Its steps come every 0.1 s, those of the node perhaps every 10 s."""
    existence = run.tiering.catalog.existence
    name = BlockName(b"space", make.key("block"))
    run.state.shared = True
    existence.query([name], 1)
    run.state.serves = False
    assert existence.is_queried(name)
    run.mover.step()
    assert not existence.is_queried(name)


def test_a_stop_waits_a_bounded_time_for_a_tier_that_hangs() -> None:
    bench = MoverBench()
    bench.store(make.keys(8, "chain"))
    bench.tier.fault = "hang"
    bench.until(lambda: bench.tier.hanging)
    assert not bench.mover.close(), "its threads are left"
    bench.tier.go_on.set()
    for thread in threading.enumerate():
        if thread.name.startswith("larder-tier-t"):
            thread.join(60)
    assert not bench.tier.closed
    bench.loop.close()
    bench.memory.close()


def test_loads_that_no_request_needs_any_more_free_their_room(run: MoverBench) -> None:
    chains = [make.keys(4, name) for name in ("a", "b", "c", "d")]
    for chain in chains:
        run.store(chain)
    run.until(lambda: all(run.listed(chain) == 4 for chain in chains))
    run.evict_all()
    run.until(lambda: not run.waits())
    run.tier.fault = "hang"
    requests = [run.ask(chain) for chain in chains]
    joined = run.ask(chains[3])
    run.mover.step()
    run.until(lambda: run.tier.hanging == 2)
    assert run.state.loading_bytes == 16 * NBYTES
    for request in requests:
        assert request is not None
        run.tiering.loads.cancel(request)
    run.until(lambda: run.state.loading_bytes == 12 * NBYTES, "two calls have begun, and one request is left")
    assert len(run.node.engines[run.tiering.loads.client].reservations) == 3
    run.node.detach_cleanly(run.client, time.time())
    run.until(lambda: run.state.loading_bytes == 8 * NBYTES)
    assert joined is not None
    assert not run.tiering.loads.under_way(joined)
    run.tier.fault = ""
    run.tier.go_on.set()
    run.until(lambda: not run.state.loading_bytes)
    assert run.state.counters.loaded_blocks == 8


# ---- deletions that fail


class Deletions:
    """Calls of `delete` of a tier that cannot delete the blocks of some keys."""

    def __init__(self, tier: FaultyTier, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keys: set[bytes] = set()
        self.calls = 0
        self._delete = tier.delete
        monkeypatch.setattr(tier, "delete", self._call)

    def _call(self, names: Sequence[BlockName], deadline: float) -> list[Outcome]:
        self.calls += 1
        return [Outcome.FAILED if name.key in self.keys else self._delete([name], deadline)[0] for name in names]


def test_a_block_that_cannot_be_deleted_keeps_its_tombstone_and_the_tier_in_service(
    run: MoverBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    deletions = Deletions(run.tier, monkeypatch)
    monkeypatch.setattr(tier_run, "DELETE_AGAIN_S", 0.0)
    chain = make.keys(4, "chain")
    run.store(chain, "acme")
    run.until(lambda: run.listed(chain) == 4)
    deletions.keys = {chain[0]}
    run.node.invalidate(Scope(tenant="acme"), 1e12)
    run.until(lambda: deletions.calls > 10)
    assert run.state.serves
    assert {name.key for name in run.tier.stored} == {chain[0]}
    assert len(run.tombstones) == 1
    deletions.keys = set()
    run.until(lambda: not run.tombstones)
    assert not run.tier.stored


def test_a_call_that_deletes_nothing_is_followed_by_a_pause(run: MoverBench, monkeypatch: pytest.MonkeyPatch) -> None:
    deletions = Deletions(run.tier, monkeypatch)
    monkeypatch.setattr(tier_run, "DELETE_AGAIN_S", 3600.0)
    chain = make.keys(1, "chain")
    run.store(chain, "acme")
    run.until(lambda: run.listed(chain) == 1)
    deletions.keys = set(chain)
    run.node.invalidate(Scope(tenant="acme"), 1e12)
    run.until(lambda: deletions.calls == 1 and not run.run.deleting)
    for _ in range(20):
        run.mover.step()
    assert (deletions.calls, run.run.deleting, len(run.state.deletions)) == (1, False, 1)


# ---- calls between tiers that do not return


class MovesBench(MoverBench):
    """A node with three tiers: `t`, which has blocks of two tenants, and the empty ones `hangs` and `good`."""

    def __init__(self) -> None:
        super().__init__()
        self.tiers = {"t": self.tier, "hangs": FaultyTier(), "good": FaultyTier()}
        self.runs = {"t": self.run}
        for number, name in enumerate(("hangs", "good"), 1):
            spec = TierSpec(name=name, type="faulty", budget_bytes=1 << 30, spill="off", order=number)
            state = TierState(number, spec, self.tier.stored_size)
            self.runs[name] = self.mover.add(state, self.tiers[name], lambda: None)
            self.mover.opened(self.runs[name])
        for tenant in ("acme", "other"):
            self.store(make.keys(8, tenant), tenant)
        self.until(lambda: len(self.tier.stored) == 16 and not self.state.spilling_bytes)

    def move(self, tenant: str, to: str, source: str = "t") -> MoveState:
        message = Move("n", Scope(tenant=tenant), to, release=True, source=source)
        return self.node.moves().start(message, time.time())

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
def moves() -> Iterator[MovesBench]:
    bench = MovesBench()
    yield bench
    bench.close()


def test_a_target_that_hangs_fails_its_move_and_the_copy_counts_if_it_ends_later(moves: MovesBench) -> None:
    hanging, target = moves.tiers["hangs"], moves.runs["hangs"]
    hanging.fault = "hang"
    stuck = moves.move("acme", "hangs")
    moves.until(lambda: hanging.hanging)
    other = moves.move("other", "good")
    moves.until(lambda: other.ended_at)
    moves.give_up()
    assert (other.moved_blocks, other.released_blocks, other.refused) == (8, 8, {})
    moves.until(lambda: stuck.ended_at)
    assert (stuck.moved_blocks, stuck.released_blocks, stuck.refused) == (0, 0, {"hung": 8})
    moves.until(lambda: {block.tenant for block, _ in moves.tier.stored.values()} == {"acme"})
    assert len(moves.tier.stored) == 8, "nothing is lost"
    hanging.fault = ""
    hanging.go_on.set()
    moves.until(lambda: not target.state.spilling_bytes)
    assert len(target.state.contents) == len(hanging.stored) == 8


def test_a_source_that_hangs_frees_the_room_in_the_target_at_once(moves: MovesBench) -> None:
    ready = moves.move("other", "good")
    moves.until(lambda: ready.ended_at and len(moves.tier.stored) == 8)
    moves.tier.fault = "hang"
    stuck = moves.move("acme", "hangs")
    moves.until(lambda: moves.tier.hanging)
    assert moves.runs["hangs"].state.spilling_bytes
    other = moves.move("other", "hangs", source="good")
    moves.give_up()
    moves.until(lambda: other.ended_at and stuck.ended_at)
    assert (other.moved_blocks, other.refused) == (8, {})
    assert (stuck.moved_blocks, stuck.refused) == (0, {"hung": 8})
    moves.tier.fault = ""
    moves.tier.go_on.set()
    moves.until(lambda: not moves.run.worker.hangs_s())
    assert len(moves.tiers["hangs"].stored) == 8, "what was loaded too late is not stored"


def test_the_late_end_of_a_call_that_was_given_up_is_no_success(
    moves: MovesBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves.tier.fault = "hang"
    moves.move("acme", "hangs")
    moves.until(lambda: moves.tier.hanging)
    (job,) = moves.tiering.table.crossing.values()
    moves.give_up()
    successes: list[bool] = []
    monkeypatch.setattr(moves.run.breaker, "succeeded", lambda: successes.append(True))
    moves.tier.fault = ""
    moves.tier.go_on.set()
    moves.until(lambda: job.state is JobState.ENDED)
    assert not successes


def test_a_tier_is_not_in_service_while_a_call_hangs(moves: MovesBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its probes succeed, because they run on another thread."""
    hanging, target = moves.tiers["hangs"], moves.runs["hangs"]
    hanging.fault = "hang"
    moves.move("acme", "hangs")
    moves.until(lambda: hanging.hanging)
    hanging.fault = ""
    probes: list[str] = []
    probed = target.breaker.probed

    def noted(why: str, now: float) -> None:
        probes.append(why)
        probed(why, now)

    monkeypatch.setattr(target.breaker, "probed", noted)
    monkeypatch.setattr(tier_run, "CALL_S", -HANG_S)  # calls count as hanging at once
    moves.until(lambda: not target.serves)
    moves.until(lambda: len(probes) >= 2)
    assert not target.serves
    assert "a call has not returned" in target.breaker.reason
    hanging.go_on.set()
    moves.until(lambda: target.serves)


def test_a_target_that_is_removed_while_its_blocks_are_loaded_ends_the_copy(moves: MovesBench) -> None:
    moves.tier.fault = "hang"
    stuck = moves.move("acme", "good")
    moves.until(lambda: moves.tier.hanging)
    target, closed = moves.runs["good"], []
    moves.mover.remove(target, lambda: closed.append(True))
    moves.until(lambda: closed)
    moves.mover.step()
    moves.tier.fault = ""
    moves.tier.go_on.set()
    moves.until(lambda: stuck.ended_at and not moves.tiering.table.crossing)
    assert (stuck.moved_blocks, stuck.released_blocks) == (0, 0)
    assert len(moves.tier.stored) == 16, "nothing is lost"


# ---- its attachment


def test_a_later_process_with_the_same_pid_is_not_taken_for_the_mover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container, the next data plane often has the pid of the one that was killed."""
    bench = LoopBench(4 << 20)
    disk = TierSpec(name="disk", type="disk", budget_bytes=1 << 20, parameters={"path": str(tmp_path / "disk")})
    service = TierService(bench.loop, bench.node, bench.memory, time.time, tmp_path, "test", [disk], listed_blocks=4096)
    assert bench.node.tiering is not None
    mover = bench.node.engines[bench.node.tiering.loads.client]
    assert mover.pid == os.getpid()
    pidfd = open_process(mover.pid, mover.started)
    assert pidfd is not None, "this process is the mover's"
    os.close(pidfd)
    started = peers.started_at(os.getpid())
    monkeypatch.setattr(peers, "start_time", lambda pid: started + 1)
    assert open_process(mover.pid, mover.started) is None
    service.close(time.time())
    bench.close()
