"""Measure engines with the same requests and collect the samples. The engines take turns within each round."""

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from random import Random
from typing import Any

import msgspec
import numpy as np

from benchmarks.engines.lineup import BARE, MAX_TOKENS, Engine, Lineup

VOCABULARY = 4096
BATCH, PROMPT_TOKENS, NEW_TOKENS = 8, 1000, 16
KILLED_S = 10.0
"""Longest time until a killed process has ended."""
TTFT_BOUND_S = 1.0
UNLOADED_TIMES = 3
"""The second bound of a first token in time: this many times the shortest one of an engine without load."""

Samples = dict[str, dict[str, list[float]]]
"""Samples by figure and engine. Samples of one round have the same position, except those of `excess`, which has one
for each load: how much longer its request waited than the computation of its tokens takes."""


class Questions(msgspec.Struct, frozen=True):
    """Users who ask one question after another, each about a long text of their own."""

    users: int = 14
    history: tuple[int, int] = (1800, 2500)
    """Shortest and longest text, in tokens. All texts together are several times as long as an engine's own cache."""
    question: int = 64
    answer: int = 16
    rates: tuple[float, ...] = (2.0, 3.5)
    """Questions a second of all users together. vLLM alone is measured with the lowest rate only: it computes all
    texts, so its queue grows at any rate."""
    seconds: float = 10.0
    """How long questions arrive, in each round."""
    answer_s: float = 10.0
    """How long they may be answered after that. Then they are cancelled."""


class Effort(msgspec.Struct, frozen=True):
    """Number of repetitions and sizes of a measurement."""

    sets: int
    """Number of sets of processes, which are measured one after another. Two processes of one program differ by some
    percent for as long as they run, so one set is not enough."""
    rounds: int
    """Number of rounds with each set of processes."""
    busy: int
    """Number of other processes that compute all the time."""
    pool_bytes: int
    questions: Questions = Questions()


FULL = Effort(sets=2, rounds=10, busy=0, pool_bytes=4 << 30)
QUICK = Effort(sets=1, rounds=2, busy=0, pool_bytes=4 << 30, questions=Questions(seconds=6, answer_s=4))


