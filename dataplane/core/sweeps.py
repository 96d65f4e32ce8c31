"""Invalidation and demotion of many blocks: in force at once, swept piece by piece.

What an invalidation covers is found at once, in the descriptors' rows, and marked: its COLD_STORED_AT becomes 0. One
entry in the index header tells readers to look at the marks (see `protocol.layout`), so covered blocks are misses from
that moment, for everybody, however many there are. The sweep then takes them out of the index, first those that were
used longest ago. What a lease still holds is doomed: out of the index, gone when the lease ends. The entry goes when
nothing that is marked is left.

A prefix takes with it what was stored behind its last key, along the chains from parent to child. What was stored
behind something that is not there any more may have been behind it too: an invalidation takes that as well, for nobody
reaches it until its ancestors are stored anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from dataplane.core.books import ROW_PARENT, ROW_USED, Books
from dataplane.core.lineage import Mask, among, descendants, identities
from dataplane.protocol.events import SweepStats
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
    is_ready,
)

if TYPE_CHECKING:
    from dataplane.core.blocks import Block
    from dataplane.core.quotas import Tenant

CHUNK = 16_384
"""Blocks that one step looks at."""
MAX_ACTIVE = 1024
"""Then those of one kind go on as one."""
Kind = Literal["invalidate", "demote"]
_LOW32 = np.uint64(0xFFFFFFFF)
_KEY = slice(HOT_KEY, HOT_KEY + 4)


@dataclass(slots=True)
class Sweep:
    """One operator's wish, until every block was looked at."""

    number: int
    kind: Kind
    queue: I64 = field(default_factory=lambda: np.zeros(0, np.int64))
    """Descriptors of the blocks that are left, those that were used longest ago first."""
    blocks: int = 0

    def add(self, numbers: I64) -> None:
        self.queue = np.concatenate((self.queue, numbers))

    def take(self, count: int) -> I64:
        """The next ones."""
        taken, self.queue = self.queue[:count], self.queue[count:]
        return taken


@dataclass(frozen=True, slots=True)
class Begun:
    """What a sweep was begun for."""

    sweep: int
    before: int
    """What was reserved with a smaller stamp is meant."""
    numbers: I64
    """Descriptors of the blocks."""
    bytes: int
    """Stored in them."""


