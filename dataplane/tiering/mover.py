"""The mover: does the I/O of jobs of `dataplane.core.tiering.jobs`, on threads of the tiers.

It reads and writes the memory of the pool itself; a thread never touches memory that is not leased or reserved for it.
All methods run on the thread of the data plane.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from math import inf

from dataplane.core.tiering.jobs import NO_MEMORY, JobState, TierJob
from dataplane.core.tiering.tier_state import TierState
from dataplane.core.tiering.tiering import Tiering
from dataplane.io.loop import Loop
from dataplane.memory.memory import NodeMemory
from dataplane.observe.trace import MovedBatch
from dataplane.protocol.events import Event
from dataplane.protocol.stored_blocks import CopyEnd, Loaded, Outcome
from dataplane.tiering.background import Background
from dataplane.tiering.encoding import CALL_S
from dataplane.tiering.tier_run import TierRun
from dataplane.tiering.wake import Wake
from dataplane.tiering.worker import HANG_S, TierWorker, TimedLoads, load_job, store_job
from dataplane.tiers.codecs.codec import BlockCodec
from dataplane.tiers.registry import codec_of
from dataplane.tiers.tier import Tier, TierError

STEP_S = 0.1
CLOSE_S = 2.0
MAX_COPIES = 2
"""Maximum number of calls under way for each tier that copy to it."""
GIVE_UP_S = CALL_S + HANG_S
"""Seconds after which a call between tiers is not waited for any more. It takes its tier out of service, so there is at
most about one such call, with its buffer, for each tier that it copies to."""


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
    ) -> None:
        """`emit` publishes an event of the node."""
        self._loop, self._background, self._memory = loop, background, memory
        self.tiering, self._clock, self._emit = tiering, clock, emit
        self._catalog, self._table, self._outcomes = tiering.catalog, tiering.table, tiering.outcomes
        self._views: dict[int, memoryview] = {}
        self.runs: list[TierRun] = []
        self._leaving: list[TierRun] = []
        self._wake, self._spans = wake, wake.spans
        self._calls: dict[TierJob, tuple[Future[None], MovedBatch | None]] = {}
        """Calls that load into memory, and their spans."""
        wake.listen(self._work)
        loop.every(STEP_S, self.step)

    def add(self, state: TierState, tier: Tier, forget_tombstones: Callable[[], None]) -> TierRun:
        """Add a tier. It serves once `opened` is called. `forget_tombstones` is called when the tier has carried out
        its `state.tombstones`."""
        self.tiering.add_tier(state)
        state.serves = False
        worker = TierWorker(self._loop, self._background, state.spec.name, tier)
        run = TierRun(state, worker, self.tiering, self._loop, self._clock, self._emit, forget_tombstones)
        self.runs.append(run)
        return run

    def opened(self, run: TierRun) -> None:
        """Let a tier serve, because its contents are known."""
        run.begin_service()
        self.step()

    def remove(self, run: TierRun, done: Callable[[], None]) -> None:
        """Stop using a tier. Close it when its calls under way have ended, then call `done`."""
        self.tiering.remove_tier(run.state)
        self.runs.remove(run)
        self._leaving.append(run)
        run.publish()

        def closed() -> None:
            self._leaving.remove(run)
            done()

        run.worker.retire(closed)

    def step(self) -> None:
        """Do the periodic work of all tiers: give up calls that hang, and forget old answers of shared tiers."""
        now = self._clock()
        for job in list(self._table.crossing.values()):
            if time.monotonic() >= job.give_up_at:
                self._outcomes.hung(job)
        for run in self.runs:
            run.step(now)
        self._catalog.existence.step(now)
        for number in [number for number in self._views if number not in self._memory.segments]:
            del self._views[number]
        self._work()

    def _work(self) -> None:
        now = self._clock()
        if self._catalog.sweep():
            self._wake.set()
        self._cancel_unwanted(now)
        self.tiering.cascades.hurry(now)
        for run in self.runs:
            if run.serves:
                run.look_up()
                run.delete(now)
                while run.copying < MAX_COPIES and (job := self.tiering.copies.next_from_memory(run.state, now)):
                    self._map(job)
                    self._store(run, job, codec_of(run.state.spec))
        while job := self.tiering.copies.next_from_tier(now):
            _allocate(job)
            self._load(job, inf)
        for job in self.tiering.loads.next_jobs(now):
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
        work = partial(load_job, job, tuple(job.blocks), deadline)
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
        results = [Loaded(Outcome.FAILED)] * len(job.blocks) if isinstance(result, TierError) else result.results
        if not isinstance(result, TierError) and job.target is None:
            arrived = (
                block.nbytes for block, loaded in zip(job.blocks, results, strict=True) if loaded.block is not None
            )
            run.rates.add(sum(arrived), result.began, result.ended)
        self._calls.pop(job, None)
        self._outcomes.loaded(job, results, self._clock())
        self._spans.end(span, sum(loaded.outcome is not Outcome.OK for loaded in results))
        run.judge(result, () if hung else [loaded.outcome for loaded in results])
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
        work = partial(store_job, job, tuple(job.blocks), codec)
        run.worker.submit("copy", work, partial(self._stored, run, job, span))

    def _stored(self, run: TierRun, job: TierJob, span: MovedBatch | None, result: list[CopyEnd] | TierError) -> None:
        run.copying -= job.source is None
        hung = job.state is JobState.HUNG
        copy_ends = [CopyEnd(Outcome.FAILED)] * len(job.blocks) if isinstance(result, TierError) else result
        self._outcomes.stored(job, copy_ends, self._clock())
        self._spans.end(span, sum(end.outcome is not Outcome.OK for end in copy_ends))
        # A block that is not encoded again, because it would not become smaller, is no failure of the tier.
        outcomes = [end.outcome for end in copy_ends if not (end.outcome is Outcome.FAILED and end.not_compressed)]
        run.judge(result, () if hung else outcomes)

    def _run_of(self, state: TierState | None) -> TierRun:
        return next(run for run in (*self.runs, *self._leaving) if run.state is state)

    def _span(self, name: str, run: TierRun, job: TierJob) -> MovedBatch | None:
        return self._spans.begin(name, run.state.spec.name, len(job.blocks), job.nbytes)

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
        ended = [run.worker.close(CLOSE_S) for run in (*self.runs, *self._leaving)]
        self._views.clear()
        return all(ended)


def _allocate(job: TierJob) -> None:
    """Let the blocks of a job use memory outside the pool."""
    buffer, end = memoryview(bytearray(job.nbytes)), 0
    for block in job.blocks:
        begin, end = end, end + block.nbytes
        block.memory = buffer[begin:end]
