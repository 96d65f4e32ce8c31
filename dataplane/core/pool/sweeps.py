"""Sweeps: invalidation and demotion of many blocks, effective at once and carried out in steps.

An invalidation finds the covered blocks at once in the descriptors' rows and marks them: their COLD_STORED_AT becomes
0. One entry in the index header tells readers to check the marks (see `protocol.layout`), so all covered blocks are
misses for all readers from that moment, however many there are. The sweep then removes them from the index, least
recently used first. A block that a lease still holds is dead: it is out of the index and is freed when the lease
ends. The header entry is cleared when no marked block is left.

A sweep of a prefix also covers the blocks stored behind its last key, along the chains from parent to child. Blocks
whose ancestors are no longer present may have been behind that key too. An invalidation covers them as well, because
readers cannot reach them until their ancestors are stored again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from dataplane.core.journal.recovery_table import ROW_PARENT, ROW_USED, RecoveryTable
from dataplane.core.pool.lineage import among, descendants, identities
from dataplane.protocol.layout import (
    COLD_STORED_AT,
    COLD_TENANT,
    H_INVALID,
    H_INVALID_COUNT,
    HOT_KEY,
    HOT_NBYTES,
    HOT_SPACE_SEGMENT,
    I64,
    INVALID_BEFORE_NS,
    U64,
    IndexMemory,
    Mask,
    is_ready,
)
from dataplane.protocol.stats.pool import SweepStats

if TYPE_CHECKING:
    from dataplane.core.blocks.blocks import Block
    from dataplane.core.tenants.tenant import Tenant

CHUNK = 16_384
"""Maximum number of blocks that one step processes."""
MAX_ACTIVE = 1024
"""Number of active sweeps above which new ones are merged into the newest one of their kind."""
Kind = Literal["invalidate", "demote"]
_LOW32 = np.uint64(0xFFFFFFFF)
_KEY = slice(HOT_KEY, HOT_KEY + 4)


@dataclass(slots=True)
class Sweep:
    """An operator's request to invalidate or demote blocks, until every block has been processed."""

    number: int
    kind: Kind
    queue: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """Descriptors of the remaining blocks, least recently used first."""
    blocks: int = 0

    def add(self, numbers: I64) -> None:
        self.queue = np.concatenate((self.queue, numbers))

    def take(self, count: int) -> I64:
        """Remove and return the next `count` descriptors."""
        descriptors, self.queue = self.queue[:count], self.queue[count:]
        return descriptors


@dataclass(frozen=True, slots=True)
class SweepStart:
    """A sweep that has started, and the blocks that it covers."""

    sweep: int
    before: int
    """Timestamp in ns; the sweep covers blocks that were reserved with a smaller one."""
    numbers: I64
    """Descriptors of the covered blocks."""
    bytes: int
    """Bytes stored in these blocks."""


