"""Selects the refusals that the audit keeps individually: each source has a share, so that none can hide another.

The audit is kept forever, and refused callers determine how often they are refused. Within a minute, the same refusal
of the same caller is kept once, plus once at the end with its number of repetitions. Different refusals of one caller
share a limit. A caller without an entry in this minute has access to a reserve, even if other callers used up all other
entries.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class MinuteShare:
    """Numbers of entries per minute."""

    whole: int
    each: int
    """Largest number of entries of one caller."""
    reserve: int
    """Number of first entries of further callers when `whole` is used up."""


@dataclass
class _Minute(Generic[T]):
    number: int = -1
    used: int = 0
    reserve_used: int = 0
    by_caller: Counter[str] = field(default_factory=Counter)
    repeats: dict[tuple[str, Hashable], tuple[T, int]] = field(default_factory=dict)
    """Entries that were kept, and how often each was repeated."""


class RefusalAudit(Generic[T]):
    """Call `take` for each refusal, and `take_repeated` periodically. Times are Unix seconds."""

    def __init__(self, share: MinuteShare) -> None:
        self._share = share
        self._minute: _Minute[T] = _Minute()
        self._ended: list[tuple[T, int]] = []
        self.suppressed = 0
        """Number of refusals left out since the last one that was kept."""
        self.suppressed_total = 0

    def take(self, caller: str, key: Hashable, entry: T, now: float) -> bool:
        """Return whether to keep this refusal. If it is repeated within the minute, `take_repeated` returns `entry`."""
        self._turn(now)
        minute = self._minute
        if (repeated := minute.repeats.get((caller, key))) is not None:
            minute.repeats[caller, key] = (repeated[0], repeated[1] + 1)
            return False
        if not self._has_room(caller):
            self.suppressed += 1
            self.suppressed_total += 1
            return False
        minute.by_caller[caller] += 1
        minute.repeats[caller, key] = (entry, 0)
        return True

    def take_repeated(self, now: float, *, all_of_them: bool = False) -> list[tuple[T, int]]:
        """Return what was repeated in past minutes, and how often; each is returned once."""
        self._turn(now, force=all_of_them)
        ended, self._ended = self._ended, []
        return ended

    def _has_room(self, caller: str) -> bool:
        share, minute = self._share, self._minute
        if minute.by_caller[caller] >= share.each:
            return False
        if minute.used < share.whole:
            minute.used += 1
            return True
        if minute.by_caller[caller] or minute.reserve_used >= share.reserve:
            return False
        minute.reserve_used += 1
        return True

    def _turn(self, now: float, *, force: bool = False) -> None:
        number = int(now // 60)
        if number != self._minute.number or force:
            self._ended += [(entry, count) for entry, count in self._minute.repeats.values() if count]
            self._minute = _Minute(number)
