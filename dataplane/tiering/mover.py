"""The mover: copies blocks to tiers and loads them, as `dataplane.core.tiering` decides.

It reads and writes the memory of the pool itself; a thread never touches memory that is not leased or reserved for it.
All methods run on the thread of the data plane.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from dataplane.core.tiering.loads import PlannedLoad
from dataplane.core.tiering.reencodings import PlannedReencoding
from dataplane.core.tiering.spills import PlannedSpill
from dataplane.core.tiering.tier_state import TierState
from dataplane.core.tiering.tiering import Tiering
from dataplane.io.loop import Loop
from dataplane.memory.memory import NodeMemory
from dataplane.observe.trace import BatchSpans, MovedBatch
from dataplane.protocol.events import Event, TierLost, TierRecovered
from dataplane.protocol.stats.tiers import TierPhase, TierStats
from dataplane.protocol.stored_blocks import BlockForm, BlockName, CopyEnd, Loaded, Outcome, StoredBlock
from dataplane.tiering.encoding import CALL_S, BlockBytes, reencode_blocks, store_blocks
from dataplane.tiering.tier_run import TierRun
from dataplane.tiering.transfers import TransferRunner
from dataplane.tiering.worker import HANG_S, TierWorker
from dataplane.tiers.tier import BlockLoad, Tier, TierError

STEP_S = 0.1
LOOK_UP_S = 2.0
"""Deadline of a call that asks a shared tier for blocks."""
MAX_LOOK_UPS = 2
"""Maximum number of such calls under way for each tier."""
CLOSE_S = 2.0
SHRINK_S = 0.005
"""Duration of each slice in which blocks are evicted for a smaller budget, and of the pause after it."""
MAX_TENANTS_SHOWN = 50
MAX_COPIES = 2
"""Maximum number of calls under way for each tier that copy to it."""
BATCH_BLOCKS, BATCH_BYTES = 64, 32 << 20
"""Maximum number of blocks in one call that copies to a tier, and the bytes after which no block is added to it."""
READING = "its contents are being read"


class TimedLoads(NamedTuple):
    """The end of a call that loads, and when it ran (seconds of `time.monotonic`)."""

    loaded: list[Loaded]
    began: float
    ended: float


class Mover:
    """Moves blocks between the pool and its tiers."""

    def __init__(
        self,
        loop: Loop,
        memory: NodeMemory,
        tiering: Tiering,
        clock: Callable[[], float],
        emit: Callable[[Event], None],
        deleted: Callable[[TierRun], None] = lambda run: None,
    ) -> None:
        """`emit` publishes an event of the node. `deleted` is called when a tier has nothing left to delete."""
        self._memory = memory
        self._tiering = tiering
        self._clock = clock
        self._emit = emit
        self._deleted = deleted
        self._views: dict[int, memoryview] = {}
        self._woken = self._closed = False
        self._loop = loop
        self.runs: list[TierRun] = []
        self._leaving: list[TierRun] = []
        self._spans = BatchSpans(clock)
        self._transfers = TransferRunner(tiering, clock, self.runs, self._judge)
        tiering.on_work = self.wake
        loop.every(STEP_S, self.step)

    def add(self, state: TierState, tier: Tier) -> TierRun:
        """Add a tier. It serves once `opened` is called."""
        state.serves = False
        run = TierRun(state, TierWorker(self._loop, state.spec.name, tier))
        self.runs.append(run)
        return run

    def opened(self, run: TierRun) -> None:
        """Let a tier serve, because its contents are known."""
        run.opened = True
        run.state.serves = run.serves
        self.step()

    def remove(self, run: TierRun, done: Callable[[], None]) -> None:
        """Stop using a tier. Close it when its calls under way have ended, then call `done`."""
        self.runs.remove(run)
        self._leaving.append(run)
        self._publish(run)

        def closed() -> None:
            self._leaving.remove(run)
            done()

        run.worker.retire(closed)

    def wake(self) -> None:
        """Begin work soon, once the current message has been handled."""
        self._spans.note_cause()
        if not self._woken and not self._closed:
            self._woken = True
            self._loop.once(0.0, self._work)

    def step(self) -> None:
        """Do the periodic work: probe tiers, detect tiers that hang, and update the directory."""
        now = self._clock()
        self._transfers.step()
        for run in self.runs:
            if run.breaker.serves and (hangs := _hangs(run)):
                self._failed(run, hangs, whole=True)
            if run.opened and run.breaker.wants_probe(now):
                run.worker.submit("load", _probe, partial(self._probed, run))
            if not run.shrinking and run.state.listed_blocks is None:
                self._shrink(run)
            self._publish(run)
        self._tiering.step(now)
        for number in [number for number in self._views if number not in self._memory.segments]:
            del self._views[number]
        self._work()

    def _shrink(self, run: TierRun) -> None:
        """Bring a tier within its budget, in short slices."""
        until = time.monotonic() + SHRINK_S
        contents, state = run.state.contents, run.state
        while contents.budget_bytes != state.spec.budget_bytes and not state.closing and not self._closed:
            if time.monotonic() >= until:
                run.shrinking = True
                self._loop.once(SHRINK_S, partial(self._shrink, run))
                return
            self._tiering.shrink(state, self._clock())
        run.shrinking = False

    def _publish(self, run: TierRun) -> None:
        """Write the state and the rates of a tier to the directory, for engines."""
        self._tiering.directory.publish(
            run.state.number,
            waiting_bytes=run.state.loading_bytes + self._tiering.loads.waiting_bytes(),
            bytes_per_s=int(run.rates.bytes_per_s),
            latency_us=0,
            serves=run.serves,
            shared=run.state.shared,
        )

    def _work(self) -> None:
        self._woken = False
        if self._closed:
            return
        now = self._clock()
        if self._tiering.sweep():
            self.wake()
        self._tiering.cascades.hurry(now)
        for run in self.runs:
            if run.serves:
                self._look_up(run)
                self._delete(run)
                self._reencode(run, now)
                while run.copying < MAX_COPIES and (
                    plans := self._tiering.spills.next_batch(run.state, now, BATCH_BLOCKS, BATCH_BYTES)
                ):
                    run.copying += 1
                    stores = [BlockBytes(plan.stored, self._view(plan), self._form(plan)) for plan in plans]
                    store = partial(store_blocks, stores, run.codec)
                    spilled = sum(plan.stored.length for plan in plans)
                    batch = self._spans.begin("tier.spill", run.state.spec.name, len(plans), spilled)
                    run.worker.submit("copy", store, partial(self._stored, run, plans, batch))
        self._transfers.begin(now)
        while planned := self._tiering.loads.next_batch(now):
            run = next(each for each in self.runs if each.state is planned[0].tier)
            left_s = max(0.0, planned[0].deadline - now)
            loads = [BlockLoad(load.name, self._target(load)) for load in planned]
            deadline = time.monotonic() + left_s
            loading = sum(load.nbytes for load in planned)
            batch = self._spans.begin("tier.load", run.state.spec.name, len(planned), loading)
            call = run.worker.submit(
                "load", partial(_load, loads, deadline), partial(self._loaded, run, planned, batch)
            )
            planned[0].batch.cancel = partial(self._cancel, call, planned, batch, loads)
        self._spans.settle()

    def _cancel(
        self, call: Future[None], planned: Sequence[PlannedLoad], batch: MovedBatch | None, loads: list[BlockLoad]
    ) -> None:
        """Cancel a call that loads a batch, and release the memory of the batch, unless the call has begun."""
        if call.cancel():
            loads.clear()  # its thread pool keeps the call, and with it views of the memory, until a thread is free
            for load in planned:
                self._tiering.load_cancelled(load, self._clock())
            self._spans.end(batch, len(planned))
            self.wake()

    def _stored(
        self, run: TierRun, plans: Sequence[PlannedSpill], batch: MovedBatch | None, result: list[CopyEnd] | TierError
    ) -> None:
        run.copying -= 1
        now = self._clock()
        ends = result if not isinstance(result, TierError) else [CopyEnd(Outcome.FAILED)] * len(plans)
        self._tiering.spills.batch_ended(run.state, plans, ends, now)
        self._spans.end(batch, sum(end.outcome is not Outcome.OK for end in ends))
        self._judge(run, result, [end.outcome for end in ends])
        self.wake()

    def _loaded(
        self, run: TierRun, planned: Sequence[PlannedLoad], batch: MovedBatch | None, result: TimedLoads | TierError
    ) -> None:
        now = self._clock()
        found = [Loaded(Outcome.FAILED)] * len(planned) if isinstance(result, TierError) else result.loaded
        for load, each in zip(planned, found, strict=True):
            block = each.block
            self._tiering.loaded(load, each.outcome, b"" if block is None else block.checksum, now, block)
        arrived = sum(load.nbytes for load, each in zip(planned, found, strict=True) if each.block is not None)
        if not isinstance(result, TierError):
            run.rates.add(arrived, result.began, result.ended)
        self._spans.end(batch, sum(each.outcome is not Outcome.OK for each in found))
        self._judge(run, result, [each.outcome for each in found])
        self.wake()

    def _look_up(self, run: TierRun) -> None:
        while run.looking < MAX_LOOK_UPS and (names := self._tiering.existence.next_names(run.state)):
            run.looking += 1
            run.worker.submit("look", partial(_look_up, names), partial(self._looked_up, run, names))

    def _looked_up(
        self, run: TierRun, names: Sequence[BlockName], result: list[StoredBlock | None] | TierError
    ) -> None:
        run.looking -= 1
        found = [None] * len(names) if isinstance(result, TierError) else result
        self._tiering.looked_up(run.state, names, found, self._clock())
        if isinstance(result, TierError):
            self._judge(run, result, ())

    def _delete(self, run: TierRun) -> None:
        if run.deleting:
            return
        names = self._tiering.take_deletions(run.state)
        if not names:
            if not self._tiering.deletions(run.state):
                self._deleted(run)
            return
        run.deleting = True
        run.worker.submit("copy", partial(_delete, names), partial(self._gone, run, names))

    def _gone(self, run: TierRun, names: list[BlockName], result: list[Outcome] | TierError) -> None:
        run.deleting = False
        outcomes = result if not isinstance(result, TierError) else [Outcome.FAILED] * len(names)
        if run.state.closing:
            return
        left = [name for name, outcome in zip(names, outcomes, strict=True) if outcome is not Outcome.OK]
        self._tiering.deleted(run.state, left)
        self._judge(run, result, outcomes)
        self.wake()

    def _reencode(self, run: TierRun, now: float) -> None:
        plans = [] if run.reencoding else self._tiering.moves.next_reencodings(run.state, now)
        if plans:
            run.reencoding = True
            blocks = [(plan.stored, plan.form) for plan in plans]
            run.worker.submit("copy", partial(reencode_blocks, blocks, run.codec), partial(self._reencoded, run, plans))

    def _reencoded(self, run: TierRun, plans: Sequence[PlannedReencoding], result: list[CopyEnd] | TierError) -> None:
        run.reencoding = False
        ends = result if not isinstance(result, TierError) else [CopyEnd(Outcome.FAILED)] * len(plans)
        plans[0].move.ended(plans, ends, self._clock())
        self._judge(run, result, [end.outcome for end in ends if not end.not_compressed])
        self.wake()

    def stats(self) -> list[TierStats]:
        """Return the statistics of all tiers in use."""
        return [self.stats_of(run) for run in self.runs]

    def stats_of(self, run: TierRun) -> TierStats:
        """Return the statistics of one tier."""
        usage = run.worker.tier.usage()
        return TierStats(
            foreign_objects=usage.foreign_objects,
            first_foreign=usage.first_foreign,
            name=run.state.spec.name,
            type=run.state.spec.type,
            budget_bytes=run.state.spec.budget_bytes,
            serves=run.serves,
            reason=run.breaker.reason if run.opened else READING,
            state=_phase(run),
            shared=run.state.shared,
            listed_blocks=run.state.listed_blocks,
            listing_fault=run.listing_fault,
            logical_bytes=run.state.contents.logical_bytes,
            encodings=dict[str, int](run.state.contents.encodings.items()),
            not_compressed=dict(run.state.counters.not_compressed),
            out_of_service=run.breaker.opened,
            blocks=len(run.state.contents),
            stored_bytes=run.state.contents.used_bytes,
            spilled_blocks=run.state.counters.spilled_blocks,
            spilled_bytes=run.state.counters.spilled_bytes,
            cascaded_blocks=run.state.counters.cascaded_blocks,
            draining_blocks=self._tiering.drains.left(run.state),
            loaded_blocks=run.state.counters.loaded_blocks,
            loaded_bytes=run.state.counters.loaded_bytes,
            evicted_blocks=run.state.contents.evicted_blocks,
            refused=dict(run.state.counters.refused),
            lost=dict(run.state.counters.lost),
            waiting_blocks=run.state.waiting_blocks,
            waiting_bytes=run.state.waiting_bytes,
            spilling_bytes=run.state.spilling_bytes,
            loading_bytes=run.state.loading_bytes,
            load_bytes_per_s=run.rates.bytes_per_s,
            tenants=[tenant.stats() for tenant in run.state.contents.largest_tenants(MAX_TENANTS_SHOWN)],
        )

    # ---- failures

    def _judge(self, run: TierRun, result: object, outcomes: Sequence[Outcome]) -> None:
        if isinstance(result, TierError):
            self._failed(run, str(result), whole=True)
        elif outcomes and all(outcome in (Outcome.FAILED, Outcome.LATE) for outcome in outcomes):
            self._failed(run, f"blocks are {outcomes[0].value}", whole=False)
        else:
            run.breaker.succeeded()

    def _failed(self, run: TierRun, reason: str, *, whole: bool) -> None:
        served = run.breaker.serves
        run.breaker.failed(reason, self._clock(), whole=whole)
        self._publish_state(run, served)

    def _probed(self, run: TierRun, result: str | TierError) -> None:
        served = run.breaker.serves
        run.breaker.probed(str(result) or _hangs(run), self._clock())
        self._publish_state(run, served)
        self.wake()

    def _publish_state(self, run: TierRun, served: bool) -> None:
        run.state.serves = run.serves
        if run.state.closing:
            return
        name = run.state.spec.name
        if served and not run.state.serves:
            self._emit(TierLost(self._clock(), name, run.breaker.reason))
        elif not served and run.state.serves:
            self._emit(TierRecovered(self._clock(), name))

    # ---- memory

    def _form(self, plan: PlannedSpill) -> BlockForm:
        return self._tiering.form(plan.block.space)

    def _view(self, plan: PlannedSpill) -> memoryview:
        block = plan.block
        return self._memory_of(block.slot.slab.segment.number, block.slot.offset, block.nbytes)

    def _target(self, load: PlannedLoad) -> memoryview:
        return self._memory_of(load.segment, load.offset, load.nbytes)

    def _memory_of(self, segment: int, offset: int, nbytes: int) -> memoryview:
        view = self._views.get(segment)
        if view is None:
            file = self._memory.segments[segment]
            view = self._views[segment] = memoryview(file.map())
        return view[offset : offset + nbytes]

    def close(self) -> bool:
        """End all threads; blocks stay in their tiers. Return whether no thread is left."""
        self._closed = True
        ended = [run.worker.close(CLOSE_S) for run in (*self.runs, *self._leaving)]
        self._views.clear()
        return all(ended)


def _phase(run: TierRun) -> TierPhase:
    if run.state.closing:
        return "closing"
    if not run.opened:
        return "opening"
    return "in service" if run.breaker.serves else "out of service"


def _hangs(run: TierRun) -> str:
    """Return why a tier counts as hanging: a call has not returned long after its deadline. Empty if none does."""
    seconds = run.worker.hangs_s()
    return f"a call has not returned for {seconds:.0f} s" if seconds > CALL_S + HANG_S else ""


def _probe(tier: Tier) -> str:
    health = tier.health(time.monotonic() + HANG_S)
    return "" if health.ok else health.reason or "the tier is not healthy"


def _load(loads: Sequence[BlockLoad], deadline: float, tier: Tier) -> TimedLoads:
    began = time.monotonic()
    return TimedLoads(tier.load(loads, deadline), began, time.monotonic())


def _look_up(names: Sequence[BlockName], tier: Tier) -> list[StoredBlock | None]:
    return tier.lookup(names, time.monotonic() + LOOK_UP_S)


def _delete(names: Sequence[BlockName], tier: Tier) -> list[Outcome]:
    return tier.delete(names, time.monotonic() + CALL_S)
