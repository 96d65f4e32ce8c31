"""Leases: the counters of every attached process, summed after a barrier to find blocks that are still read.

`dataplane.protocol.layout` explains the algorithm; this module is the data plane's side. A process may write any value
into any counter of its area, so a counter counts only for blocks of spaces that its process attached. Values for blocks
of other spaces, which the process cannot read, do not protect these blocks.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dataplane.core.blocks.ports import Fence
from dataplane.protocol.layout import A_EXPELLED, I64, AreaMemory, Mask, area_bytes

if TYPE_CHECKING:
    from dataplane.core.blocks.blocks import Block


COUNTERS_PER_CALL = 4 << 20
"""Counters that one call of `leased` reads, which takes about a millisecond: the result is for display only, twice a
second."""


OWN = 0
"""Client number of the data plane's own counters; no other client has it."""


@dataclass(slots=True)
class _Readers:
    """Areas of the processes that attached the same spaces."""

    spaces: frozenset[int] | None
    """The attached spaces; None for areas that only this process writes, which count for every block."""
    numbers: I64
    """The spaces in ascending order."""
    areas: dict[int, AreaMemory] = field(default_factory=dict)

    def counted(self, space_of: I64) -> Mask | None:
        """Return a mask of the blocks, given the space of each, for which these counters count; None for all."""
        if self.spaces is None:
            return None
        if len(self.numbers) == 1:
            only: Mask = space_of == self.numbers[0]
            return only
        return _among(space_of, self.numbers)


def _among(space_of: I64, numbers: I64) -> Mask:
    """Return a mask of the items of `space_of` that are in `numbers`, which must be ascending."""
    chosen = np.zeros(int(space_of.max(initial=0)) + 1, np.bool_)
    chosen[numbers[: np.searchsorted(numbers, len(chosen))]] = True
    mask: Mask = chosen[space_of]
    return mask


