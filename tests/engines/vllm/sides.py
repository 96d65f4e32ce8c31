"""One engine without vLLM: the scheduler's side, the workers' sides, and the steps that connect them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
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
            evict=self.evicted.update if len(caches) == 1 else None,
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
        plan = self.scheduler.plan(scheduled or {}, lambda name: [self.blocks[name]], preempted)
        return self.carry_out(plan)

    def carry_out(self, plan: StepPlan) -> list[Results]:
        found = []
        for worker in self.workers:
            worker.before_overwriting(plan.cancelled)
            worker.begin_loads(plan)
            worker.load_in_step(plan)
            worker.begin_saves(plan)
            found.append(worker.results())
            report = worker.take_report()
            self.scheduler.stepped(report, found[-1].received)
        self._sent.update(name for each in found for name in each.sent)
        return found

    def compute(self, request: Request, blocks: list[int], seed: int) -> None:
        """Compute a whole request, and wait until its saves have ended."""
        self.blocks[request.request_id] = blocks
        self.scheduler.matched_tokens(request, 0)
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

    def load(self, request: Request, blocks: list[int], local: int = 0) -> tuple[int, list[Results]]:
        """Look a request up and load its cached tokens. Return their number, and the results of each worker."""
        self.blocks[request.request_id] = blocks
        tokens = self.scheduler.matched_tokens(request, local)
        if not tokens:
            return 0, []
        self.scheduler.allocated(request, [blocks], tokens)
        done: dict[int, Results] = {}

        def ended() -> bool:
            done.update({at: found for at, found in enumerate(self.run()) if found.received})
            return len(done) == len(self.workers)

        wait_for(ended, "the load ends")
        return tokens, [done[at] for at in range(len(self.workers))]

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.scheduler.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_step(clock: Clock) -> Iterator[Callable[..., Step]]:
    """Return a function, as in `make_step(plane, ranks=2, timeout_s=1.0)`. Its engines end with the test."""
    made: list[Step] = []

    def new(plane: Plane, ranks: int = 1, **settings: Any) -> Step:
        made.append(Step(plane, [cache(0, rank, ranks) for rank in range(ranks)], clock, **settings))
        return made[-1]

    yield new
    for each in made:
        each.close()
