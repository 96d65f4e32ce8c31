"""The threads of one tier, and the calls that run on them. Copies to the tier and loads from it have threads of their
own, so that neither waits for the other, and look-ups wait for neither. Deletions run on the threads of copies, probes
on those of loads, and syncs, which shared tiers lack, on those of look-ups.

A call that does not return keeps its memory: the pool does not reuse it before the thread is done. `hangs_s` says how
long the oldest call has run, and the mover takes a tier that hangs out of service.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import inf
from typing import NamedTuple, TypeVar

import structlog

from dataplane.core.tiering.jobs import JobBlock, JobReason, JobState, TierJob
from dataplane.core.tiering.outcomes import HUNG
from dataplane.io.loop import Loop
from dataplane.protocol.stored_blocks import BlockName, CopyEnd, Loaded, Outcome, StoredBlock
from dataplane.tiering.background import Background
from dataplane.tiering.encoding import CALL_S, store_blocks
from dataplane.tiers.codecs.codec import BlockCodec
from dataplane.tiers.tier import BlockLoad, Tier, TierError

THREADS = 2
HANG_S = 10.0
"""A call that has not returned this long after its deadline hangs."""
LOOK_UP_S = 2.0
"""Deadline of a call that asks a shared tier for blocks."""
T = TypeVar("T")
log = structlog.stdlib.get_logger()


class TierWorker:
    """Runs calls of one tier on threads, and reports their ends on the loop."""

    def __init__(self, loop: Loop, background: Background, name: str, tier: Tier) -> None:
        self.tier = tier
        self._loop, self._background, self._name = loop, background, name
        self._pools = {
            kind: ThreadPoolExecutor(THREADS, f"larder-tier-{name}-{kind}") for kind in ("copy", "load", "look")
        }
        self._running: dict[int, float] = {}
        self._last = 0
        self._closed = self._retiring = False
        self._retired = threading.Event()

    def submit(self, kind: str, work: Callable[[Tier], T], done: Callable[[T | TierError], None]) -> Future[None]:
        """Run `work` on a thread of its kind (`copy`, `load` or `look`), then `done` on the loop with its result, or
        with the failure of the whole tier. A call that is cancelled before it runs calls neither."""
        self._last += 1
        return self._pools[kind].submit(self._run, self._last, work, done)

    def hangs_s(self) -> float:
        """Return how long the oldest call that runs has taken so far; 0 if none runs."""
        began = min(list(self._running.values()), default=None)
        return 0.0 if began is None else time.monotonic() - began

    def _run(self, number: int, work: Callable[[Tier], T], done: Callable[[T | TierError], None]) -> None:
        self._running[number] = time.monotonic()
        result: T | TierError
        try:
            if self._retiring:
                raise TierError("the tier is being closed")
            result = work(self.tier)
        except TierError as error:
            result = error
        except Exception as error:  # a defect of a tier must not end the data plane
            log.exception("tier.call_crashed")
            result = TierError(f"{type(error).__name__}: {error}")
        finally:
            self._running.pop(number, None)
        self._loop.call_from_thread(partial(self._report, done, result))

    def _report(self, done: Callable[[T], None], result: T) -> None:
        if not self._closed:
            done(result)

    def retire(self, done: Callable[[], None]) -> None:
        """Close the tier when the calls under way have ended. Calls that have not begun fail. Then call `done` on the
        loop."""
        self._retiring = True
        self._background.run(f"larder-tier-{self._name}-close", self._retire, lambda result: done())

    def _retire(self) -> None:
        for pool in self._pools.values():
            pool.shutdown(wait=True)
        try:
            self.tier.close()
        except Exception:  # a defect of a tier must not end the data plane
            log.exception("tier.close_crashed")
        self._retired.set()

    def close(self, timeout_s: float) -> bool:
        """End the threads, and close the tier. Calls that do not return in time end with the process. Return
        whether all threads have ended."""
        self._closed = True
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)
        deadline = time.monotonic() + timeout_s
        while self._running and time.monotonic() < deadline:
            time.sleep(0.005)
        if self._retiring:
            return self._retired.wait(max(0.0, deadline - time.monotonic()))
        if not self._running:
            self.tier.close()
        return not self._running


class TimedLoads(NamedTuple):
    """The end of a call that loads, and when it ran (seconds of `time.monotonic`)."""

    results: list[Loaded]
    began: float
    ended: float


def load_job(job: TierJob, blocks: Sequence[JobBlock], deadline: float, tier: Tier) -> TimedLoads:
    """Load blocks of a job. `deadline` is a time of `time.monotonic`; inf: CALL_S from now."""
    began = time.monotonic()
    if job.state is JobState.HUNG:
        return TimedLoads([Loaded(Outcome.LATE)] * len(blocks), began, began)
    loads = [BlockLoad(block.name, block.memory) for block in blocks]
    return TimedLoads(tier.load(loads, began + CALL_S if deadline == inf else deadline), began, time.monotonic())


def store_job(job: TierJob, blocks: Sequence[JobBlock], codec: BlockCodec | None, tier: Tier) -> list[CopyEnd]:
    """Store blocks of a job."""
    encoded_only = job.reason is JobReason.ENCODE
    if job.state is JobState.HUNG:  # blocks to be encoded again are left as they are
        end = CopyEnd(Outcome.FAILED, not_compressed=HUNG) if encoded_only else CopyEnd(Outcome.LATE)
        return [end] * len(blocks)
    return store_blocks(blocks, codec, tier, encoded_only=encoded_only)


def look_up_blocks(names: Sequence[BlockName], tier: Tier) -> list[StoredBlock | None]:
    return tier.lookup(names, time.monotonic() + LOOK_UP_S)


def delete_blocks(names: Sequence[BlockName], tier: Tier) -> list[Outcome]:
    return tier.delete(names, time.monotonic() + CALL_S)


def probe(tier: Tier) -> str:
    """Return why a tier is not healthy; empty if it is."""
    health = tier.health(time.monotonic() + HANG_S)
    return "" if health.ok else health.reason or "the tier is not healthy"
