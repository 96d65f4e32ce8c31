"""Measure engines with the same requests and collect the samples. The engines take turns within each round."""

from collections import defaultdict
from random import Random
from typing import Any

import msgspec
import numpy as np

from benchmarks.engines.lineup import BARE, MAX_TOKENS, Engine, Lineup
from dataplane.replay.trace import TraceRequest

VOCABULARY = 4096
BATCH, PROMPT_TOKENS, NEW_TOKENS = 8, 1000, 16
PREFIX_TOKENS = MAX_TOKENS - 1
TTFT_BOUND_S = 1.0
TRACE_SCALE = 8
"""Prompts and outputs are this many times shorter than those of the trace."""
TRACE_BLOCK = 512 // TRACE_SCALE
MOST_NEW = 128

Samples = dict[str, dict[str, list[float]]]
"""Samples by figure and engine. Samples of one round have the same position."""


class Effort(msgspec.Struct, frozen=True):
    """Number of repetitions and sizes of a measurement."""

    sets: int
    """Number of sets of processes, which are measured one after another. Two processes of one program differ by some
    percent for as long as they run, so one set is not enough."""
    rounds: int
    """Number of rounds with each set of processes."""
    conversations: int
    """Divisor of the number of conversations: one in this many is replayed, and each set replays another one."""
    pool_bytes: int


FULL = Effort(sets=12, rounds=3, conversations=120, pool_bytes=1 << 30)
QUICK = Effort(sets=1, rounds=2, conversations=400, pool_bytes=512 << 20)


class Comparison:
    """Samples of all sets."""

    def __init__(self, effort: Effort, trace: list[TraceRequest]) -> None:
        self.samples: Samples = defaultdict(lambda: defaultdict(list))
        self._effort = effort
        self._trace = trace
        self._sets = 0
        self._random = Random(20)

    def measure(self, lineup: Lineup) -> None:
        """Measure all figures with one set of processes."""
        warm, again = self._batch(), self._prompt(PREFIX_TOKENS)
        lineup.each(lambda engine: [engine.do("serve", requests=warm), _cached(engine, again)])
        for _ in range(self._effort.rounds):
            self._no_reuse(lineup)
        for _ in range(self._effort.rounds):
            self._cached_prefix(lineup)
        chosen = [each for each in self._trace if _conversation(each) % self._effort.conversations == self._sets]
        self._sets += 1
        if chosen:
            self._goodput(lineup, chosen)

    def _no_reuse(self, lineup: Lineup) -> None:
        requests = self._batch()
        for name, answer in lineup.each(lambda engine: engine.do("serve", requests=requests)).items():
            self._note(
                name,
                batch=answer["seconds"],
                **{figure: answer[figure] for figure in ("settled", "cpu", "thread", "faults")},
            )

    def _cached_prefix(self, lineup: Lineup) -> None:
        request = self._prompt(PREFIX_TOKENS)
        for name, answer in lineup.each(lambda engine: _cached(engine, request)).items():
            self._note(name, ttft=answer["first"][0], ttft_tokens=answer["cached"][0])

    def _goodput(self, lineup: Lineup, trace: list[TraceRequest]) -> None:
        """Serve the trace's requests with its arrival times. They are scaled so that the last request arrives when the
        engine without a connector would have served all of them, had they all been there from the start."""
        at_once = lineup.engines[BARE].do("serve", requests=self._scaled(trace, 0.0))
        span = trace[-1].timestamp - trace[0].timestamp
        requests = self._scaled(trace, at_once["seconds"] / max(span, 1.0))
        lineup.each(lambda engine: engine.do("forget"))
        for name, answer in lineup.each(lambda engine: engine.do("serve", requests=requests)).items():
            first = answer["first"]
            in_time = sum(each <= TTFT_BOUND_S for each in first)
            tokens = sum(len(each["tokens"]) for each in requests)
            self._note(
                name,
                goodput=in_time / answer["seconds"],
                in_time=in_time / len(first),
                goodput_ttft=float(np.median(first)),
                requests=len(requests),
                found=sum(answer["cached"]) / tokens,
            )

    def _scaled(self, trace: list[TraceRequest], seconds_per_ms: float) -> list[dict[str, Any]]:
        """Return the trace's requests with shorter prompts. Equal blocks have equal tokens."""
        seed = self._random.random()
        tokens: dict[int, list[int]] = {}
        requests = []
        for each in trace:
            new = min(MOST_NEW, max(1, each.output_length // TRACE_SCALE))
            prompt: list[int] = []
            for number in each.hash_ids:
                if number not in tokens:
                    chance = Random(f"{seed}/{number}")
                    tokens[number] = [chance.randrange(3, VOCABULARY) for _ in range(TRACE_BLOCK)]
                prompt += tokens[number]
            length = min(max(1, each.input_length // TRACE_SCALE), MAX_TOKENS - new)
            at = (each.timestamp - trace[0].timestamp) * seconds_per_ms
            requests.append({"at": at, "tokens": prompt[:length], "new": new})
        return requests

    def _batch(self) -> list[dict[str, Any]]:
        return [self._prompt(PROMPT_TOKENS, NEW_TOKENS) for _ in range(BATCH)]

    def _prompt(self, tokens: int, new: int = 1) -> dict[str, Any]:
        """Return a request that no engine has seen."""
        return {
            "at": 0.0, "tokens": [self._random.randrange(3, VOCABULARY) for _ in range(tokens)], "new": new,
        }  # fmt: skip

    def _note(self, name: str, **values: float) -> None:
        for figure, value in values.items():
            self.samples[figure][name].append(value)


def _cached(engine: Engine, request: dict[str, Any]) -> Any:
    """Serve a request twice and empty the engine's cache in between. Return the answer to the second one."""
    engine.do("forget")
    engine.do("serve", requests=[request])
    engine.do("forget")
    return engine.do("serve", requests=[request])


def _conversation(request: TraceRequest) -> int:
    """Return a number that the requests of one conversation share: the second block of the prompt, because in
    Mooncake's traces all prompts begin with the same block."""
    return request.hash_ids[:2][-1] if request.hash_ids else 0
