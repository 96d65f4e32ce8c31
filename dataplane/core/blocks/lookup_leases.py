"""Leases of look-ups: blocks that the data plane itself holds for a request from its look-up to its retrieve.

No process reads the blocks by such a lease, because a retrieve takes its own. They can therefore be taken back when
room is short: the retrieve then finds what is still cached. Leases by which a process reads cannot be taken back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from dataplane.core.blocks.leases import LeaseTable


@dataclass(slots=True)
class SpaceLock:
    """Leased blocks of one space, by chunk number from the start of the request."""

    descriptors: list[int]
    readers: list[int]
    """Number of workers that have yet to read each block; 0 once the block is released."""

    def held(self) -> list[int]:
        """Return the descriptors of the blocks that are still leased."""
        return [number for number, readers in zip(self.descriptors, self.readers, strict=True) if readers]


@dataclass(eq=False, slots=True)
class LookupLease:
    """What one look-up holds. The owner lowers the counters of what it releases itself."""

    client: int
    """Client number of the engine in whose area the counters are raised."""
    locks: dict[int, SpaceLock] = field(default_factory=dict)
    """Leases by space number; empty after they were released or taken back."""
    taken_back: bool = False


class LookupLeases:
    """All leases of look-ups, the one that has waited longest first."""

    def __init__(self, leases: LeaseTable) -> None:
        self._leases = leases
        self._all: dict[LookupLease, None] = {}
        self._clients: Counter[int] = Counter()
        self.taken_back: Counter[int] = Counter()
        """Blocks that were taken back since the owner last cleared this, by client."""

    def __len__(self) -> int:
        return len(self._all)

    @property
    def clients(self) -> Set[int]:
        """Client numbers that hold leases of look-ups and no others."""
        return self._clients.keys()

    def add(self, lease: LookupLease) -> None:
        """Add the lease of a look-up that begins, or that has waited for tiers."""
        if lease.locks and lease not in self._all:
            self._all[lease] = None
            self._clients[lease.client] += 1

    def discard(self, lease: LookupLease) -> None:
        """Remove a lease that its owner ends."""
        if lease in self._all:
            del self._all[lease]
            self._clients[lease.client] -= 1
            if not self._clients[lease.client]:
                del self._clients[lease.client]

    def take_back(self, blocks: int, useful: Callable[[Sequence[int]], bool]) -> bool:
        """Release leases, those that have waited longest first, until they held so many blocks. Return whether there
        were any.

        `useful` says of the descriptors that a look-up holds, which are of one tenant, whether their release would
        help.
        """
        ended: list[LookupLease] = []
        for lease in self._all:
            descriptors = [number for lock in lease.locks.values() for number in lock.held()]
            if not descriptors or not useful(descriptors):
                continue
            self._leases.lower_for(lease.client, descriptors)
            self.taken_back[lease.client] += len(descriptors)
            lease.locks.clear()
            lease.taken_back = True
            ended.append(lease)
            blocks -= len(descriptors)
            if blocks <= 0:
                break
        for lease in ended:
            self.discard(lease)
        return bool(ended)
