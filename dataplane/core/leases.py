"""Who still reads: lease counters of every attached process, summed after a barrier.

The theory is in `dataplane.protocol.layout`. This is the rare side of it.
"""

from collections.abc import Sequence

import numpy as np

from dataplane.core.ports import Fence
from dataplane.protocol.layout import I64, AreaMemory, area_bytes

COUNTERS_PER_LOOK = 4 << 20
"""A millisecond's worth: counting is for people, twice a second."""


OWN = 0
"""The data plane's own counters; clients have other numbers."""


class LeaseTable:
    """The areas that are in the scan."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._areas: dict[int, AreaMemory] = {}
        self._leased: dict[int, int] = {}
        """Blocks that each client held when its counters were last counted, longest ago first."""

    def add(self, client: int, area: AreaMemory) -> None:
        """Take an area into the scan; must happen before its process is told that it is attached."""
        self._areas[client] = area
        self._leased[client] = 0

    def remove(self, client: int) -> None:
        """Take an area out: its process said goodbye, or its engine group is proven gone."""
        self._areas.pop(client, None)
        self._leased.pop(client, None)

    def area(self, client: int) -> AreaMemory | None:
        return self._areas.get(client)

    def held(self, descriptors: Sequence[int]) -> list[bool]:
        """Which descriptors some process holds, as of after a barrier. What is to go must be hidden from readers: their
        control words say EVICTING, or their replicas are withdrawn."""
        self._fence()
        at: I64 = np.array(descriptors, np.int64)
        total = np.zeros(len(at), np.uint64)
        for area in self._areas.values():
            total += area.counters[at]
        held: list[bool] = (total != 0).tolist()
        return held

    def counts(self, descriptors: I64) -> list[int]:
        """How often each descriptor is held now, by engines' own word. Without a barrier: for people."""
        total = np.zeros(len(descriptors), np.int64)
        if len(descriptors):
            for area in self._areas.values():
                total += area.counters[descriptors]
        counts: list[int] = total.tolist()
        return counts

    def held_by_anybody(self, max_blocks: int) -> bytes:
        """A byte for each descriptor, not 0 where a counter is up. Without a barrier: a hint whom not to ask."""
        held = np.zeros(max_blocks, np.bool_)
        for area in self._areas.values():
            held |= area.counters != 0
        return held.tobytes()

    def leased(self) -> dict[int, int]:
        """Blocks that each client holds, by its own counters. With many of them some numbers are a few calls old."""
        looked = 0
        for client in list(self._leased):
            counters = self._areas[client].counters
            if looked and looked + len(counters) > COUNTERS_PER_LOOK:
                break
            looked += len(counters)
            del self._leased[client]  # to the end
            self._leased[client] = int(np.count_nonzero(counters))
        return self._leased

    def raise_for(self, client: int, descriptors: Sequence[int]) -> None:
        """Take leases in a process's name, between two steps of the data plane (machines without membarrier)."""
        area = self._areas[client]
        np.add.at(area.counters, np.array(descriptors, np.int64), np.uint32(1))

    def hold(self, descriptors: Sequence[int], max_blocks: int) -> None:
        """Take leases of the data plane's own, which end with its process at the latest."""
        if OWN not in self._areas:
            self.add(OWN, AreaMemory(bytearray(area_bytes(max_blocks, 1)), max_blocks, 1))
        self.raise_for(OWN, descriptors)

    def let_go(self, descriptors: Sequence[int]) -> None:
        """Give them back."""
        np.subtract.at(self._areas[OWN].counters, np.array(descriptors, np.int64), np.uint32(1))
