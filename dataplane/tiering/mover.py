"""The mover: does the I/O of jobs of `dataplane.core.tiering.jobs`, on threads of the tiers.

It reads and writes the memory of the pool itself; a thread never touches memory that is not leased or reserved for it.
All methods run on the thread of the data plane.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from math import inf
from typing import NamedTuple

import msgspec

from dataplane.core.tiering.jobs import NO_MEMORY, JobBlock, JobReason, JobState, TierJob
from dataplane.core.tiering.tier_state import TierState
from dataplane.core.tiering.tiering import Tiering
from dataplane.io.loop import Loop
from dataplane.memory.memory import NodeMemory
from dataplane.observe.trace import MovedBatch
from dataplane.protocol.events import Event, TierLost, TierRecovered
from dataplane.protocol.misses import source_of_type
from dataplane.protocol.stats.tiers import TierPhase, TierStats
from dataplane.protocol.stored_blocks import BlockName, CopyEnd, Loaded, Outcome, StoredBlock
from dataplane.tiering.background import Background
from dataplane.tiering.encoding import CALL_S, store_blocks
from dataplane.tiering.tier_run import TierRun
from dataplane.tiering.wake import Wake
from dataplane.tiering.worker import HANG_S, TierWorker
from dataplane.tiers.codecs.codec import BlockCodec
from dataplane.tiers.registry import codec_of
from dataplane.tiers.tier import BlockLoad, Tier, TierError

STEP_S = 0.1
LOOK_UP_S = 2.0
"""Deadline of a call that asks a shared tier for blocks."""
MAX_LOOK_UPS = 2
"""Maximum number of such calls under way for each tier."""
CLOSE_S = 2.0
SHRINK_S = 0.005
"""Duration of each slice in which blocks are evicted for a smaller budget, and of the pause after it."""
DELETE_AGAIN_S = 1.0
"""Pause of the deletions of a tier after a call that deleted nothing."""
MAX_TENANTS_SHOWN = 50
MAX_COPIES = 2
"""Maximum number of calls under way for each tier that copy to it."""
READING = "its contents are being read"


GIVE_UP_S = CALL_S + HANG_S
"""Seconds after which a call between tiers is not waited for any more. It takes its tier out of service, so there is at
most about one such call, with its buffer, for each tier that it copies to."""


class TimedLoads(NamedTuple):
    """The end of a call that loads, and when it ran (seconds of `time.monotonic`)."""

    results: list[Loaded]
    began: float
    ended: float


class Mover:
    """Moves blocks between the pool and its tiers."""

    def __init__(
        self,
        loop: Loop,
        background: Background,
        memory: NodeMemory,
        tiering: Tiering,
        wake: Wake,
        clock: Callable[[], float],
        emit: Callable[[Event], None],
        deleted: Callable[[TierRun], None] = lambda run: None,
    ) -> None:
        """`emit` publishes an event of the node. `deleted` is called when a tier has nothing left to delete."""
        self._loop, self._background, self._memory = loop, background, memory
        self.tiering, self._clock, self._emit = tiering, clock, emit
        self._catalog, self._table, self._outcomes = tiering.catalog, tiering.table, tiering.outcomes
        self._deleted = deleted
        self._views: dict[int, memoryview] = {}
        self._closed = False
        self.runs: list[TierRun] = []
        self._leaving: list[TierRun] = []
        self._wake, self._spans = wake, wake.spans
        self._calls: dict[TierJob, tuple[Future[None], MovedBatch | None]] = {}
        """Calls that load into memory, and their spans."""
        wake.listen(self._work)
        loop.every(STEP_S, self.step)

    def add(self, state: TierState, tier: Tier) -> TierRun:
        """Add a tier. It serves once `opened` is called."""
        state.serves = False
        run = TierRun(state, TierWorker(self._loop, self._background, state.spec.name, tier))
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

    def step(self) -> None:
        """Do the periodic work: probe tiers, detect tiers that hang, forget old answers of shared ones, and update the
        directory."""
        now = self._clock()
        for job in list(self._table.crossing.values()):
            if time.monotonic() >= job.give_up_at:
                self._outcomes.hung(job)
        for run in self.runs:
            if run.breaker.serves and (hangs := _hangs(run)):
                self._failed(run, hangs, whole=True)
            if run.opened and run.breaker.wants_probe(now):
                run.worker.submit("load", _probe, partial(self._probed, run))
            if not run.shrinking and run.state.listed_blocks is None:
                self._shrink(run)
            self._publish(run)
        self._catalog.existence.step(now)
        for number in [number for number in self._views if number not in self._memory.segments]:
            del self._views[number]
        self._work()

    def _shrink(self, run: TierRun) -> None:
        """Bring a tier within its budget, in short slices."""
        until = time.monotonic() + SHRINK_S
        state = run.state
        while not state.closing and not self._closed and self._catalog.shrink(state, self._clock()):
            if time.monotonic() >= until:
                run.shrinking = True
                self._loop.once(SHRINK_S, partial(self._shrink, run))
                return
        run.shrinking = False

    def _publish(self, run: TierRun) -> None:
        """Write the state and the rates of a tier to the directory, for engines."""
        self._catalog.directory.publish(
            run.state.number,
            waiting_bytes=run.state.loading_bytes + self.tiering.loads.waiting_bytes(),
            bytes_per_s=int(run.rates.bytes_per_s),
            latency_us=0,
            serves=run.serves,
            shared=run.state.shared,
            source=source_of_type(run.state.spec.type),
        )

    def _work(self) -> None:
        if self._closed:
            return
        now = self._clock()
        if self._catalog.sweep():
            self._wake.set()
        self._cancel_unwanted(now)
        self.tiering.cascades.hurry(now)
        for run in self.runs:
            if run.serves:
                self._look_up(run)
                self._delete(run, now)
                while run.copying < MAX_COPIES and (job := self.tiering.copies.next_from_memory(run.state, now)):
                    self._map(job)
                    self._store(run, job, codec_of(run.state.spec))
        while job := self.tiering.copies.next_from_tier(now):
            _allocate(job)
            self._load(job, inf)
        while job := self.tiering.loads.next(now):
            self._map(job)
            self._load(job, time.monotonic() + max(0.0, job.deadline - now))
        self._spans.settle()

    # ---- jobs

    def _load(self, job: TierJob, deadline: float) -> None:
        """Begin to load the blocks of a job. `deadline` is a time of `time.monotonic`; inf: CALL_S from its begin."""
        run = self._run_of(job.source)
        span: MovedBatch | None = None
        codec: BlockCodec | None = None
        job.to(JobState.LOADING)
        if job.target is None:
            span = self._span("tier.load", run, job)
        else:
            codec = codec_of(job.target.spec)  # the room was reserved for this one
            job.give_up_at = time.monotonic() + GIVE_UP_S
        work = partial(_load, job, tuple(job.blocks), deadline)
        future = run.worker.submit("load", work, partial(self._loaded, run, job, codec, span))
        if job.target is None:
            self._calls[job] = future, span

    def _loaded(
        self,
        run: TierRun,
        job: TierJob,
        codec: BlockCodec | None,
        span: MovedBatch | None,
        result: TimedLoads | TierError,
    ) -> None:
        hung = job.state is JobState.HUNG
        failed = isinstance(result, TierError)
        results = [Loaded(Outcome.FAILED)] * len(job.blocks) if isinstance(result, TierError) else result.results
        if not isinstance(result, TierError) and job.target is None:
            arrived = (
                block.nbytes for block, loaded in zip(job.blocks, results, strict=True) if loaded.block is not None
            )
            run.rates.add(sum(arrived), result.began, result.ended)
        self._calls.pop(job, None)
        self._outcomes.loaded(job, results, self._clock())
        self._spans.end(span, sum(loaded.outcome is not Outcome.OK for loaded in results))
        self._judge(run, result, [] if hung or failed else [loaded.outcome for loaded in results])
        if job.state is JobState.LOADING:
            job.give_up_at = time.monotonic() + GIVE_UP_S
            self._store(self._run_of(job.target), job, codec)

    def _cancel_unwanted(self, now: float) -> None:
        """Cancel loads that no request needs any more, unless their calls have begun."""
        unwanted, self._table.unwanted = self._table.unwanted, []
        for job in unwanted:
            future, span = self._calls.get(job, (None, None))
            if future is not None and not job.waiters and future.cancel():
                for block in job.blocks:  # the thread pool keeps the call until a thread is free
                    block.memory = NO_MEMORY
                del self._calls[job]
                self._outcomes.cancelled(job, now)
                self._spans.end(span, len(job.blocks))

    def _store(self, run: TierRun, job: TierJob, codec: BlockCodec | None) -> None:
        """Begin to store the blocks that are left of a job."""
        job.to(JobState.STORING)
        span = None if job.source is not None else self._span("tier.spill", run, job)
        run.copying += job.source is None
        work = partial(_store, job, tuple(job.blocks), codec)
        run.worker.submit("copy", work, partial(self._stored, run, job, span))

    def _stored(self, run: TierRun, job: TierJob, span: MovedBatch | None, result: list[CopyEnd] | TierError) -> None:
        run.copying -= job.source is None
        copy_ends = [CopyEnd(Outcome.FAILED)] * len(job.blocks) if isinstance(result, TierError) else result
        self._outcomes.stored(job, copy_ends, self._clock())
        self._spans.end(span, sum(end.outcome is not Outcome.OK for end in copy_ends))
        # A block that is not encoded again, because it would not become smaller, is no failure of the tier.
        outcomes = [end.outcome for end in copy_ends if not (end.outcome is Outcome.FAILED and end.not_compressed)]
        self._judge(run, result, outcomes)

    def _run_of(self, state: TierState | None) -> TierRun:
        return next(run for run in (*self.runs, *self._leaving) if run.state is state)

    def _span(self, name: str, run: TierRun, job: TierJob) -> MovedBatch | None:
        return self._spans.begin(name, run.state.spec.name, len(job.blocks), job.nbytes)

    # ---- look-ups and deletions

    def _look_up(self, run: TierRun) -> None:
        while run.looking < MAX_LOOK_UPS and (names := self._catalog.existence.next_names(run.state)):
            run.looking += 1
            run.worker.submit("look", partial(_look_up, names), partial(self._looked_up, run, names))

    def _looked_up(
        self, run: TierRun, names: Sequence[BlockName], result: list[StoredBlock | None] | TierError
    ) -> None:
        run.looking -= 1
        stored = [None] * len(names) if isinstance(result, TierError) else result
        self.tiering.looked_up(run.state, names, stored, self._clock())
        if isinstance(result, TierError):
            self._judge(run, result, ())

    def _delete(self, run: TierRun, now: float) -> None:
        if run.deleting or now < run.delete_at:
            return
        names = self._catalog.take_deletions(run.state)
        if not names:
            if not run.state.deletions_left:
                self._deleted(run)
            return
        run.deleting = True
        run.worker.submit("copy", partial(_delete, names), partial(self._gone, run, names))

    def _gone(self, run: TierRun, names: list[BlockName], result: list[Outcome] | TierError) -> None:
        run.deleting = False
        outcomes = result if not isinstance(result, TierError) else [Outcome.FAILED] * len(names)
        if run.state.closing:
            return
        not_deleted = [name for name, outcome in zip(names, outcomes, strict=True) if outcome is not Outcome.OK]
        if len(not_deleted) == len(names):
            run.delete_at = self._clock() + DELETE_AGAIN_S
        self._catalog.deleted(run.state, not_deleted)
        # A block that cannot be deleted, again and again, does not take the tier out of service.
        judged = [outcome for outcome in outcomes if outcome is not Outcome.FAILED]
        if judged or isinstance(result, TierError):
            self._judge(run, result, judged)
        self._wake.set()

    def stats_of(self, run: TierRun) -> TierStats:
        """Return the statistics of one tier."""
        state, contents, counters = run.state, run.state.contents, run.state.counters
        usage = run.worker.tier.usage()
        waiting_blocks, waiting_bytes = self._table.waiting(state)
        return msgspec.structs.replace(
            counters,
            refused=dict(counters.refused),
            lost=dict(counters.lost),
            not_compressed=dict(counters.not_compressed),
            budget_bytes=state.spec.budget_bytes,
            serves=run.serves,
            reason=run.breaker.reason if run.opened else READING,
            state=_phase(run),
            shared=state.shared,
            listed_blocks=state.listed_blocks,
            listing_fault=run.listing_fault,
            logical_bytes=contents.logical_bytes,
            encodings=dict[str, int](contents.encodings.items()),
            out_of_service=run.breaker.opened,
            blocks=len(contents),
            stored_bytes=contents.used_bytes,
            evicted_blocks=contents.evicted_blocks,
            draining_blocks=self.tiering.drains.left(state),
            waiting_blocks=waiting_blocks,
            waiting_bytes=waiting_bytes,
            spilling_bytes=state.spilling_bytes,
            loading_bytes=state.loading_bytes,
            load_bytes_per_s=run.rates.bytes_per_s,
            tenants=[tenant.stats() for tenant in contents.largest_tenants(MAX_TENANTS_SHOWN)],
            foreign_objects=usage.foreign_objects,
            first_foreign=usage.first_foreign,
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
        self._wake.set()

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

    def _map(self, job: TierJob) -> None:
        """Let the blocks of a job use the memory of the pool that they are read from or loaded into."""
        for block in job.blocks:
            view = self._views.get(block.segment)
            if view is None:
                file = self._memory.segments[block.segment]
                view = self._views[block.segment] = memoryview(file.map())
            block.memory = view[block.offset : block.offset + block.nbytes]

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


def _allocate(job: TierJob) -> None:
    """Let the blocks of a job use memory outside the pool."""
    buffer, end = memoryview(bytearray(job.nbytes)), 0
    for block in job.blocks:
        begin, end = end, end + block.nbytes
        block.memory = buffer[begin:end]


def _load(job: TierJob, blocks: Sequence[JobBlock], deadline: float, tier: Tier) -> TimedLoads:
    began = time.monotonic()
    if job.state is JobState.HUNG:
        return TimedLoads([Loaded(Outcome.LATE)] * len(blocks), began, began)
    loads = [BlockLoad(block.name, block.memory) for block in blocks]
    return TimedLoads(tier.load(loads, began + CALL_S if deadline == inf else deadline), began, time.monotonic())


def _store(job: TierJob, blocks: Sequence[JobBlock], codec: BlockCodec | None, tier: Tier) -> list[CopyEnd]:
    if job.state is JobState.HUNG:
        return [CopyEnd(Outcome.LATE)] * len(blocks)
    return store_blocks(blocks, codec, tier, encoded_only=job.reason is JobReason.ENCODE)


def _look_up(names: Sequence[BlockName], tier: Tier) -> list[StoredBlock | None]:
    return tier.lookup(names, time.monotonic() + LOOK_UP_S)


def _delete(names: Sequence[BlockName], tier: Tier) -> list[Outcome]:
    return tier.delete(names, time.monotonic() + CALL_S)