class Sweeps:
    """Active sweeps. The pool says how blocks go."""

    def __init__(
        self,
        memory: IndexMemory,
        books: Books,
        blocks: dict[int, Block],
        invalidate: Callable[[Sequence[Block]], int],
        demote: Callable[[Sequence[Block]], int],
        doomed: Collection[Block],
    ) -> None:
        self._memory = memory
        self._books = books
        self._blocks = blocks
        self._act: dict[Kind, Callable[[Sequence[Block]], int]] = {
            "invalidate": invalidate,
            "demote": demote,
        }
        self._doomed = doomed
        """Out of the index already; they go when no lease holds them."""
        self._demoting: U64 = np.zeros(memory.max_blocks, np.uint64)
        """For each block in the queue of a demotion the stamp that it must be below; 0: it is in none."""
        self.active: list[Sweep] = []
        self._ended: list[Sweep] = []
        self._marked = False
        """The entry that makes marks count is in the header."""
        self._last = 0
        self._stamp = 0
        """The latest one that was given."""

    def stamp(self, now: float) -> int:
        """What a block that is reserved now is stamped with: ns, 1 or more; never below an earlier one, also when the
        clock was set back."""
        self._stamp = max(self._stamp, int(now * 1e9), 1)
        return self._stamp

    def go_on_after(self, stamp: int) -> None:
        """Blocks that a data plane before this one stored have stamps up to this one."""
        self._stamp = max(self._stamp, stamp + 1)

    def start(
        self,
        kind: Kind,
        tenant: Tenant | None,
        spaces: frozenset[int] | None,
        keys: Sequence[bytes],
        spared: Iterable[Block],
        now: float,
    ) -> Begun:
        """Begin a sweep; an invalidation is in force for readers when this returns.

        No tenant, no spaces or no keys: all of them. Blocks of `spared` are not invalidated.
        """
        before = self._stamp = self.stamp(now) + 1
        numbers = self.covered(kind, tenant, spaces, keys, spared)
        used = self._books.rows[numbers, ROW_USED]
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
        return Begun(sweep.number, before, numbers, self.stored_bytes(numbers))

    def covered(
        self,
        kind: Kind,
        tenant: Tenant | None,
        spaces: frozenset[int] | None,
        keys: Sequence[bytes],
        spared: Iterable[Block],
    ) -> I64:
        """Descriptors of the blocks that a sweep with the same arguments would be about now."""
        readable = self._readable()
        numbers = self._matching(readable, tenant, spaces)
        if keys:
            numbers = numbers[self._behind(numbers, readable, keys, torn=kind == "invalidate")]
        if kind == "invalidate":
            numbers = np.setdiff1d(numbers, [block.number for block in spared])
        return numbers

    def stored_bytes(self, numbers: I64) -> int:
        """Bytes that were stored in these blocks; what they take of the pool may be more."""
        return int(self._memory.hot[numbers, HOT_NBYTES].sum())

    def select(self, tenant: Tenant | None, spaces: frozenset[int] | None) -> I64:
        """Descriptors of readable blocks of a tenant and of some spaces; None: of all."""
        return self._matching(self._readable(), tenant, spaces)

    def _sweep(self, kind: Kind) -> Sweep:
        """A new sweep; when there are too many, the newest of its kind, which takes this over as well."""
        if len(self.active) >= MAX_ACTIVE:
            for sweep in reversed(self.active):
                if sweep.kind == kind:
                    return sweep
        self._last += 1
        sweep = Sweep(self._last, kind)
        self.active.append(sweep)
        return sweep

    def covers(self, block: Block) -> bool:
        """Whether an invalidation in force has made a READY block unreadable."""
        return self._marked and not self._memory.cold[block.number, COLD_STORED_AT]

    def step(self) -> list[Sweep]:
        """Look at the next blocks of the oldest sweep; sweeps that ended since the last step."""
        if self.active:
            self._advance(self.active[0])
        ended, self._ended = self._ended, []
        return ended

    def rest(self) -> None:
        """Nothing that was taken out of the index is left: readers need not look at marks, unless more is to come."""
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
        chosen = [block for block in blocks if not block.doomed]
        if chosen:
            sweep.blocks += self._act[sweep.kind](chosen)
        # In their order: blocks of a later one may wait in the queue of an earlier one.
        while self.active and not len(self.active[0].queue):
            self._ended.append(self.active.pop(0))

    def _readable(self) -> Mask:
        """READY blocks that nothing invalidated, one at most of a key in a space."""
        readable: Mask = is_ready(self._memory.control) & (self._memory.cold[:, COLD_STORED_AT] != 0)
        readable[[block.number for block in self._doomed]] = False
        return readable

    def _matching(self, readable: Mask, tenant: Tenant | None, spaces: frozenset[int] | None) -> I64:
        chosen = readable
        if tenant is not None:
            chosen = chosen & (self._memory.cold[:, COLD_TENANT] == np.uint64(tenant.number))
        if spaces is not None:
            chosen = chosen & np.isin(_space(self._memory.hot), np.array(sorted(spaces), np.uint64))
        return np.flatnonzero(chosen)

    def _behind(self, numbers: I64, readable: Mask, keys: Sequence[bytes], *, torn: bool) -> Mask:
        """Which blocks are those of a prefix or were stored behind it; `torn`: or behind what is not there."""
        hot, above = self._memory.hot[numbers], self._books.rows[numbers, ROW_PARENT:]
        spaces = _space(hot)
        every = self._memory.hot[readable]
        at = len(every)
        names, count = identities(
            np.concatenate((every[:, _KEY], hot[:, _KEY], above)),
            np.concatenate((_space(every), spaces, spaces)),
        )
        own, parents = names[at : at + len(numbers)], names[at + len(numbers) :]
        rooted = (above != 0).any(axis=1)
        row_of = np.full(count, -1, np.int64)
        row_of[own] = np.arange(len(numbers))
        prefix = among(hot[:, _KEY], keys)
        chosen = rooted & among(above, keys[-1:])
        if torn:
            there = np.zeros(count, np.bool_)
            there[names[:at]] = True
            loose = rooted & ~there[parents] & ~among(above, keys)
            owners = np.unique(self._memory.cold[numbers[prefix], COLD_TENANT])
            if len(owners):
                loose &= np.isin(self._memory.cold[numbers, COLD_TENANT], owners)
            chosen |= loose
        links = np.where(rooted, row_of[parents], -1)
        return prefix | descendants(links, chosen)

    def _mark(self, numbers: I64) -> None:
        """Make blocks unreadable. The marks come before the entry that makes them count."""
        self._memory.cold[numbers, COLD_STORED_AT] = 0
        if len(numbers) and not self._marked:
            self._marked = True
            header = self._memory.header
            header[H_INVALID : H_INVALID + INVALID_BEFORE_NS] = 0  # any space, any tenant
            header[H_INVALID + INVALID_BEFORE_NS] = 1
            header[H_INVALID_COUNT] = 1

    def stats(self, leased: int) -> list[SweepStats]:
        """Active sweeps; doomed blocks that wait for a lease are shown with the first."""
        return [
            SweepStats(sweep.number, sweep.kind, sweep.blocks, leased if at == 0 else 0)
            for at, sweep in enumerate(self.active)
        ]


def _space(rows: U64) -> U64:
    return rows[:, HOT_SPACE_SEGMENT] & _LOW32
