"""Decide whether to load a prefix or recompute it, by which is expected to be faster."""

from __future__ import annotations

from typing import Literal

MIN_PREFILL_TOKENS = 64
"""Steps with fewer tokens are mostly decoding, so the prefill rate ignores them."""
LOAD_OVERHEAD_S = 0.002
"""Duration of the extra step that an asynchronous load costs."""
FORGET_S = 30.0
"""A measured load rate expires after this time. Otherwise one slow load could prevent all later loads."""
_WEIGHT = 0.2


class BreakEven:
    """Measured rates of loading and prefilling, in tokens per second, and the decision that they imply."""

    def __init__(self, minimum: int | Literal["auto"]) -> None:
        self._minimum = minimum
        self.load_rate = 0.0
        self.prefill_rate = 0.0
        self._load_measured = 0.0

    def note_prefill(self, tokens: int, seconds: float) -> None:
        """Record the duration of a step that computed `tokens`."""
        if tokens >= MIN_PREFILL_TOKENS and seconds > 0:
            self.prefill_rate = _mixed(self.prefill_rate, tokens / seconds)

    def note_load(self, tokens: int, seconds: float, now: float) -> None:
        """Record the duration of loads of `tokens` in total."""
        if tokens > 0 and seconds > 0:
            self.load_rate = _mixed(self.load_rate, tokens / seconds)
            self._load_measured = now

    def worth_loading(self, tokens: int, now: float) -> bool:
        """Return whether loading `tokens` is expected to be faster than computing them; True without measurements."""
        if self._minimum != "auto":
            return tokens >= self._minimum
        self._forget(now)
        if not self.load_rate or not self.prefill_rate:
            return True
        return LOAD_OVERHEAD_S + tokens / self.load_rate < tokens / self.prefill_rate

    def worth_waiting(self, tokens: int, more: int, wait_s: float, now: float) -> bool:
        """Return whether to wait `wait_s` seconds for `more` of the `tokens` that can be loaded then, and to load them,
        is expected to be faster than computing them; True if the prefill rate is not known."""
        if self._minimum != "auto":
            return tokens >= self._minimum
        self._forget(now)
        if not self.prefill_rate:
            return True
        load_s = more / self.load_rate if self.load_rate else 0.0
        return wait_s + LOAD_OVERHEAD_S + load_s < more / self.prefill_rate

    def _forget(self, now: float) -> None:
        if now - self._load_measured > FORGET_S:
            self.load_rate = 0.0


def _mixed(old: float, new: float) -> float:
    return new if not old else (1 - _WEIGHT) * old + _WEIGHT * new