class Sweeps:
    """Active sweeps. The pool passes in the functions that invalidate and demote blocks."""

    def __init__(
        self,
        memory: IndexMemory,
        table: RecoveryTable,
        blocks: dict[int, Block],
        invalidate: Callable[[Sequence[Block]], int],
        demote: Callable[[Sequence[Block]], int],
        dead: Collection[Block],
    ) -> None:
        self._memory = memory
        self._table = table
        self._blocks = blocks
        self._act: dict[Kind, Callable[[Sequence[Block]], int]] = {"invalidate": invalidate, "demote": demote}
        self._dead = dead
        """Blocks that are out of the index and are freed when no lease holds them."""
        self._demoting: U64 = np.zeros(memory.max_blocks, np.uint64)
        """For each descriptor in the queue of a demotion, the timestamp that its block must be below; 0 for others."""
        self.active: list[Sweep] = []
        self._ended: list[Sweep] = []
        self._marked = False
        """Whether the header has the entry that makes readers check the marks."""
        self._last = 0
        self._timestamp = 0
        """The latest timestamp, in ns."""

    def timestamp(self, now: float) -> int:
        """Return the timestamp of a block that is reserved now, in ns, at least 1. It never decreases, even if the
        clock is set back."""
        self._timestamp = max(self._timestamp, int(now * 1e9), 1)
        return self._timestamp

    def continue_after(self, timestamp: int) -> None:
        """Continue after the highest timestamp of the blocks that a previous data plane stored."""
        self._timestamp = max(self._timestamp, timestamp + 1)

    def start(
        self,
        kind: Kind,
        tenant: Tenant | None,
        spaces: frozenset[int] | None,
        keys: Sequence[bytes],
        excluded: Iterable[Block],
        now: float,
    ) -> SweepStart:
        """Start a sweep. Readers see the effect of an invalidation when this returns.

        Without a tenant, spaces or keys, the sweep covers all of them. An invalidation skips `excluded` blocks.
        """
        return self.begin(kind, self.covered(kind, tenant, spaces, keys, excluded), now)

    def begin(self, kind: Kind, numbers: I64, now: float) -> SweepStart:
        """Start a sweep of the blocks of these descriptors, as `start` does."""
        before = self._timestamp = self.timestamp(now) + 1
        used = self._table.rows[numbers, ROW_USED]
        numbers = numbers[used.argsort(kind="stable")]
        sweep = self._sweep(kind)
        if kind == "invalidate":
            self._mark(numbers)
            sweep.add(numbers)
        else:
            waits = self._demoting[numbers] != 0
            self._demoting[numbers] = before
            sweep.add(numbers[~waits])
            self._advance(sweep)
        return SweepStart(sweep.number, before, numbers, self.stored_bytes(numbers))

    def covered(
        self,
        kind: Kind,
        tenant: Tenant | None,
        spaces: frozenset[int] | None,
        keys: Sequence[bytes],
        excluded: Iterable[Block],
    ) -> I64:
        """Return the descriptors of the blocks that a sweep with these arguments would cover now."""
        readable = self._readable()
        numbers = self._matching(readable, tenant, spaces)
        if keys:
            numbers = numbers[self._behind(numbers, readable, keys, torn=kind == "invalidate")]
        if kind == "invalidate":
            numbers = np.setdiff1d(numbers, [block.number for block in excluded])
        return numbers

    def stored_bytes(self, numbers: I64) -> int:
        """Return the bytes stored in these blocks; they may occupy more of the pool."""
        return int(self._memory.hot[numbers, HOT_NBYTES].sum())

    def select(self, tenant: Tenant | None, spaces: frozenset[int] | None) -> I64:
        """Return the descriptors of readable blocks of a tenant in some spaces; None selects all tenants or spaces."""
        return self._matching(self._readable(), tenant, spaces)

    def _sweep(self, kind: Kind) -> Sweep:
        """Return a new sweep or, when too many are active, the newest one of its kind, which takes on the new
        blocks."""
        if len(self.active) >= MAX_ACTIVE:
            for sweep in reversed(self.active):
                if sweep.kind == kind:
                    return sweep
        self._last += 1
        sweep = Sweep(self._last, kind)
        self.active.append(sweep)
        return sweep

    def covers(self, block: Block) -> bool:
        """Return whether an active invalidation has made a READY block unreadable."""
        return self._marked and not self._memory.cold[block.number, COLD_STORED_AT]

    def step(self) -> list[Sweep]:
        """Process the next blocks of the oldest sweep and return the sweeps that ended since the last step."""
        if self.active:
            self._advance(self.active[0])
        ended, self._ended = self._ended, []
        return ended

    def clear_mark(self) -> None:
        """Clear the header entry, unless an invalidation is active. Call this when no dead block is left; readers
        then need not check marks."""
        if self._marked and not any(sweep.kind == "invalidate" for sweep in self.active):
            self._marked = False
            self._memory.header[H_INVALID_COUNT] = 0

    def _advance(self, sweep: Sweep) -> None:
        numbers = sweep.take(CHUNK)
        stored = self._memory.cold[numbers, COLD_STORED_AT]
        if sweep.kind == "demote":
            meant = stored < self._demoting[numbers]
            self._demoting[numbers] = 0
        else:
            meant = stored == 0
        meant &= is_ready(self._memory.control[numbers])
        blocks = [self._blocks[number] for number in numbers[meant].tolist()]
        chosen = [block for block in blocks if block not in self._dead]
        if chosen:
            sweep.blocks += self._act[sweep.kind](chosen)
        # End sweeps in order: blocks of a later sweep may wait in the queue of an earlier one.
        while self.active and not len(self.active[0].queue):
            self._ended.append(self.active.pop(0))

    def _readable(self) -> Mask:
        """Return a mask of the READY blocks that are not invalidated; at most one per key and space."""
        readable: Mask = is_ready(self._memory.control) & (self._memory.cold[:, COLD_STORED_AT] != 0)
        readable[[block.number for block in self._dead]] = False
        return readable

    def _matching(self, readable: Mask, tenant: Tenant | None, spaces: frozenset[int] | None) -> I64:
        chosen = readable
        if tenant is not None:
            chosen = chosen & (self._memory.cold[:, COLD_TENANT] == np.uint64(tenant.number))
        if spaces is not None:
            chosen = chosen & np.isin(_space(self._memory.hot), np.array(sorted(spaces), np.uint64))
        return np.flatnonzero(chosen)

    def _behind(self, numbers: I64, readable: Mask, keys: Sequence[bytes], *, torn: bool) -> Mask:
        """Return a mask of the blocks that belong to a prefix or were stored behind it.

        With `torn`, include blocks that were stored behind an ancestor that is no longer present.
        """
        hot, parent_keys = self._memory.hot[numbers], self._table.rows[numbers, ROW_PARENT:]
        spaces = _space(hot)
        readable_rows = self._memory.hot[readable]
        at = len(readable_rows)
        key_ids, count = identities(
            np.concatenate((readable_rows[:, _KEY], hot[:, _KEY], parent_keys)),
            np.concatenate((_space(readable_rows), spaces, spaces)),
        )
        own_ids, parent_ids = key_ids[at : at + len(numbers)], key_ids[at + len(numbers) :]
        rooted = (parent_keys != 0).any(axis=1)
        row_of = np.full(count, -1, np.int64)
        row_of[own_ids] = np.arange(len(numbers))
        prefix = among(hot[:, _KEY], keys)
        chosen = rooted & among(parent_keys, keys[-1:])
        if torn:
            is_present = np.zeros(count, np.bool_)
            is_present[key_ids[:at]] = True
            loose = rooted & ~is_present[parent_ids] & ~among(parent_keys, keys)
            owners = np.unique(self._memory.cold[numbers[prefix], COLD_TENANT])
            if len(owners):
                loose &= np.isin(self._memory.cold[numbers, COLD_TENANT], owners)
            chosen |= loose
        links = np.where(rooted, row_of[parent_ids], -1)
        return prefix | descendants(links, chosen)

    def _mark(self, numbers: I64) -> None:
        """Make blocks unreadable: write the marks, then the header entry that makes readers check them."""
        self._memory.cold[numbers, COLD_STORED_AT] = 0
        if len(numbers) and not self._marked:
            self._marked = True
            header = self._memory.header
            header[H_INVALID : H_INVALID + INVALID_BEFORE_NS] = 0  # any space, any tenant
            header[H_INVALID + INVALID_BEFORE_NS] = 1
            header[H_INVALID_COUNT] = 1

    def stats(self, leased: int) -> list[SweepStats]:
        """Return the statistics of active sweeps; the first one carries the count of leased dead blocks."""
        return [
            SweepStats(sweep.number, sweep.kind, sweep.blocks, leased if at == 0 else 0)
            for at, sweep in enumerate(self.active)
        ]


def _space(rows: U64) -> U64:
    return rows[:, HOT_SPACE_SEGMENT] & _LOW32
