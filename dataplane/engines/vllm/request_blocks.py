"""The engine's blocks of each running request, for releases of vLLM in which a connector cannot ask for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RequestBlocks:
    """The blocks by the scheduler's outputs, which do not say which blocks the engine frees behind a window."""

    def __init__(self) -> None:
        self._blocks: dict[str, tuple[list[int], ...]] = {}

    def follow(self, scheduler_output: Any) -> None:
        """Apply one output: requests that begin, continue with more blocks, resume with other blocks, and end."""
        for name in (*scheduler_output.finished_req_ids, *(scheduler_output.preempted_req_ids or ())):
            self._blocks.pop(name, None)
        for request in scheduler_output.scheduled_new_reqs:
            self._blocks[request.req_id] = tuple(list(numbers) for numbers in request.block_ids)
        running = scheduler_output.scheduled_cached_reqs
        for name, added in zip(running.req_ids, running.new_block_ids, strict=True):
            if name in running.resumed_req_ids:
                self._blocks[name] = tuple(list(numbers) for numbers in added or ())
            elif added:
                for numbers, new in zip(self._blocks.get(name, ()), added, strict=False):
                    numbers.extend(new)

    def of(self, request: str) -> Sequence[Sequence[int]] | None:
        """Return the blocks of a request for each KV-cache group; None for a request that does not run."""
        return self._blocks.get(request)
