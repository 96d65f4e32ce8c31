"""Which refusals the audit keeps one by one: a share for each who is refused, so that nobody's noise hides another.

The audit is kept for ever, and whoever is refused decides how often. Within a minute the same refusal of the same one
is kept once, and once more with how often it came again; of different ones each has a share; and who had none of that
minute yet finds a reserve, however much the others used up.
"""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """Entries of a minute."""

    whole: int
    each: int
    """Of one who is refused, at most."""
    reserve: int
    """First entries of those who had none, when the whole is used up."""


@dataclass
class _Minute(Generic[T]):
    number: int = -1
    used: int = 0
    reserve_used: int = 0
    by_whom: Counter[str] = field(default_factory=Counter)
    again: dict[tuple[str, Hashable], tuple[T, int]] = field(default_factory=dict)
    """What was kept, and how often it came again."""


class Refusals(Generic[T]):
    """`take` each, and `ended` now and then. Times are Unix seconds."""

    def __init__(self, share: Share) -> None:
        self._share = share
        self._minute: _Minute[T] = _Minute()
        self._ended: list[tuple[T, int]] = []
        self.left_out = 0
        """Since the last one that was taken."""
        self.left_out_ever = 0

    def take(self, who: str, what: Hashable, told: T, now: float) -> bool:
        """Whether it is kept by itself; `told` is given back by `ended` if it comes again within the minute."""
        self._turn(now)
        minute = self._minute
        if (known := minute.again.get((who, what))) is not None:
            minute.again[who, what] = (known[0], known[1] + 1)
            return False
        if not self._has_room(who):
            self.left_out += 1
            self.left_out_ever += 1
            return False
        minute.by_whom[who] += 1
        minute.again[who, what] = (told, 0)
        return True

    def ended(self, now: float, *, all_of_them: bool = False) -> list[tuple[T, int]]:
        """What came again in minutes that are over, and how often; given once."""
        self._turn(now, force=all_of_them)
        ended, self._ended = self._ended, []
        return ended

    def _has_room(self, who: str) -> bool:
        share, minute = self._share, self._minute
        if minute.by_whom[who] >= share.each:
            return False
        if minute.used < share.whole:
            minute.used += 1
            return True
        if minute.by_whom[who] or minute.reserve_used >= share.reserve:
            return False
        minute.reserve_used += 1
        return True

    def _turn(self, now: float, *, force: bool = False) -> None:
        number = int(now // 60)
        if number != self._minute.number or force:
            self._ended += [(told, again) for told, again in self._minute.again.values() if again]
            self._minute = _Minute(number)
