"""One engine without vLLM: the scheduler's side, the workers' sides, and the steps that connect them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from dataplane.client.tiers import TierHits
from dataplane.engines.vllm.messages import StepPlan
from dataplane.engines.vllm.request_keys import RequestKeys
from dataplane.engines.vllm.scheduler import SchedulerSide
from dataplane.engines.vllm.settings import ConnectorSettings
from dataplane.engines.vllm.worker import Results, WorkerSide
from tests.clock import Clock
from tests.dataplane.plane import Plane, wait_for
from tests.engines.vllm.fakes import CHUNK_TOKENS, PAGE_TOKENS, Cache, Request, cache


class Step:
    """One engine: the scheduler's side, the workers' sides, and the steps that connect them."""

    def __init__(self, plane: Plane, caches: list[Cache], clock: Callable[[], float], **settings: Any) -> None:
        options: dict[str, Any] = {
            "socket": plane.socket, "chunk_tokens": CHUNK_TOKENS, "timeout_s": 5.0, "min_load_tokens": 0, **settings,
        }  # fmt: skip
        known = ConnectorSettings(**options)
        self.caches = caches
        self.evicted: set[int] = set()
        """Blocks that were removed from the engine's own prefix cache."""
        self.scheduler = SchedulerSide(
            known,
            group="engine",
            engine="scheduler",
            block_tokens=PAGE_TOKENS,
            may_load_in_steps=len(caches) == 1,
            evict=self.evicted.update,
            clock=clock,
        )
        self.workers = [
            WorkerSide(known, [each.copies], group="engine", engine="worker", clock=clock) for each in caches
        ]
        self.scheduler.workers_ready([[each.copies.layout] for each in caches])
        self.blocks: dict[str, list[int]] = {}
        self._sent: Counter[str] = Counter()

    @property
    def sent(self) -> set[str]:
        """Released requests whose saves have ended in all workers."""
        return {name for name, count in self._sent.items() if count == len(self.workers)}

    def run(self, scheduled: dict[str, int] | None = None, preempted: tuple[str, ...] = ()) -> list[Results]:
        """Make a step, and return the results of each worker."""
        return self.carry_out(self.plan(scheduled, preempted))

    def plan(self, scheduled: dict[str, int] | None = None, preempted: tuple[str, ...] = ()) -> StepPlan:
        return self.scheduler.plan(scheduled or {}, lambda name: [self.blocks[name]], preempted)

    def carry_out(self, plan: StepPlan) -> list[Results]:
        found = []
        for worker in self.workers:
            worker.before_overwriting(plan.cancelled)
            worker.begin_loads(plan)
            worker.load_in_step(plan)
            if plan.step:  # vLLM up to 0.30 does not call it for a step that computes nothing
                worker.begin_saves(plan)
            found.append(worker.results())
            report = worker.take_report()
            self.scheduler.stepped(report, found[-1].received)
        self._sent.update(name for each in found for name in each.sent)
        return found

    def compute(self, request: Request, blocks: list[int], seed: int) -> None:
        """Compute a whole request, and wait until its saves have ended."""
        self.track(request, blocks)
        self.scheduler.allocated(request, [blocks], 0)
        for at, each in enumerate(self.caches):
            each.fill(blocks, seed + at)
        self.run({request.request_id: request.num_tokens})
        self.finish(request)

    def finish(self, request: Request) -> None:
        waits, _ = self.scheduler.finished(request)
        if waits:
            wait_for(lambda: self.run() and request.request_id in self.sent, "the saves end")

    def found(self, request: Request) -> int:
        """Return the number of tokens that the scheduler finds for a request, which must not wait."""
        tokens = self.scheduler.matched_tokens(request, 0)
        assert tokens is not None
        return tokens

    def lookup(self, request: Request) -> TierHits:
        """Look up the chunks of a request, without a request that waits."""
        client = self.scheduler._client
        assert client is not None
        keys = RequestKeys(request, CHUNK_TOKENS).extend(request, request.num_tokens)
        return client.lookup_tiers(keys, counted=False)

    def track(self, request: Request, blocks: list[int]) -> int | None:
        """Look a request up that gets these blocks, as vLLM does before it computes the request."""
        self.blocks[request.request_id] = blocks
        return self.scheduler.matched_tokens(request, 0)

    def begin_load(self, request: Request, blocks: list[int], local: int = 0) -> int:
        """Look a request up and schedule a load of its cached tokens. Return their number."""
        self.blocks[request.request_id] = blocks
        tokens = self.scheduler.matched_tokens(request, local)
        assert tokens is not None
        if tokens:
            self.scheduler.allocated(request, [blocks], tokens)
        return tokens

    def load(self, request: Request, blocks: list[int], local: int = 0) -> tuple[int, list[Results]]:
        """Load the cached tokens of a request. Return their number, and the results of each worker."""
        tokens = self.begin_load(request, blocks, local)
        return tokens, self.end_load(self.run()) if tokens else []

    def end_load(self, results: list[Results]) -> list[Results]:
        """Make steps until each worker has reported the end of a load. Return the results with the reports."""
        done: dict[int, Results] = {}

        def ended() -> bool:
            nonlocal results
            done.update({at: each for at, each in enumerate(results) if each.received})
            if len(done) < len(self.workers):
                results = self.run()
            return len(done) == len(self.workers)

        wait_for(ended, "the load ends")
        return [done[at] for at in range(len(self.workers))]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.scheduler.close()


Make = Callable[..., Step]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_step(clock: Clock) -> Iterator[Make]:
    """Return a function, as in `make_step(plane, ranks=2, timeout_s=1.0)`. Its engines end with the test."""
    made: list[Step] = []

    def new(plane: Plane, ranks: int = 1, **settings: Any) -> Step:
        made.append(Step(plane, [cache(0, rank, ranks) for rank in range(ranks)], clock, **settings))
        return made[-1]

    yield new
    for each in made:
        each.close()


@pytest.fixture
def make_engine(make_step: Make, plane: Plane) -> Make:
    return partial(make_step, plane)


@pytest.fixture
def engine(make_engine: Make) -> Step:
    return make_engine()