class LeaseTable:
    """The areas that the lease scan covers."""

    def __init__(self, fence: Fence) -> None:
        self._fence = fence
        self._areas: dict[int, AreaMemory] = {}
        self._readers: dict[frozenset[int] | None, _Readers] = {}
        """Areas grouped by the spaces in which their counters count."""
        self._of_client: dict[int, _Readers] = {}
        self._leased: dict[int, int] = {}
        """Number of blocks that each client held when its counters were last read, oldest reading first."""

    def add(self, client: int, area: AreaMemory, spaces: Iterable[int] | None) -> None:
        """Add an area to the scan. Call this before its process learns that it is attached.

        `spaces` are the spaces that the process attached; None means that only the data plane writes the area.
        """
        key = None if spaces is None else frozenset(spaces)
        readers = self._readers.get(key)
        if readers is None:
            readers = self._readers[key] = _Readers(key, np.array(sorted(key or ()), np.int64))
        readers.areas[client] = area
        self._areas[client] = area
        self._of_client[client] = readers
        self._leased[client] = 0

    def remove(self, client: int) -> None:
        """Remove an area from the scan: its process detached or was expelled, or its engine group is proven gone."""
        self._leased.pop(client, None)
        self._areas.pop(client, None)
        readers = self._of_client.pop(client, None)
        if readers is not None:
            del readers.areas[client]
            if not readers.areas:
                del self._readers[readers.spaces]

    def held(self, blocks: Sequence[Block]) -> list[bool]:
        """Return for each block whether any process holds it, counted after a barrier.

        The caller must first hide the blocks from readers: either their control words are EVICTING, or their GPU copies
        are withdrawn.
        """
        self._fence()
        return self.raised(blocks)

    def raised(self, blocks: Sequence[Block]) -> list[bool]:
        """Return for each block whether any process seems to hold it. There is no barrier, so a lease that was just
        acquired may not show."""
        at: I64 = np.array([block.number for block in blocks], np.int64)
        total = np.zeros(len(at), np.uint64)
        spaces = {block.space for block in blocks}
        space_of: I64 | None = None
        for readers in self._readers.values():
            counted = None
            if readers.spaces is not None and not spaces <= readers.spaces:
                if spaces.isdisjoint(readers.spaces):
                    continue
                if space_of is None:
                    space_of = np.array([block.space for block in blocks], np.int64)
                counted = readers.counted(space_of)
            for area in readers.areas.values():
                total += area.counters[at] if counted is None else area.counters[at] * counted
        is_held: list[bool] = (total != 0).tolist()
        return is_held

    def counts(self, descriptors: I64, space_of: I64) -> list[int]:
        """Return the sum of the engines' counters for each descriptor, given its space. There is no barrier, so the
        result is for display only."""
        total = np.zeros(len(descriptors), np.int64)
        if len(descriptors):
            for readers in self._readers.values():
                counted = readers.counted(space_of)
                for area in readers.areas.values():
                    total += area.counters[descriptors] if counted is None else area.counters[descriptors] * counted
        counts: list[int] = total.tolist()
        return counts

    def held_by_any(self, space_of: I64, but: Container[int] = ()) -> bytes:
        """Return a byte for each descriptor, nonzero where a counter is raised by a client that is not in `but`.
        `space_of` has the space of every descriptor. There is no barrier, so the result is only a hint as to which
        blocks to skip."""
        is_held = np.zeros(len(space_of), np.bool_)
        for readers in self._readers.values():
            raised = np.zeros(len(space_of), np.bool_)
            for client, area in readers.areas.items():
                if client not in but:
                    raised |= area.counters != 0
            counted = readers.counted(space_of) if raised.any() else None
            is_held |= raised if counted is None else raised & counted
        return is_held.tobytes()

    def leased(self, space_of: I64) -> dict[int, int]:
        """Return the number of blocks that each client holds, by its own counters. With many clients, some numbers are
        a few calls old."""
        looked = 0
        for client in list(self._leased):
            counters = self._areas[client].counters
            if looked and looked + len(counters) > COUNTERS_PER_CALL:
                break
            looked += len(counters)
            del self._leased[client]  # move it to the end
            self._leased[client] = self._count(client, space_of)
        return self._leased

    def _count(self, client: int, space_of: I64) -> int:
        """Return the number of blocks that a client holds, by its own counters."""
        raised = self._areas[client].counters != 0
        counted = self._of_client[client].counted(space_of) if raised.any() else None
        return int(np.count_nonzero(raised if counted is None else raised & counted))

    def raised_by(self, clients: Iterable[int]) -> I64:
        """Return the descriptors of which one of these clients, which only the data plane writes for, holds a
        counter. Of very many clients, only the first are read."""
        raised: Mask | None = None
        looked = 0
        for client in clients:
            area = self._areas.get(client)
            if area is None:
                continue
            looked += len(area.counters)
            raised = area.counters != 0 if raised is None else raised | (area.counters != 0)
            if looked > COUNTERS_PER_CALL:
                break
        return np.zeros(0, np.int64) if raised is None else np.flatnonzero(raised)

    # ---- expelling

    def set_expelled(self, clients: Iterable[int], *, expelled: bool = True) -> None:
        """Stop processes from taking leases, or let them take leases again. Their areas stay in the scan."""
        for client in clients:
            if client in self._areas:
                self._areas[client].header[A_EXPELLED] = int(expelled)

    def held_by(self, clients: Iterable[int], space_of: I64) -> int:
        """Return the number of blocks that these processes hold, counted after a barrier.

        After `set_expelled`, a process that follows the layout takes no further leases.
        """
        self._fence()
        return sum(self._count(client, space_of) for client in clients if client in self._areas)

    # ---- leases that the data plane takes

    def raise_for(self, client: int, descriptors: Sequence[int]) -> None:
        """Take leases on behalf of a process, for machines without membarrier.

        They are safe because this runs between two steps of the data plane.
        """
        area = self._areas[client]
        np.add.at(area.counters, np.array(descriptors, np.int64), np.uint32(1))

    def lower_for(self, client: int, descriptors: Sequence[int]) -> None:
        """Release leases on behalf of a process, if its area is still in the scan."""
        area = self._areas.get(client)
        if area is not None:
            np.subtract.at(area.counters, np.array(descriptors, np.int64), np.uint32(1))

    def hold(self, descriptors: Sequence[int], max_blocks: int) -> None:
        """Take leases for the data plane itself. They end with its process at the latest."""
        if OWN not in self._areas:
            self.add(OWN, AreaMemory(bytearray(area_bytes(max_blocks, 1)), max_blocks, 1), None)
        self.raise_for(OWN, descriptors)

    def release(self, descriptors: Sequence[int]) -> None:
        """Release leases that `hold` took."""
        self.lower_for(OWN, descriptors)
