"""An in-process vLLM on CPU, driven line by line: a JSON request on the standard input, a JSON answer on the standard
output. The argument is a JSON object: options of `LLM`, with those of `KVTransferConfig` or null.

    {"do": "serve", "requests": [{"at": 0.0, "tokens": [...], "new": 16}], "limit_s": 60.0}
        `at`: arrival in seconds from now; `limit_s`, optional: requests that have not ended by then are cancelled
    {"do": "forget"}   empty the engine's own prefix cache
"""

import json
import os
import resource
import sys
import time
from collections import deque
from math import inf
from typing import Any

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_STREAM="ext://sys.stderr",
)
if "LMCache" in sys.argv[1]:
    # LMCache imports numba before vLLM looks through every module for `__dict__`, and this object of llvmlite's answers
    # any name with a function that is no dict. Nothing of vLLM or LMCache is changed.
    import llvmlite.binding.ffi

    llvmlite.binding.ffi.lib._fntab["__dict__"] = {}

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group
from vllm.sampling_params import RequestOutputKind

from benchmarks.engines.load_waits import LoadWaits

IDLE_S = 60.0


class Served:
    """An engine that carries out the requests of lines."""

    def __init__(self, options: dict[str, Any]) -> None:
        transfer = options.pop("transfer")
        llm = LLM(**options, kv_transfer_config=transfer and KVTransferConfig(**transfer))
        self.engine = llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self._step, self.core.step_fn = self.core.step_fn, self._paced
        self._waits = transfer and LoadWaits(self.core.scheduler.get_kv_connector(), get_kv_transfer_group())
        self._count = 0

    def _paced(self) -> Any:
        """Make a step. If it computed nothing, make the pause that vLLM's server makes then."""
        outputs, executed = self._step()
        if not executed and self.core.scheduler.has_requests():
            time.sleep(0.001)
        return outputs, executed

    def serve(self, requests: list[dict[str, Any]], limit_s: float = inf) -> dict[str, Any]:
        """Run requests as they arrive. Answer, in seconds: `seconds` until the last token, `settled` until all saves
        have ended, `cpu` time of all threads until then, and for each request `first`, from its arrival to its first
        token (null if it was cancelled before); the `cached` tokens of its prompt; and in `loads` the number of tokens
        that it was to load and how long it waited for them (null if nothing).
        """
        waiting = deque(sorted(enumerate(requests), key=lambda numbered: numbered[1]["at"]))
        first: dict[int, float] = {}
        cached: dict[int, int] = {}
        started: list[str] = []
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        while waiting or self.engine.has_unfinished_requests():
            now = time.perf_counter() - began
            if now >= limit_s:
                self.engine.abort_request(started)
                break
            while waiting and waiting[0][1]["at"] <= now:
                started.append(self._add(*waiting.popleft()))
            if not self.engine.has_unfinished_requests():
                time.sleep(waiting[0][1]["at"] - now)
                continue
            for output in self.engine.step():
                number = int(output.request_id.partition("-")[2])
                if number not in first:
                    first[number] = time.perf_counter() - began - requests[number]["at"]
                    cached[number] = output.num_cached_tokens or 0
        seconds = time.perf_counter() - began
        waits = self._waits.take() if self._waits else {}
        self._idle()
        after = resource.getrusage(resource.RUSAGE_SELF)
        numbers = range(len(requests))
        loads = {int(name.split("-")[1]): load for name, load in waits.items()}  # vLLM appends to the names of requests
        return {
            "seconds": seconds,
            "settled": time.perf_counter() - began,
            "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            "first": [first.get(number) for number in numbers],
            "cached": [cached.get(number, 0) for number in numbers],
            "loads": [loads.get(number) for number in numbers],
        }

    def _add(self, number: int, request: dict[str, Any]) -> str:
        """Begin a request and return its name."""
        self._count += 1
        name = f"{self._count}-{number}"
        params = SamplingParams(
            temperature=0,
            detokenize=False,
            ignore_eos=True,
            max_tokens=request["new"],
            output_kind=RequestOutputKind.DELTA,
        )
        self.engine.add_request(name, {"prompt_token_ids": request["tokens"]}, params)
        return name

    def _idle(self) -> None:
        """Step, as a server does, until saves have ended and blocks are free."""
        deadline = time.monotonic() + IDLE_S
        while self.core.scheduler.has_requests():
            if time.monotonic() > deadline:
                raise TimeoutError(f"saves have not ended within {IDLE_S:.0f} s")
            self.engine.step()

    def forget(self) -> bool:
        """Return whether the engine's own prefix cache is empty now."""
        return bool(self.engine.reset_prefix_cache())


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever is printed is no answer
    served = Served(json.loads(sys.argv[1]))
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(getattr(served, request.pop("do"))(**request)), file=answers)


if __name__ == "__main__":
    main()
