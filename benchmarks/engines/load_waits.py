"""How long requests wait for the loads of a connector, by the calls that vLLM makes."""

import time
from collections.abc import Callable
from typing import Any


class LoadWaits:
    """Loads of an engine whose scheduler and worker are in this process.

    The wait of a request begins when its load is planned, or before that when its look-up first answers that it has to
    wait. It ends when the scheduler lets the request compute, or, for a load inside a step, when all loads inside the
    step have ended.
    """

    def __init__(self, scheduler: Any, worker: Any, clock: Callable[[], float] = time.perf_counter) -> None:
        """Watch the connector of the scheduler and that of the worker."""
        self._clock = clock
        self._loads: dict[str, tuple[int, float]] = {}
        """Tokens and seconds of each request that loads."""
        self._began: dict[str, float] = {}
        self._in_step: list[str] = []
        beside: dict[str, bool] = {}
        look_up, allocate, load = (
            scheduler.get_num_new_matched_tokens,
            scheduler.update_state_after_alloc,
            worker.start_load_kv,
        )

        def looked_up(request: Any, local_tokens: int) -> tuple[int | None, bool]:
            tokens, beside[request.request_id] = look_up(request, local_tokens)
            if tokens is None:
                self._began.setdefault(request.request_id, clock())
            return tokens, beside[request.request_id]

        def allocated(request: Any, blocks: Any, tokens: int) -> None:
            name = request.request_id
            began = clock()
            allocate(request, blocks, tokens)
            if not tokens:
                self._end(name)
                return
            self._began.setdefault(name, began)
            before, seconds = self._loads.get(name, (0, 0.0))
            self._loads[name] = before + tokens, seconds
            if not beside[name]:
                self._in_step.append(name)

        def loaded(*arguments: Any, **options: Any) -> None:
            load(*arguments, **options)
            while self._in_step:
                self._end(self._in_step.pop())

        scheduler.get_num_new_matched_tokens, scheduler.update_state_after_alloc = looked_up, allocated
        worker.start_load_kv = loaded

    def _end(self, name: str) -> None:
        began = self._began.pop(name, None)
        if began is not None and name in self._loads:
            tokens, seconds = self._loads[name]
            self._loads[name] = tokens, seconds + self._clock() - began

    def take(self) -> dict[str, tuple[int, float]]:
        """Return, for each request that has loaded since the last call, the number of tokens that it was to load and
        how long it has waited, in seconds. Waits that have not ended, because their request was aborted, end now."""
        for name in list(self._began):
            self._end(name)
        loads, self._loads = self._loads, {}
        return loads
