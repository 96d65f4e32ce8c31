"""One tier of a node: its record, what it holds, what is being copied to it, and its counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dataplane.core.tiering.contents import TierContents
from dataplane.core.tiering.invalidations import TierInvalidations, Tombstone
from dataplane.core.tiering.tier_order import TierEntry
from dataplane.protocol.stats.tiers import TierStats
from dataplane.protocol.stored_blocks import BlockName, StoredBlock
from dataplane.protocol.tiers import TierSpec

TAKES_NOTHING = frozenset({"off", "drain"})
"""Values of `spill` of tiers that get no blocks of memory or of a drain."""


@dataclass(slots=True)
class Arrival:
    """A block that a job copies to a tier."""

    stored: StoredBlock
    charge: int
    """Bytes that are reserved for it."""
    dead: bool = False
    """Whether an invalidation covers it: it is deleted when the job ends."""
    hung: bool = False
    """Whether a call stores it that did not return in time."""


class TierState:
    """One tier: its record, what it holds, and what is being copied to it."""

    def __init__(
        self,
        number: int,
        spec: TierSpec,
        stored_size: Callable[[int], int],
        *,
        shared: bool = False,
        tombstones: Callable[[], Sequence[Tombstone]] = tuple,
    ) -> None:
        """`tombstones` returns the invalidations that the tier may not have carried out."""
        self.number = number
        self.spec = spec
        self.shared = shared
        """Whether other nodes write to the tier, too."""
        self.stored_size = stored_size
        self.contents = TierContents(spec.budget_bytes, spec.name)
        self.invalidations = TierInvalidations(self.contents)
        self.deletions: deque[BlockName] = deque()
        """Blocks that the tier must delete."""
        self.deleting: frozenset[BlockName] = frozenset()
        """Blocks that a call of the tier deletes now. None of them is copied to the tier before the call ends: which of
        the two takes effect last is not known."""
        self.counters = TierStats(spec.name, spec.type, spec.budget_bytes, serves=False)
        """What the node reports of the tier. The counts of blocks that were copied, loaded, refused and lost are kept
        here; `TierRun.stats` adds the rest."""
        self.serves = True
        """Whether the tier is in service; the mover's circuit breaker decides."""
        self.tombstones = tombstones
        self.closing = False
        """Whether the tier was removed; calls under way still end."""
        self.missed_pins = False
        """Whether blocks of pins were not copied because the tier was out of service."""
        self.watched: dict[BlockName, str] = {}
        """Blocks that a move copies or loads, each with the reason why that failed; empty until it fails."""
        self.arriving: dict[BlockName, Arrival] = {}
        """Blocks that jobs copy to the tier."""
        self.again: list[BlockName] = []
        """Blocks that were invalidated while a job copied them. The pool may hold newer ones of the same names."""
        self.evictions: list[BlockName] = []
        """Blocks that the tier has evicted since cascades last looked."""
        self.spilling_bytes = 0
        self.loading_bytes = 0
        self.listed_blocks: int | None = None
        """Blocks that a listing of a shared tier has found so far; None while no listing is under way. Older blocks
        are not known yet, so nothing is evicted meanwhile, and blocks beyond the budget are refused."""
        self.forgotten: set[BlockName] = set()
        """Blocks that were forgotten while a listing is under way, which may still list them."""

    def entry_of(self, name: BlockName) -> TierEntry | None:
        """Return a block that the tier holds; None if there is none, or an invalidation covers it."""
        entry = self.contents.entries.get(name)
        if entry is not None and self.invalidations and self.invalidations.is_dead(entry):
            return None
        return entry

    @property
    def deletions_left(self) -> int:
        """Number of names that the tier must still delete, now or when a copy ends. It is not 0 before all
        invalidations have been carried out."""
        dead_arrivals = sum(arrival.dead for arrival in self.arriving.values())
        return len(self.deletions) + len(self.invalidations) + dead_arrivals

    def refuse(self, reason: str, name: BlockName) -> None:
        """Count a block that was not copied to the tier."""
        self.counters.refused[reason] = self.counters.refused.get(reason, 0) + 1
        self.note(reason, name)

    def lose(self, reason: str, *names: BlockName) -> None:
        """Count blocks that were not loaded."""
        self.count_lost(reason, len(names))
        for name in names:
            self.note(reason, name)

    def count_lost(self, reason: str, blocks: int) -> None:
        """Count blocks that were not loaded."""
        self.counters.lost[reason] = self.counters.lost.get(reason, 0) + blocks

    def note(self, reason: str, name: BlockName) -> None:
        """Record why a block that a move watches was not moved."""
        if name in self.watched:
            self.watched[name] = reason


def within_budget(
    blocks: Iterable[StoredBlock], stored_size: Callable[[int], int], budget_bytes: int
) -> tuple[list[StoredBlock], list[BlockName]]:
    """Return the newest blocks that a budget has room for, oldest first, and the names of the others."""
    retained: dict[BlockName, StoredBlock] = {}
    dropped: list[BlockName] = []
    used_bytes = 0
    for stored in sorted(blocks, key=lambda stored: stored.sequence, reverse=True):
        if stored.name in retained:
            continue
        charge = stored_size(stored.length)
        if used_bytes + charge > budget_bytes:
            dropped.append(stored.name)
            continue
        used_bytes += charge
        retained[stored.name] = stored
    return list(reversed(retained.values())), dropped
