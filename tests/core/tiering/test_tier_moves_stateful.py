"""Whatever moves, invalidations, quotas and slow tiers do at the same time: no block is lost, and no byte is counted
wrong.

Calls of tiers run on threads, so a call may take effect long before its end is reported, and in another order than the
calls began.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dataplane.core.tiering.jobs import JobReason, JobState, TierJob
from dataplane.core.tiering.tier_state import TierState
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.control.moves import Move, MoveState
from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.states import State
from dataplane.protocol.stored_blocks import BlockName, CopyEnd, Loaded, Outcome
from dataplane.protocol.tiers import Compress, Spill
from tests.core.tiering.tier_bench import HEADER, PAGE, quota, stored_of, stored_size, target_of, tier, tier_bench
from tests.dataplane import factories as make
from tests.sizes import size

TENANTS = ("a", "b")
CHAINS = {tenant: [make.keys(length, (tenant, length)) for length in (1, 3, 6)] for tenant in TENANTS}
LOCATIONS = ("disk", "s3", "memory")
SIZES: dict[Compress, int] = {"none": PAGE, "zstd": PAGE * 3 // 4, "fp8": PAGE // 2}
S3 = tier("s3", budget_blocks=12, spill="off", order=1)
DEADLINE_S = 20.0

tenants = st.sampled_from(TENANTS)
outcomes = st.sampled_from([Outcome.OK, Outcome.OK, Outcome.OK, Outcome.FAILED, Outcome.FULL])


@dataclass(eq=False)
class Call:
    """A call of a tier that has begun."""

    act: Callable[[], None]
    """Does what the call does in the tier."""
    report: Callable[[], None]
    hang: Callable[[], None] | None = None
    """Gives up a call between tiers, which may still act and end later."""
    acted: bool = False

    def run(self) -> None:
        if not self.acted:
            self.acted = True
            self.act()


class TierMovesMachine(RuleBasedStateMachine):
    """Two tiers, moves in all directions, and threads that take their time."""

    def __init__(self) -> None:
        super().__init__()
        self.run = tier_bench(64, tier(budget_blocks=40, spill="commit"), S3)
        self.tiering = self.run.tiering
        self.node = self.run.bench.node
        self.calls: list[Call] = []
        self.states: list[MoveState] = []
        self.safe: dict[BlockName, str] = {}
        """Blocks that must be somewhere, with their tenants."""
        self.generation = 0
        self.last_number = 1

    # ---- what the mover does

    def begin_calls(self) -> None:
        run, tiering = self.run, self.tiering
        tiering.catalog.sweep()
        for each in list(tiering.tiers):
            for job in run.spill(each):
                run.spills.append(job)
                self.calls.append(self.spill(job))
            if each.number not in run.deleting and (names := tiering.catalog.take_deletions(each)):
                run.deleting[each.number] = names
                self.calls.append(self.deletion(each, names))
        while (crossing := tiering.copies.next_from_tier(run.now)) is not None:
            run.copies.append(crossing)
            self.calls.append(self.transfer(crossing))
        run.begin_loads()

    def spill(self, job: TierJob) -> Call:
        def report() -> None:
            self.run.spills.remove(job)
            self.tiering.outcomes.stored(job, [CopyEnd(Outcome.OK)], self.run.now)

        return Call(lambda: self.keep(job), report)

    def deletion(self, tier: TierState, names: Sequence[BlockName]) -> Call:
        def act() -> None:
            for name in names:
                self.run.stores[tier.number].pop(name, None)

        def report() -> None:
            del self.run.deleting[tier.number]
            if not tier.closing:
                self.tiering.catalog.deleted(tier, [])

        return Call(act, report)

    def transfer(self, job: TierJob) -> Call:
        """The load of a job between tiers, which is followed by a call that stores what it loaded."""
        source, encoding = job.source, target_of(job).spec.compress
        assert source is not None
        job.to(JobState.LOADING)
        names = [block.name for block in job.blocks]
        results: list[Loaded] = []

        def load() -> None:
            found = [self.run.stores[source.number].get(name) for name in names]
            results[:] = [Loaded(Outcome.MISSING) if each is None else Loaded(Outcome.OK, each) for each in found]

        def loaded() -> None:
            self.tiering.outcomes.loaded(job, results, self.run.now)
            if job.state is JobState.LOADING:
                job.to(JobState.STORING)
                self.calls.append(Call(lambda: self.keep(job), stored, lambda: self.hang(job)))
            else:
                self.run.copies.remove(job)

        def stored() -> None:
            end = CopyEnd(Outcome.OK)
            if job.reason is JobReason.ENCODE:
                end = CopyEnd(Outcome.OK, HEADER + SIZES[encoding], encoding)
            self.run.copies.remove(job)
            self.tiering.outcomes.stored(job, [end] * len(job.blocks), self.run.now)

        return Call(load, loaded, lambda: self.hang(job))

    def hang(self, job: TierJob) -> None:
        self.tiering.outcomes.hung(job)

    def keep(self, job: TierJob) -> None:
        self.run.stores[target_of(job).number].update({block.name: stored_of(block) for block in job.blocks})

    # ---- rules

    @rule(tenant=tenants, number=st.integers(0, 2))
    def store(self, tenant: str, number: int) -> None:
        chain = CHAINS[tenant][number]
        self.run.engine.store(chain, PAGE, tenant=tenant)
        space = self.run.identity()
        for key, there in zip(chain, self.run.engine.has(chain), strict=True):
            if there:
                self.safe[BlockName(space, key)] = tenant
        self.begin_calls()

    @rule()
    def push_out(self) -> None:
        """Evict the blocks from memory that a tier holds."""
        in_tiers = [
            block
            for block in self.node.pool.table.blocks.values()
            if block.state is State.READY
            and block not in self.node.pool.dead
            and any(
                each.entry_of(name := BlockName(self.run.identity(block.space), block.key)) is not None
                and name in self.run.stores[each.number]
                for each in self.tiering.tiers
            )
        ]
        self.node.room.evict(in_tiers, "room", self.run.now)

    @rule(source=st.sampled_from(LOCATIONS), to=st.sampled_from(LOCATIONS), tenant=tenants, release=st.booleans())
    def move(self, source: str, to: str, tenant: str, release: bool) -> None:
        self.ask_for(Move("n", Scope(tenant=tenant), to, release, DEADLINE_S, source=source))

    @rule(name=st.sampled_from(LOCATIONS[:2]), compress=st.sampled_from(list(SIZES)))
    def encode_again(self, name: str, compress: Compress) -> None:
        self.run.change(name, compress=compress)
        self.ask_for(Move("n", Scope(), name, deadline_s=DEADLINE_S, compress=True))

    def ask_for(self, message: Move) -> None:
        try:
            self.states.append(self.tiering.moves.start(message, self.run.now))
        except ProtocolError as error:
            if error.code not in (Code.UNKNOWN_TIER, Code.TOO_MANY):
                raise

    @rule(seconds=st.sampled_from([0.05, 0.05, 0.05, DEADLINE_S]))
    def tick(self, seconds: float) -> None:
        self.run.bench.pass_time(seconds)
        self.begin_calls()

    @precondition(lambda self: self.calls)
    @rule(chosen=st.integers(0, 30))
    def a_call_takes_effect(self, chosen: int) -> None:
        self.calls[chosen % len(self.calls)].run()

    @precondition(lambda self: self.calls)
    @rule(chosen=st.integers(0, 30))
    def a_call_ends(self, chosen: int) -> None:
        call = self.calls.pop(chosen % len(self.calls))
        call.run()
        call.report()
        self.begin_calls()

    @rule(chosen=st.integers(0, 30))
    def a_call_hangs(self, chosen: int) -> None:
        calls = [call for call in self.calls if call.hang is not None]
        if calls:
            call = calls[chosen % len(calls)]
            assert call.hang is not None
            call.hang()
            call.hang = None
            self.begin_calls()

    @precondition(lambda self: self.states)
    @rule(chosen=st.integers(0, 30))
    def cancel(self, chosen: int) -> None:
        number = self.states[chosen % len(self.states)].number
        with contextlib.suppress(ProtocolError):  # its result was dropped
            self.tiering.moves.cancel(number)

    @rule(tenant=tenants, number=st.integers(0, 2))
    def an_engine_loads(self, tenant: str, number: int) -> None:
        self.run.ask(CHAINS[tenant][number])
        self.begin_calls()
        self.run.end_loads()

    @rule(tenant=tenants)
    def invalidate(self, tenant: str) -> None:
        self.node.invalidate(Scope(tenant=tenant), self.run.now)
        self.safe = {name: owner for name, owner in self.safe.items() if owner != tenant}

    @rule(tenant=tenants, limit=st.one_of(st.none(), st.integers(0, 6)))
    def change_quota(self, tenant: str, limit: int | None) -> None:
        self.generation += 1
        self.run.quotas(quota(tenant, limit=limit, name="s3"), generation=self.generation)

    @rule(spill=st.sampled_from(["off", "cascade"]))
    def change_spill(self, spill: Spill) -> None:
        self.run.change("s3", spill=spill)

    @rule(limit=st.one_of(st.none(), st.integers(1, 6)))
    def limit_the_disk(self, limit: int | None) -> None:
        """Let the disk evict blocks of a tenant."""
        self.generation += 1
        self.run.quotas(quota("a", limit=limit), generation=self.generation)

    @rule()
    def replace_a_tier(self) -> None:
        """Remove one tier, with all its blocks, and add an empty one of the same name."""
        old = next(each for each in self.tiering.tiers if each.spec.name == "s3")
        for name in self.run.stores[old.number]:
            self.safe.pop(name, None)
        self.tiering.remove_tier(old)
        for _ in self.tiering.catalog.forgetting(old):
            pass
        self.last_number += 1
        self.run.stores[self.last_number] = {}
        self.tiering.add_tier(TierState(self.last_number, S3, stored_size))

    @rule(name=st.sampled_from(LOCATIONS[:2]), serves=st.booleans())
    def a_tier_leaves_or_returns(self, name: str, serves: bool) -> None:
        next(each for each in self.tiering.tiers if each.spec.name == name).serves = serves

    # ---- what must hold

    @invariant()
    def no_block_is_lost(self) -> None:
        while self.run.evicted:
            self.safe.pop(self.run.evicted.pop(), None)
        there = {
            BlockName(self.run.identity(block.space), block.key)
            for block in self.node.pool.table.blocks.values()
            if block.state is State.READY
        }
        there = there.union(*(self.run.stores[each.number] for each in self.tiering.tiers))
        assert self.safe.keys() <= there

    @invariant()
    def nothing_is_counted_wrong(self) -> None:
        pending = [call for call in self.calls if call.acted]
        faults = self.run.bench.faults()
        if pending:  # the loop does not know yet what has taken effect
            faults = [fault for fault in faults if "believed" not in fault and "for ever" not in fault]
        assert faults == []

    def teardown(self) -> None:
        for each in self.tiering.tiers:
            each.serves = True
        for _ in range(2000):
            self.run.bench.pass_time(0.1)
            self.begin_calls()
            self.run.end_loads()
            calls, self.calls = self.calls, []
            for call in calls:
                call.run()
                call.report()
            self.no_block_is_lost()
            if not (self.calls or self.tiering.table.copies) and all(
                state.ended_at is not None for state in self.states
            ):
                break
        assert all(state.ended_at is not None for state in self.states)
        self.nothing_is_counted_wrong()
        assert (self.tiering.table.copies, self.tiering.table.crossing) == ({}, {})
        assert not any(each.watched or each.arriving or each.spilling_bytes for each in self.tiering.tiers)
        for state in self.states:
            assert min(state.moved_blocks, state.released_blocks, *state.refused.values(), 0) == 0
            if not state.dry_run:
                assert state.moved_blocks + state.present_blocks <= state.blocks


TestTierMoves = TierMovesMachine.TestCase
TestTierMoves.settings = settings(max_examples=size(30, 15), stateful_step_count=40, deadline=None)
