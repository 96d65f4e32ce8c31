"""Decide how a request gets a cached prefix: it is loaded inside a step, loaded beside steps, or computed.

vLLM computes in steps, and a request that is scheduled joins the next one. The three ways differ in who waits:

* IN_STEP: the engine copies the prefix before the layers of the step run. The request joins this step. All requests of
  the step wait for the copy.
* BESIDE: the copy begins before the layers of a step, on another thread or a copy engine, and its end is noticed after
  a step. Only the request waits: for the copy and for the delay until it is scheduled, which is about the rest of the
  steps beside it. A prefill of other requests makes it long.
* COMPUTE: all requests of the step wait for the computation.

A load is not chosen if a request is expected to wait longer for it than for its computation, for which it would wait
until the end of a step, too. Of the ways that are left, the one with the least waiting is taken, summed over the
requests of the step. Everything is measured: the rates of both kinds of copies, of prefills, and the delay. Before a
copy was measured, a load is BESIDE, because a step must not wait
for something unknown, such as the first use of a segment.

No request should wait much longer for a load than for its computation, so a load has a time limit: that of the
computation, and `GRACE_S`.
"""

from __future__ import annotations

from enum import Enum, auto
from math import inf
from typing import Literal

MIN_PREFILL_TOKENS = 64
"""Steps with fewer tokens are mostly decoding, so the prefill rate ignores them."""
GRACE_S = 0.01
"""A load may take this much longer than the computation of its tokens."""
FORGET_S = 30.0
"""Measurements of loads expire after this time. Otherwise one slow load could prevent all later loads."""
_WEIGHT = 0.2


class Way(Enum):
    """How a request gets a prefix."""

    IN_STEP = auto()
    BESIDE = auto()
    COMPUTE = auto()


class _Measured:
    """A moving mean, which expires."""

    def __init__(self) -> None:
        self._mean = 0.0
        self._at = 0.0

    def note(self, value: float, now: float) -> None:
        old = self.mean(now)
        self._mean, self._at = (value if not old else _mixed(old, value)), now

    def mean(self, now: float) -> float:
        """Return the mean; 0 if nothing was measured lately."""
        return self._mean if now - self._at <= FORGET_S else 0.0


class BreakEven:
    """Measured rates, in tokens per second, and the decisions that they imply."""

    def __init__(self, minimum: int | Literal["auto"]) -> None:
        self._minimum = minimum
        self.prefill_rate = 0.0
        self._step_s = 0.0
        """Duration of steps."""
        self._load_rate = _Measured()
        """Of loads beside steps, without the delay."""
        self._step_load_rate = _Measured()
        """Of loads inside steps."""
        self._delays = {True: _Measured(), False: _Measured()}
        """Time from the plan of a load beside steps until its request can be scheduled, without the copy: with the
        request alone in the engine, and with others."""

    def note_step(self, tokens: int, seconds: float) -> None:
        """Record the duration of a step that computed `tokens`, without loads inside it."""
        if seconds <= 0:
            return
        self._step_s = _mixed(self._step_s, seconds)
        if tokens >= MIN_PREFILL_TOKENS:
            self.prefill_rate = _mixed(self.prefill_rate, tokens / seconds)

    def note_load(self, tokens: int, seconds: float, now: float, *, in_step: bool = False) -> None:
        """Record the duration of loads of `tokens` in total."""
        if tokens > 0 and seconds > 0:
            (self._step_load_rate if in_step else self._load_rate).note(tokens / seconds, now)

    def note_delay(self, tokens: int, seconds: float, now: float, *, alone: bool) -> None:
        """Record the time from the plan of a load of `tokens` beside steps until its request can be scheduled."""
        rate = self._load_rate.mean(now)
        self._delays[alone].note(max(0.0, seconds - tokens / rate) if rate else 0.0, now)

    def way(self, tokens: int, now: float, *, requests: int = 1, step_s: float = 0.0) -> Way:
        """Return how a request should get `tokens` that can be loaded. `requests`: number of requests of the next step,
        with this one. `step_s`: longest time that the load may take inside the step; 0 if it must not be there."""
        if self._minimum != "auto" and tokens < self._minimum:
            return Way.COMPUTE
        copy_s = self.step_copy_s(tokens, now)
        if not copy_s:
            return Way.BESIDE
        rate = self._load_rate.mean(now)
        alone = requests == 1
        beside_s = self._delays[alone].mean(now) or (0.0 if alone else self._step_s)
        beside_s += tokens / rate if rate else copy_s
        compute_s = tokens / self.prefill_rate if self._minimum == "auto" and self.prefill_rate else inf
        computed_s = compute_s + (0.0 if alone else self._step_s)  # a step ends for all its requests at once
        if copy_s <= step_s and copy_s < compute_s and (requests * copy_s <= beside_s or beside_s >= computed_s):
            return Way.IN_STEP
        return Way.BESIDE if beside_s < computed_s else Way.COMPUTE

    def step_copy_s(self, tokens: int, now: float) -> float:
        """Return the expected duration of a load inside a step; 0 if no load was measured lately."""
        rate = self._step_load_rate.mean(now) or self._load_rate.mean(now)
        return tokens / rate if rate else 0.0

    def limit_s(self, tokens: int) -> float:
        """Return the longest time that a load of `tokens` may take: infinite if a set minimum decides, or if the
        prefill rate is not known."""
        if self._minimum != "auto" or not self.prefill_rate:
            return inf
        return tokens / self.prefill_rate + GRACE_S

    def worth_waiting(self, tokens: int, gained_tokens: int, wait_s: float, now: float) -> bool:
        """Return whether to wait `wait_s` seconds for `gained_tokens` of the `tokens` that can be loaded then, and to
        load them, is expected to be faster than computing them; True if the prefill rate is not known."""
        if self._minimum != "auto":
            return tokens >= self._minimum
        if not self.prefill_rate:
            return True
        rate = self._load_rate.mean(now)
        return wait_s + (gained_tokens / rate if rate else 0.0) < gained_tokens / self.prefill_rate


def _mixed(old: float, new: float) -> float:
    return new if not old else (1 - _WEIGHT) * old + _WEIGHT * new
