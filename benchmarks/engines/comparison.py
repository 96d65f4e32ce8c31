"""Measure engines with the same requests and collect the samples. The engines take turns within each round."""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import msgspec
import numpy as np

from benchmarks.engines.lineup import MAX_TOKENS, Engine, Lineup

VOCABULARY = 4096
BATCH, PROMPT_TOKENS, NEW_TOKENS = 8, 1000, 16
KILLED_S = 10.0
"""Longest time until a killed process has ended."""
TTFT_BOUND_S = 1.0
UNLOADED_TIMES = 3
"""The second bound of a first token in time: this many times the shortest one of an engine without load."""

Samples = dict[str, dict[str, list[float]]]
"""Samples by figure and engine. Samples of one round have the same position."""


class Questions(msgspec.Struct, frozen=True):
    """Users who ask one question after another, each about a long text of their own."""

    users: int = 14
    history: tuple[int, int] = (1800, 2500)
    """Shortest and longest text, in tokens. All texts together are several times as long as an engine's own cache."""
    question: int = 64
    answer: int = 16
    rates: tuple[float, ...] = (4.0, 6.5)
    """Questions a second of all users together."""
    seconds: float = 10.0
    """How long questions arrive, in each round."""


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


FULL = Effort(sets=4, rounds=3, busy=0, pool_bytes=4 << 30)
QUICK = Effort(sets=1, rounds=2, busy=0, pool_bytes=4 << 30, questions=Questions(seconds=6))


class Comparison:
    """Samples of all sets."""

    def __init__(self, effort: Effort) -> None:
        self.samples: Samples = defaultdict(lambda: defaultdict(list))
        self._effort = effort
        self._random = Random(20)

    def measure(self, lineup: Lineup) -> None:
        """Measure all figures with one set of processes."""
        warm = self._batch()
        lineup.each(lambda engine: engine.do("serve", requests=warm))
        with _busy(self._effort.busy):
            for _ in range(self._effort.rounds):
                self._no_reuse(lineup)
                for rate in self._effort.questions.rates:
                    self._ask(lineup, rate)

    def _no_reuse(self, lineup: Lineup) -> None:
        requests = self._batch()
        for name, answer in lineup.each(lambda engine: engine.do("serve", requests=requests)).items():
            self._note(name, "", **{figure: answer[figure] for figure in ("seconds", "settled", "cpu", "faults")})

    def _ask(self, lineup: Lineup, rate: float) -> None:
        """Let each engine read all texts, and then answer one question without load, and all questions at a rate."""
        histories, questions = self._questions(rate)
        alone = histories[0] | {"tokens": histories[0]["tokens"] + self._tokens(self._effort.questions.question)}

        def ask(engine: Engine) -> Any:
            engine.do("serve", requests=histories)
            engine.do("forget")
            unloaded = engine.do("serve", requests=[alone])["first"][0]
            engine.do("forget")
            return engine.do("serve", requests=questions) | {"unloaded": unloaded}

        answers = lineup.each(ask)
        bound = UNLOADED_TIMES * min(answer["unloaded"] for answer in answers.values())
        tokens = sum(len(each["tokens"]) for each in questions)
        for name, answer in answers.items():
            first = np.array(answer["first"])
            self._note(
                name,
                f"@{rate:g}",
                mean=float(first.mean()),
                p50=float(np.percentile(first, 50)),
                p90=float(np.percentile(first, 90)),
                unloaded=answer["unloaded"],
                goodput=float((first <= TTFT_BOUND_S).sum()) / answer["seconds"],
                goodput_unloaded=float((first <= bound).sum()) / answer["seconds"],
                found=sum(answer["cached"]) / tokens,
                cpu=answer["cpu"],
            )

    def _questions(self, rate: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return requests that read the text of each user, and questions with random arrivals, each with all that its
        user has read, asked and been told before. A user who has no room left begins again with the text."""
        known = self._effort.questions
        texts = [self._tokens(self._random.randint(*known.history)) for _ in range(known.users)]
        conversations = [list(text) for text in texts]
        questions: list[dict[str, Any]] = []
        at = 0.0
        while (at := at + self._random.expovariate(rate)) < known.seconds or not questions:
            user = self._random.randrange(known.users)
            if len(conversations[user]) + known.question + known.answer > MAX_TOKENS:
                conversations[user] = list(texts[user])
            conversations[user] += self._tokens(known.question)
            questions.append({"at": at, "tokens": list(conversations[user]), "new": known.answer})
            conversations[user] += self._tokens(known.answer)  # engines differ in what they answer
        return [{"at": 0.0, "tokens": text, "new": 1} for text in texts], questions

    def _batch(self) -> list[dict[str, Any]]:
        return [{"at": 0.0, "tokens": self._tokens(PROMPT_TOKENS), "new": NEW_TOKENS} for _ in range(BATCH)]

    def _tokens(self, count: int) -> list[int]:
        """Return tokens that no engine has seen."""
        return [self._random.randrange(3, VOCABULARY) for _ in range(count)]

    def _note(self, name: str, where: str, **values: float) -> None:
        for figure, value in values.items():
            self.samples[figure + where][name].append(value)


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """Keep processors busy."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait(KILLED_S)
