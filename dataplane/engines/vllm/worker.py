"""A worker's side: copies between the engine's blocks and the pool, on threads of its own: one for loads, one that
reserves room for saves, and one that copies them.

This module does not import vLLM. The engine's thread submits work and collects results. It copies loads inside steps
itself, so none of them is under way when its blocks are reported. It waits in three cases: for reservations, so that
the engine's response leaves after other engines can see what is being written; for saves of blocks that are about to be
overwritten; and at shutdown.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

import numpy as np

from dataplane.client.attaching import attach
from dataplane.client.client import Client
from dataplane.client.reservations import CommitResult, Reservation
from dataplane.devices.runtime import DeviceError, DeviceEvent
from dataplane.engines.traces import continued
from dataplane.engines.vllm.copies import GroupCopies, present
from dataplane.engines.vllm.messages import Load, Save, StepPlan, StepReport
from dataplane.engines.vllm.settings import ConnectorSettings
from dataplane.protocol.keys import KEY_BYTES

BATCH_BYTES = 64 << 20
"""Bytes of one reservation: a long prompt becomes readable piece by piece."""
RESERVE_WAIT_S = 0.25
"""Longest time that a step waits until its saves are reserved, as a rule one response of the data plane. After a wait
that was too short, steps do not wait until a reservation has ended."""
SAVE_WAIT_S = 10.0
"""Longest time that a step waits for the next of its saves to end. What a copy that takes longer, because a device
hangs, has read is not published."""
JOIN_S = 5.0
MAINTENANCE_S = 0.25
"""Interval at which an idle engine looks for a new data plane: on the thread of loads, because one is enough."""

_log = logging.getLogger("larder.vllm")


class _Phase(Enum):
    QUEUED = auto()
    RUNNING = auto()
    ENDED = auto()


@dataclass(slots=True, eq=False)
class _LoadJob:
    load: Load
    deadline: float
    marks: list[DeviceEvent | None]
    """For each group, the event after which the copies may begin."""
    clock: Callable[[], float]
    phase: _Phase = _Phase.QUEUED
    stopped: bool = False
    dropped: bool = False
    """Whether the engine does not need it any more; no token of it counts as loaded."""
    failed_from: int | None = None
    """Position in the load of the first token that was not loaded; None if all tokens were loaded."""
    seconds: float = 0.0

    @property
    def cancelled(self) -> bool:
        """Whether to copy nothing more. A load ends by itself at its deadline: if it ended when it was found to be
        overdue, its end would be found a step later."""
        return self.stopped or self.clock() >= self.deadline


@dataclass(slots=True, eq=False)
class _SaveJob:
    save: Save
    nbytes: int
    marks: list[DeviceEvent | None]
    phase: _Phase = _Phase.QUEUED
    cancelled: bool = False
    prepared: bool = False
    """Whether `reservations` is complete."""
    reservations: list[_Batch] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Batch:
    """Room for a part of a save's chunks in one space."""

    space: int
    first: int
    """Position of its first chunk in the save."""
    reservation: Reservation


@dataclass(slots=True)
class Results:
    """Loads and saves that have ended since the last call."""

    received: set[str] = field(default_factory=set)
    """Requests whose loads have ended, including failed loads."""
    sent: set[str] = field(default_factory=set)
    """Released requests whose saves have ended."""
    bad_blocks: set[int] = field(default_factory=set)
    """The engine's blocks that were not loaded, for caches of one group without windows."""
    failed: set[str] = field(default_factory=set)
    """Requests of `received` whose load failed without a list of blocks: all their tokens count as not loaded."""

    def add(self, other: Results) -> None:
        """Add the results of a later call."""
        self.received |= other.received
        self.sent |= other.sent
        self.bad_blocks |= other.bad_blocks
        self.failed |= other.failed


