"""Blocks that other nodes wrote to shared tiers: asked for when an engine wants them, and remembered for a while.

Other nodes write to a shared tier, so its contents cannot be listed. A block that was found stays in the directory for
FOUND_S seconds after it was found or last used. A missing block is remembered for MISSING_S seconds.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataplane.protocol.stored_blocks import BlockName, StoredBlock

if TYPE_CHECKING:
    from dataplane.core.tiering.tier_state import TierState

FOUND_S = 60.0
MISSING_S = 5.0
MAX_NAMES_PER_QUERY = 128
"""Blocks of one call."""
MAX_FOUND = 1 << 18
MAX_MISSING = 1 << 16
MAX_QUERIES = 1 << 16
OWN_QUESTIONS = 64
"""Number of questions of each engine that are always asked."""
EXPIRED_AT_ONCE = 1024


@dataclass(eq=False, slots=True)
class FoundBlock:
    """A block that another node wrote to a shared tier."""

    tier: TierState
    stored: StoredBlock
    until: float


class Existence:
    """Answers of shared tiers. A key is asked for once, however many engines want it."""

    def __init__(
        self,
        tiers: Sequence[TierState],
        listed: Callable[[FoundBlock, bool], None],
        missing: Callable[[BlockName, bool], None],
    ) -> None:
        """`tiers` may change later. `listed` and `missing` write to the directory whether a block was found, or is
        missing."""
        self._tiers = tiers
        self._listed, self._note_missing = listed, missing
        self._found: OrderedDict[BlockName, FoundBlock] = OrderedDict()
        self._missing: OrderedDict[BlockName, float] = OrderedDict()
        self._queried: dict[BlockName, int] = {}
        """Number of tiers that have not answered yet, by block."""
        self._askers: dict[BlockName, int] = {}
        """The engine that asked first, by block."""
        self._counts: dict[int, int] = {}
        """Number of blocks of each engine whose answers are pending."""
        self._waiting: dict[TierState, deque[BlockName]] = {}

    def ask(self, names: Iterable[BlockName], client: int) -> None:
        """Ask the shared tiers in service for the blocks whose answers are not known.

        As in `load_queue`, an engine may have as many questions under way as there are free places, or OWN_QUESTIONS.
        Further blocks are not asked for.
        """
        tiers = [tier for tier in self._tiers if tier.shared and tier.serves]
        if not tiers:
            return
        for name in names:
            if name in self._queried or name in self._found or name in self._missing:
                continue
            if self._counts.get(client, 0) >= max(OWN_QUESTIONS, MAX_QUERIES - len(self._queried)):
                return
            self._queried[name] = len(tiers)
            self._askers[name] = client
            self._counts[client] = self._counts.get(client, 0) + 1
            for tier in tiers:
                self._waiting.setdefault(tier, deque()).append(name)

    def is_queried(self, name: BlockName) -> bool:
        """Return whether an answer is still to come."""
        return name in self._queried

    def found(self, name: BlockName) -> FoundBlock | None:
        """Return a block that a shared tier in service was found to hold."""
        known = self._found.get(name)
        return known if known is not None and known.tier.serves else None

    def next_names(self, tier: TierState) -> list[BlockName]:
        """Return the next names to ask a tier for; an empty list if there are none."""
        waiting = self._waiting.get(tier)
        return [waiting.popleft() for _ in range(min(MAX_NAMES_PER_QUERY, len(waiting)))] if waiting else []

    def answered(
        self, tier: TierState, names: Sequence[BlockName], stored: Sequence[StoredBlock | None], now: float
    ) -> None:
        """Take the block that a tier holds under each name; None if it holds none, or did not answer."""
        for name, block in zip(names, stored, strict=True):
            if name not in self._queried:
                continue
            self._queried[name] -= 1
            known = self._found.get(name)
            if block is not None and tier.serves and (known is None or tier.spec.order < known.tier.spec.order):
                if known is not None:
                    self.forget(name)
                entry = self._found[name] = FoundBlock(tier, block, now + FOUND_S)
                self._listed(entry, True)
            if self._queried[name]:
                continue
            self._end_question(name)
            if name not in self._found:
                self._missing[name] = now + MISSING_S
                self._note_missing(name, True)
        while len(self._found) > MAX_FOUND:
            self.forget(next(iter(self._found)))
        while len(self._missing) > MAX_MISSING:
            self._note_missing(self._missing.popitem(last=False)[0], False)

    def _end_question(self, name: BlockName) -> None:
        del self._queried[name]
        client = self._askers.pop(name)
        self._counts[client] -= 1
        if not self._counts[client]:
            del self._counts[client]

    def used(self, name: BlockName, now: float) -> None:
        """Note that a block was loaded, which extends the time for which it is remembered."""
        known = self._found.get(name)
        if known is not None:
            known.until = now + FOUND_S
            self._found.move_to_end(name)

    def forget(self, name: BlockName) -> None:
        """Forget a block that was found."""
        known = self._found.pop(name, None)
        if known is not None:
            self._listed(known, False)

    def stored(self, name: BlockName) -> None:
        """Note that this node wrote a block: it is no longer missing."""
        if self._missing.pop(name, None) is not None:
            self._note_missing(name, False)

    def step(self, now: float) -> None:
        """Forget answers that are too old, and answer in place of tiers that are not in service."""
        for _ in range(EXPIRED_AT_ONCE):
            oldest = next(iter(self._found.items()), None)
            if oldest is None or oldest[1].until > now:
                break
            self.forget(oldest[0])
        for _ in range(EXPIRED_AT_ONCE):
            first = next(iter(self._missing.items()), None)
            if first is None or first[1] > now:
                break
            self.stored(first[0])
        for tier, waiting in list(self._waiting.items()):
            if tier.serves:
                continue
            del self._waiting[tier]
            names = list(waiting)
            self.answered(tier, names, [None] * len(names), now)

    def leave(self, tier: TierState) -> None:
        """Forget the blocks of a tier that is removed; the caller clears the directory."""
        for name in [name for name, known in self._found.items() if known.tier is tier]:
            del self._found[name]