class Comparison:
    """Samples of all sets."""

    def __init__(self, effort: Effort) -> None:
        self.samples: Samples = {}
        """Of complete rounds."""
        self.loads: list[float] = []
        """Load average of the machine at the end of each round."""
        self._round: Samples = {}
        self._effort = effort
        self._random = Random(20)
        self._texts = [
            self._tokens(self._random.randint(*effort.questions.history)) for _ in range(effort.questions.users)
        ]

    def measure(self, lineup: Lineup) -> Iterator[Samples]:
        """Measure all figures with one set of processes. Yield the samples of each round when it has ended."""
        warm, texts = self._batch(), [{"at": 0.0, "tokens": text, "new": 1} for text in self._texts]
        lineup.each(lambda engine: engine.do("serve", requests=warm))
        lineup.each(lambda engine: engine.do("serve", requests=texts), without=[BARE])
        with _busy(self._effort.busy):
            for _ in range(self._effort.rounds):
                self._round = defaultdict(lambda: defaultdict(list))
                self._no_reuse(lineup)
                bound, token_s = self._unloaded(lineup)
                for rate in self._effort.questions.rates:
                    self._measure_rate(lineup, rate, bound, token_s)
                self.loads.append(os.getloadavg()[0])
                for figure, engines in self._round.items():
                    for name, values in engines.items():
                        self.samples.setdefault(figure, {}).setdefault(name, []).extend(values)
                yield self._round

    def _no_reuse(self, lineup: Lineup) -> None:
        requests = self._batch()
        for name, answer in lineup.each(lambda engine: engine.do("serve", requests=requests)).items():
            self._note(name, "", **{figure: answer[figure] for figure in ("seconds", "settled", "cpu")})

    def _unloaded(self, lineup: Lineup) -> tuple[float, float | None]:
        """Let each engine answer one question without load. Return when a first token is in time, and how long vLLM
        alone computes a token of the question's prompt; None if it is not measured. Both are in seconds."""
        question: dict[str, Any] = {
            "at": 0.0,
            "tokens": self._texts[0] + self._tokens(self._effort.questions.question),
            "new": self._effort.questions.answer,
        }
        answers = lineup.each(lambda engine: self._serve(engine, [question]))
        times = {name: answer["first"][0] for name, answer in answers.items()}
        for name, first in times.items():
            self._note(name, "", unloaded=first)
        token_s = times[BARE] / len(question["tokens"]) if BARE in times else None
        return UNLOADED_TIMES * min(times.values(), default=inf), token_s

    def _measure_rate(self, lineup: Lineup, rate: float, bound: float, token_s: float | None) -> None:
        """Let each engine answer questions at a rate. `bound` and `token_s`: what `_unloaded` returns."""
        settings = self._effort.questions
        questions, limit_s = self._questions(rate), settings.seconds + settings.answer_s
        without = [BARE] if rate > min(settings.rates) else []
        answers = lineup.each(lambda engine: self._serve(engine, questions, limit_s=limit_s), without)
        tokens = sum(len(question["tokens"]) for question in questions)
        for name, answer in answers.items():
            # Without an answer, the time is a lower bound.
            times = zip(questions, answer["first"], strict=True)
            first = np.array([limit_s - question["at"] if time is None else time for question, time in times])
            self._note(
                name,
                f"@{rate:g}",
                mean=float(first.mean()),
                p50=float(np.percentile(first, 50)),
                p90=float(np.percentile(first, 90)),
                goodput=float((first <= TTFT_BOUND_S).sum()) / answer["seconds"],
                goodput_unloaded=float((first <= bound).sum()) / answer["seconds"],
                unanswered=answer["first"].count(None) / len(questions),
                found=sum(answer["cached"]) / tokens,
                cpu=answer["cpu"],
            )
            if token_s is not None:
                loads = [load for load in answer["loads"] if load is not None]
                self._round[f"excess@{rate:g}"][name] += [seconds - tokens * token_s for tokens, seconds in loads]

    def _serve(self, engine: Engine, requests: list[dict[str, Any]], **limits: float) -> Any:
        """Let an engine answer requests, with an empty cache of its own at first."""
        engine.do("forget")
        return engine.do("serve", requests=requests, **limits)

    def _questions(self, rate: float) -> list[dict[str, Any]]:
        """Return questions with random arrivals, each with all that its user has read, asked and been answered before.
        A user who has no room left begins again with the text."""
        settings = self._effort.questions
        conversations = [list(text) for text in self._texts]
        questions: list[dict[str, Any]] = []
        at = 0.0
        while (at := at + self._random.expovariate(rate)) < settings.seconds or not questions:
            user = self._random.randrange(settings.users)
            if len(conversations[user]) + settings.question + settings.answer > MAX_TOKENS:
                conversations[user] = list(self._texts[user])
            conversations[user] += self._tokens(settings.question)
            questions.append({"at": at, "tokens": list(conversations[user]), "new": settings.answer})
            conversations[user] += self._tokens(settings.answer)  # engines differ in what they answer
        return questions

    def _batch(self) -> list[dict[str, Any]]:
        return [{"at": 0.0, "tokens": self._tokens(PROMPT_TOKENS), "new": NEW_TOKENS} for _ in range(BATCH)]

    def _tokens(self, count: int) -> list[int]:
        """Return tokens that no engine has seen."""
        return [self._random.randrange(3, VOCABULARY) for _ in range(count)]

    def _note(self, name: str, where: str, **values: float) -> None:
        for figure, value in values.items():
            self._round[figure + where][name].append(value)


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Keep processors busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait(KILLED_S)