class WorkerSide:
    """Copies of one worker."""

    def __init__(
        self,
        settings: ConnectorSettings,
        copies: Sequence[GroupCopies],
        *,
        group: str,
        engine: str,
        holds_blocks: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Attach, and start the threads. `holds_blocks`: whether the engine keeps the blocks of a running request as
        long as it runs; otherwise a step waits until its saves are copied. Raise DeviceError or ValueError."""
        self.counts: dict[str, float] = {}
        """Counts since the last call of `take_counts`."""
        self._settings = settings
        self._copies = list(copies)
        self._chunk_bytes = sum(group_copies.group.chunk_bytes for group_copies in copies)
        self._holds_blocks = holds_blocks
        self._clock = clock
        self._lock = threading.Condition()
        self._loads: dict[str, _LoadJob] = {}
        self._saves: dict[str, list[_SaveJob]] = {}
        self._pending_save_bytes = 0
        self._released: set[str] = set()
        self._unloaded: set[str] = set()
        """Requests of this step whose loads inside it failed: what the step computes for them is worth nothing."""
        self._report = StepReport()
        self._reserves_late = False
        """Whether the last wait for reservations was too short, and none has ended since."""
        self._queues: list[queue.SimpleQueue[Callable[[], None] | None]] = [queue.SimpleQueue() for _ in range(3)]
        """Jobs of the threads: loads, reservations, saves."""
        self._client: Client = attach(
            settings.socket,
            [group_copies.layout.space for group_copies in copies],
            group=group,
            engine=engine,
            timeout_s=settings.timeout_s,
            checksums=settings.checksums,
            keep_trying=True,
            verify=settings.verify,
        )
        try:
            for at, group_copies in enumerate(copies):
                group_copies.open(self._client, at)
        except BaseException:
            self._disconnect()
            raise
        self._threads = [
            threading.Thread(target=_run, args=(jobs, when_idle), name=f"larder-{name}", daemon=True)
            for name, jobs, when_idle in zip(
                ("loads", "reservations", "saves"), self._queues, (self._client.maintain, None, None), strict=True
            )
        ]
        for thread in self._threads:
            thread.start()

    # ---- the engine's thread

    def begin_loads(self, plan: StepPlan) -> None:
        """Begin the loads of a step that are not inside it, end those that are not needed any more, and note which
        requests' blocks the scheduler keeps until the end of their saves."""
        self._unloaded = set()
        for load in plan.loads:
            if load.in_step:
                continue
            job = self._job(load, min(self._settings.load_timeout_s, load.limit_s))
            job.marks = self._marks()
            self._queues[0].put(lambda job=job: self._run_load(job))  # type: ignore[misc]
        with self._lock:
            self._report.step = plan.step
            self._released.update(plan.released)
            for name in plan.dropped_loads:
                if name in self._loads:
                    self._drop(self._loads[name])

    def _drop(self, job: _LoadJob) -> None:
        """End a load whose tokens are going to be computed."""
        if job.phase is _Phase.ENDED and job.failed_from is not None:
            job.failed_from = 0
        elif not job.dropped:
            job.stopped = job.dropped = True
            self._count("cancelled_loads", 1)
            if job.phase is _Phase.QUEUED:  # a running one ends after the current chunk
                job.failed_from, job.phase = 0, _Phase.ENDED

    def load_in_step(self, plan: StepPlan) -> None:
        """Copy the loads inside a step, before its layers run. Together they take at most `step_load_s`, until the
        current chunk is copied, and one response of the data plane."""
        loads = [load for load in plan.loads if load.in_step]
        self._unloaded = {load.request for load in loads}
        jobs = [self._job(load, self._settings.step_load_s) for load in loads]
        for job in jobs:
            job.deadline = min(job.deadline, self._clock() + job.load.limit_s)
            job.marks = [None] * len(self._copies)
            self._run_load(job)
            if job.failed_from is None:
                self._unloaded.discard(job.load.request)

    def _job(self, load: Load, limit_s: float) -> _LoadJob:
        job = _LoadJob(load, self._clock() + limit_s, [], self._clock)
        with self._lock:
            self._loads[load.request] = job
        return job

    def begin_saves(self, plan: StepPlan) -> None:
        """Begin the saves of a step, whose results are in the engine's blocks now."""
        started: list[_SaveJob] = []
        with self._lock:  # whether a save that an earlier step waited for still copies
            late = not self._holds_blocks and any(job.save.blocks for jobs in self._saves.values() for job in jobs)
        for save in plan.saves:
            if save.blocks and save.request in self._unloaded:  # computed from blocks that were not loaded
                with self._lock:
                    self._end_report(save.request)
                continue
            nbytes = len(save.keys) // KEY_BYTES * self._chunk_bytes if save.blocks else 0
            job = _SaveJob(save, nbytes, [])
            with self._lock:
                full = self._pending_save_bytes + job.nbytes > self._settings.pending_save_bytes
                if full or (late and save.blocks):
                    self._count("dropped_saves", 1)
                    self._end_report(save.request)
                    continue
                self._pending_save_bytes += job.nbytes
                self._saves.setdefault(save.request, []).append(job)
            job.marks = self._marks()
            started.append(job)
            self._queues[1].put(lambda job=job: self._prepare_save(job))  # type: ignore[misc]
        with self._lock:
            if started and not self._reserves_late:
                prepared = self._lock.wait_for(lambda: all(job.prepared for job in started), RESERVE_WAIT_S)
                self._reserves_late = not prepared
        if not self._holds_blocks:
            self._wait_for([job for job in started if job.save.blocks])

    def _marks(self) -> list[DeviceEvent | None]:
        """Return for each group an event that follows the work that the engine has enqueued. After an error, return no
        events, so that the job fails."""
        try:
            return [group_copies.mark() for group_copies in self._copies]
        except Exception:  # noqa: BLE001  requests wait for this job and for the other jobs of the step
            _log.exception("a copy cannot begin")
            return []

    def before_overwriting(self, requests: Iterable[str]) -> None:
        """End the saves of requests whose blocks are about to be overwritten."""
        with self._lock:
            jobs = [job for name in requests for job in self._saves.get(name, ())]
            for job in jobs:
                job.cancelled = True
        self._wait_for(jobs)

    def _wait_for(self, jobs: Sequence[_SaveJob]) -> None:
        """Wait until none of these saves reads the engine's blocks any more. If none ends for SAVE_WAIT_S, cancel those
        that are left, so that they publish nothing."""
        with self._lock:
            self._end_cancelled(jobs)
            while left := [job for job in jobs if job.phase is not _Phase.ENDED]:
                if self._lock.wait_for(partial(_any_ended, left), SAVE_WAIT_S):
                    continue
                for job in left:
                    job.cancelled = True
                self._end_cancelled(left)
                break
            else:
                return
        _log.error("a save still copies after %s s; it is not published", SAVE_WAIT_S)

    def _end_cancelled(self, jobs: Sequence[_SaveJob]) -> None:
        """End those of these saves that are cancelled and have not begun. The caller holds the lock."""
        for job in jobs:
            if job.phase is _Phase.QUEUED and job.cancelled:
                self._end_save(job)

    def results(self) -> Results:
        """Return the loads and saves that have ended since the last call. Overdue loads end now."""
        results = Results()
        now = self._clock()
        with self._lock:
            for name, job in list(self._loads.items()):
                if job.phase is not _Phase.ENDED and (now >= job.deadline or job.load.in_step):
                    job.stopped = True
                    if job.phase is _Phase.QUEUED:  # a running one ends after the current chunk
                        job.failed_from, job.phase = 0, _Phase.ENDED
                        self._count("late_loads", 1)
                if job.phase is _Phase.ENDED:
                    del self._loads[name]
                    self._take_load(job, results)
            for name in [name for name in self._released if name not in self._saves]:
                self._released.discard(name)
                results.sent.add(name)
        return results

    def _take_load(self, job: _LoadJob, results: Results) -> None:
        load = job.load
        if not load.in_step:  # vLLM does not wait for a message about loads inside a step
            results.received.add(load.request)
        if job.dropped:
            job.failed_from, job.seconds = 0, 0.0  # it says nothing about the speed of loads, or about the blocks
            self._report.loads_dropped.append(load.request)
        loaded = load.tokens if job.failed_from is None else job.failed_from
        if load.in_step:
            self._report.step_loaded_tokens += loaded
            self._report.step_load_seconds += job.seconds
        else:
            self._report.loaded_tokens += loaded
            self._report.load_seconds += job.seconds
        if self._copies[0].layout.space.rank == 0:  # every rank loads its part of the same tokens
            self._count("loaded_tokens", loaded)
            if load.in_step:
                self._count("step_loaded_tokens", loaded)
        self._count("step_load_seconds" if load.in_step else "load_seconds", job.seconds)
        if job.failed_from is None:
            return
        # Block numbers are unique only within a group. If the engine frees blocks behind windows, the tokens before
        # a failed block have no blocks, so vLLM cannot recompute from the failed block on.
        keeps = len(load.blocks) == 1 and self._holds_blocks
        self._report.loads_failed[load.request] = job.failed_from if keeps else 0
        if job.stopped and not job.dropped:
            self._report.loads_late.append(load.request)
        if keeps:
            results.bad_blocks.update(load.blocks[0][job.failed_from // self._copies[0].layout.page_tokens :])
        else:
            results.failed.add(load.request)

    def take_report(self) -> StepReport | None:
        """Return the report for the scheduler's side on the work since the last call; None if nothing happened."""
        with self._lock:
            report, self._report = self._report, StepReport()
        return report or None

    def take_counts(self) -> dict[str, float]:
        """Return the counts since the last call."""
        with self._lock:
            counts, self.counts = self.counts, {}
        return counts

    def close(self) -> None:
        """Cancel queued work, wait for running work, and disconnect."""
        with self._lock:
            for load in self._loads.values():
                load.stopped = True
            for jobs in self._saves.values():
                for job in jobs:
                    job.cancelled = True
        for jobs_queue, thread in zip(self._queues, self._threads, strict=True):  # reservations before saves
            jobs_queue.put(None)
            thread.join(JOIN_S)
            if thread.is_alive():
                _log.error("%s still copies after %s s; the KV caches may be freed meanwhile", thread.name, JOIN_S)
        self._disconnect()

    def _disconnect(self) -> None:
        for group_copies in self._copies:
            group_copies.close()
        self._client.close()

    def _count(self, name: str, by: float) -> None:
        """Add to a counter. The caller holds the lock."""
        self.counts[name] = self.counts.get(name, 0) + by

    # ---- the thread of loads, and loads inside steps

    def _run_load(self, job: _LoadJob) -> None:
        with self._lock:
            if job.phase is not _Phase.QUEUED:
                _close(job.marks)
                return
            job.phase = _Phase.RUNNING
        started = time.perf_counter()
        failed_from: int | None = 0
        try:
            with continued(self._client, job.load.traceparent, "vllm.load") as span:
                failed_from = self._load(job)
                span.set({"larder.tokens": job.load.tokens if failed_from is None else failed_from})
        except Exception:  # noqa: BLE001  a failed load is a miss
            _log.exception("a load failed")
        _close(job.marks)
        with self._lock:
            job.seconds = time.perf_counter() - started
            job.failed_from, job.phase = failed_from, _Phase.ENDED
            self._lock.notify_all()

    def _load(self, job: _LoadJob) -> int | None:
        """Copy the blocks of a load. Return the position of the first token that was not loaded; None if all were."""
        load = job.load
        failed: int | None = None
        total = 0
        for copies, numbers, after in zip(self._copies, load.blocks, job.marks, strict=True):
            page_tokens = copies.layout.page_tokens
            blocks = np.asarray(numbers, np.int64)
            if job.cancelled:  # chunks may have to be mapped and verified before the first one is copied
                failed = 0
                break
            tail = copies.layout.space.tail_blocks
            if tail and not (len(blocks) and blocks[-tail:].all()):
                return 0  # the engine has given no block to the state at the end
            reached, nbytes = copies.load(load.keys, load.skip_tokens // page_tokens, blocks, after, job)
            total += nbytes
            if reached < len(blocks):
                tokens = reached * page_tokens
                failed = tokens if failed is None else min(failed, tokens)
        with self._lock:
            self._count("loaded_bytes", total)
            if failed is not None:
                job.stopped = job.cancelled
                if not job.dropped:
                    self._count("late_loads" if job.stopped else "lost_loads", 1)
        return failed

    # ---- the thread of reservations

    def _prepare_save(self, job: _SaveJob) -> None:
        """Reserve room for a save, so that other engines see what is being written, and pass the save on."""
        try:
            if not job.cancelled:
                with continued(self._client, job.save.traceparent, "vllm.reserve"):
                    self._reserve(job)
        finally:
            with self._lock:
                job.prepared, self._reserves_late = True, False
                self._lock.notify_all()
            self._queues[2].put(lambda: self._run_save(job))

    def _reserve(self, job: _SaveJob) -> None:
        save = job.save
        if not save.blocks:
            self._apply_hints(save)
            return
        count = len(save.keys) // KEY_BYTES
        for space, (copies, numbers) in enumerate(zip(self._copies, save.blocks, strict=True)):
            chunk_bytes = copies.group.chunk_bytes
            batch = max(1, BATCH_BYTES // chunk_bytes)
            runs = present(np.asarray(numbers, np.int64).reshape(count, copies.group.blocks_per_chunk).min(axis=1))
            if not copies.layout.space.allows_gaps:  # a hit needs all chunks, so those behind a missing one are useless
                runs = [(begin, end) for begin, end in runs if not begin]
            for first, last in [
                (first, min(end, first + batch)) for begin, end in runs for first in range(begin, end, batch)
            ]:
                if job.cancelled:
                    return
                start = first * KEY_BYTES
                reservation = self._client.reserve(
                    save.keys[start : last * KEY_BYTES],
                    chunk_bytes,
                    tenant=save.tenant,
                    space=space,
                    parent=save.keys[start - KEY_BYTES : start] if first else save.parent,
                    ttl_s=save.ttl_s,
                    pin_s=save.pin_s,
                    session=save.session,
                )
                job.reservations.append(_Batch(space, first, reservation))

    # ---- the thread of saves

    def _run_save(self, job: _SaveJob) -> None:
        with ExitStack() as stack:  # what is not committed is aborted
            for batch in job.reservations:
                stack.enter_context(batch.reservation)
            with self._lock:
                if job.phase is not _Phase.QUEUED or job.cancelled:
                    _close(job.marks)
                    if job.phase is _Phase.QUEUED:
                        self._end_save(job)
                    return
                job.phase = _Phase.RUNNING
            self._save_reserved(job)

    def _save_reserved(self, job: _SaveJob) -> None:
        started = time.perf_counter()
        try:
            with continued(self._client, job.save.traceparent, "vllm.save") as span:
                self._save(job)
                span.set({"larder.chunks": len(job.save.keys) // KEY_BYTES})
        except Exception:  # noqa: BLE001  a failed save is a later miss
            _log.exception("a save failed")
        _close(job.marks)
        with self._lock:
            self._count("save_seconds", time.perf_counter() - started)
            self._end_save(job)

    def _end_save(self, job: _SaveJob) -> None:
        """Record the end of a save. The caller holds the lock."""
        name = job.save.request
        job.phase = _Phase.ENDED
        self._pending_save_bytes -= job.nbytes
        jobs = self._saves[name]
        jobs.remove(job)
        if not jobs:
            del self._saves[name]
        self._end_report(name)
        self._lock.notify_all()

    def _end_report(self, name: str) -> None:
        self._report.saves_ended[name] = self._report.saves_ended.get(name, 0) + 1

    def _save(self, job: _SaveJob) -> None:
        for batch in job.reservations:
            if job.cancelled:
                return
            copies, numbers, after = self._copies[batch.space], job.save.blocks[batch.space], job.marks[batch.space]
            result = copies.save(batch.reservation, numbers[batch.first * copies.group.blocks_per_chunk :], after, job)
            if result is not None:
                self._count_commit(result, copies.group.chunk_bytes)

    def _apply_hints(self, save: Save) -> None:
        """Apply the hint `pin` and the session of a request to cached chunks. Chunks that were evicted since are not
        stored again."""
        pins, names = save.pin_s and self._client.hint_max_s, save.session and self._client.knows_sessions
        if not pins and not names:
            return
        for space, copies in enumerate(self._copies):
            self._client.reserve(
                save.keys[-copies.layout.space.tail_blocks * KEY_BYTES :],
                copies.group.chunk_bytes,
                tenant=save.tenant,
                space=space,
                parent=b"" if copies.layout.space.allows_gaps else save.parent,
                pin_s=save.pin_s,
                session=save.session,
            ).abort()

    def _count_commit(self, result: CommitResult, chunk_bytes: int) -> None:
        with self._lock:
            self._count("saved_blocks", result.blocks)
            self._count("saved_bytes", result.blocks * chunk_bytes)
            for code, blocks in result.refused.items():
                self._count(f"refused_blocks:{code.name.lower()}", blocks)


def _any_ended(jobs: Sequence[_SaveJob]) -> bool:
    return any(job.phase is _Phase.ENDED for job in jobs)


def _close(marks: Sequence[DeviceEvent | None]) -> None:
    """Close events."""
    for mark in marks:
        if mark is not None:
            with suppress(DeviceError):
                mark.close()


def _run(jobs: queue.SimpleQueue[Callable[[], None] | None], when_idle: Callable[[], None] | None) -> None:
    """Carry out jobs until None arrives. Without jobs, call `when_idle` in every interval."""
    while True:
        try:
            job = jobs.get(timeout=None if when_idle is None else MAINTENANCE_S)
        except queue.Empty:
            job = when_idle
        if job is None:
            return
        try:
            job()
        except Exception:  # noqa: BLE001  the thread must go on
            _log.exception("a job of the connector failed")
