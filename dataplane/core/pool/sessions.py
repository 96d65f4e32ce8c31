"""Sessions of a node: which blocks belong to one conversation alone, and where its chain ends.

A request may name its session. Each block has an owner: the one session whose requests stored it, or stored behind it.
Once a request of another session, or of none, stores behind the block, it has no owner: it is a shared prefix. A block
that was loaded from a tier belongs to the first session that names it.

Requests that only read a block are not seen here, and do not make it shared.

Sessions are bounded: once all places are used, one of the tenant with the most sessions is forgotten, and its blocks
count as shared. They are not in the recovery table: a data plane that adopts the memory of another one forgets them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import I64, U64, Mask

if TYPE_CHECKING:
    from dataplane.core.blocks.blocks import Block

MAX_SESSIONS = 1 << 15
"""Most sessions of a node, of up to 200 bytes each."""
SHARED, UNCLAIMED = 0, 1
"""Owners of blocks without a session, and of blocks that were loaded from a tier and not named since. The ids of
sessions follow."""
_END = 1 << 63
"""Flag beside the owner of a block at which a chain of the session has ended."""
_OWNER = np.uint64(_END - 1)
_ROW_BITS = 16
_RELEASED_FIRST = 1 << 48
"""Bit in the order of sessions that those which are not released have."""
_HASH = (1 << 32) - 1


class SessionRecord(NamedTuple):
    """One session. Times are Unix seconds."""

    row: int
    id: int
    tenant: int
    """Number of the tenant."""
    name: str
    space: int
    """Leading space in which its chain was stored last; 0 if none of its blocks was stored."""
    tail: bytes
    """Key of the last block of its chain."""
    started_at: int
    used_at: int
    released: bool
    retained_until: int
    """0 if it is not retained."""
    order: int
    """Sessions with smaller numbers are evicted earlier."""


class SessionTable:
    """The sessions of all tenants, and the owners of all blocks."""

    def __init__(self, max_blocks: int, max_sessions: int = MAX_SESSIONS) -> None:
        """`max_blocks`: number of descriptors."""
        self.forgotten = 0
        """Sessions that were forgotten because there were too many."""
        self._most = max_sessions
        self._owners: U64 = np.zeros(max_blocks, np.uint64)
        self._owner_cells = self._owners.data
        self._last = UNCLAIMED
        # A column for each field, because 10,000 objects would take several times as much memory.
        self._names: list[bytes] = []
        self._hashes: npt.NDArray[np.uint32] = np.zeros(max_sessions, np.uint32)
        self._ids: U64 = np.zeros(max_sessions, np.uint64)
        self._tenants: npt.NDArray[np.uint32] = np.zeros(max_sessions, np.uint32)
        self._spaces: npt.NDArray[np.uint32] = np.zeros(max_sessions, np.uint32)
        self._started: npt.NDArray[np.uint32] = np.zeros(max_sessions, np.uint32)
        self._used: npt.NDArray[np.uint32] = np.zeros(max_sessions, np.uint32)
        self._retained: npt.NDArray[np.uint32] = np.zeros(max_sessions, np.uint32)
        self._released: Mask = np.zeros(max_sessions, np.bool_)
        self._tails = bytearray(KEY_BYTES * max_sessions)

    def __len__(self) -> int:
        return len(self._names)

    # ---- what requests do

    def name(self, tenant: int, session: str, now: float) -> int:
        """Return the id of the session that a request names, which begins now if it is not known."""
        row = self._find(tenant, session)
        if row is None:
            row = self._place(tenant)
            self._last += 1
            self._names[row] = session.encode()
            self._hashes[row] = _hash(tenant, session)
            self._ids[row], self._tenants[row] = self._last, tenant
            self._spaces[row] = self._retained[row] = 0
            self._started[row] = int(now)
        self._used[row] = int(now)
        self._released[row] = False
        return int(self._ids[row])

    def _place(self, tenant: int) -> int:
        """Return a row for another session: a new one, or, once all are used, that of a session which is forgotten: one
        of the tenant with the most sessions, or of this one if no other has more. Released sessions go first, then
        those that were used least recently."""
        count = len(self._names)
        if count < self._most:
            self._names.append(b"")
            return count
        tenants, counts = np.unique(self._tenants, return_counts=True)
        own = counts[tenants == tenant]
        loser = tenant if own.size and own[0] >= counts.max() else tenants[counts.argmax()]
        rows = np.flatnonzero(self._tenants == loser)
        order = (~self._released[rows]).astype(np.int64) * _RELEASED_FIRST + self._used[rows]
        self.forgotten += 1
        return int(rows[order.argmin()])

    def stored(self, blocks: Sequence[Block], owner: int) -> None:
        """Set the owner of blocks that are being stored: a session, SHARED or UNCLAIMED."""
        self._owners[[block.number for block in blocks]] = owner

    def named(self, blocks: Sequence[Block], session: int) -> None:
        """Note that a request of a session, or of none (SHARED), stores behind blocks or has found them."""
        numbers = [block.number for block in blocks]
        before = self._owners[numbers]
        owners = np.where(before & _OWNER == session, before, np.uint64(SHARED))
        if session != SHARED:
            owners[before == UNCLAIMED] = session
        self._owners[numbers] = owners

    def ends_with(self, session: int, block: Block, *, leads: bool) -> None:
        """Note the last block of a session's chain. `leads`: whether it is in a leading space. One space of a request
        counts, because all have the same chain: a leading one, or the first one if the node has none."""
        row = self._row_of(session)
        if row is not None and (leads or self._spaces[row] in (0, block.space)):
            self._end(row, block.space, block.key)
            self._flag(block, session)

    def first_victims(self, session: int, blocks: Sequence[Block]) -> list[Block]:
        """Return which of the blocks that a session has stored belong to its release: those that it owns, if it was
        released meanwhile, last block first."""
        row = self._row_of(session)
        if row is None or not self._released[row]:
            return []
        return [block for block in reversed(blocks) if self._owner_cells[block.number] & (_END - 1) == session]

    def _end(self, row: int, space: int, tail: bytes) -> None:
        self._spaces[row] = space
        self._tails[KEY_BYTES * row : KEY_BYTES * (row + 1)] = tail

    def _flag(self, block: Block, session: int) -> None:
        if self._owner_cells[block.number] == session:
            self._owner_cells[block.number] = session | _END

    def evicted(self, blocks: Sequence[Block], is_served: Callable[[bytes, int], bool | None] | None) -> None:
        """Note that blocks leave memory. A chain whose last block is then in no tier ends with the block before.

        `is_served` returns None for the key of a block that no tier holds in a space.
        """
        if not self._names:
            return
        owners = self._owner_cells
        leaving: set[Block] = set()
        for evicted in blocks:
            if owners[evicted.number] < _END:
                continue
            session = owners[evicted.number] - _END
            row = self._row_of(session)
            if row is None or not self._ends(row, evicted):
                continue
            leaving = leaving or set(blocks)
            last: Block | None = evicted
            while last is not None and last in leaving and last.parent:
                if is_served is not None and is_served(last.key, last.space) is not None:
                    break
                self._end(row, last.space, last.parent)
                last = last.before
            if last is not None and last not in leaving:
                self._flag(last, session)

    def _ends(self, row: int, block: Block) -> bool:
        return self._spaces[row] == block.space and self._tail(row) == block.key

    # ---- what operators do

    def find(self, tenant: int, session: str) -> SessionRecord | None:
        """Return a session of a tenant; None if it is not known."""
        row = self._find(tenant, session)
        return None if row is None else self._record(row)

    def page(self, tenant: int | None, session: str, after: int, limit: int) -> list[SessionRecord]:
        """Return the sessions whose order is above `after`, in this order: released ones, then those that were used
        least recently. `tenant` and `session`: only of this tenant (None: all), of this name (empty: all)."""
        count = len(self._names)
        orders = (~self._released[:count]).astype(np.int64) * _RELEASED_FIRST
        orders += (self._used[:count].astype(np.int64) << _ROW_BITS) + np.arange(count)
        chosen = orders > after
        if tenant is not None:
            chosen &= self._tenants[:count] == tenant
        if session:
            wanted = session.encode()
            chosen &= np.array([name == wanted for name in self._names], np.bool_)
        rows = np.flatnonzero(chosen)
        rows = rows[orders[rows].argsort()[:limit]]
        return [self._record(row) for row in rows.tolist()]

    def release(self, record: SessionRecord) -> None:
        """Note that a session was released."""
        self._released[record.row], self._retained[record.row] = True, 0

    def retain(self, record: SessionRecord, until: float) -> None:
        """Note until when a session is retained."""
        self._released[record.row] = False
        self._retained[record.row] = max(int(self._retained[record.row]), int(until))

    def keep(self, record: SessionRecord) -> None:
        """Note that a session is not released any more."""
        self._released[record.row] = False

    def owned(self, record: SessionRecord) -> I64:
        """Return the descriptors of the blocks that a session owns. Blocks of these descriptors may be gone."""
        return np.flatnonzero((self._owners == record.id) | (self._owners == record.id | _END))

    def owned_by_each(self, records: Sequence[SessionRecord]) -> tuple[I64, I64]:
        """Return the descriptors of the blocks that these sessions own, and for each the position of its session.
        Blocks of these descriptors may be gone."""
        numbers = np.flatnonzero(self._owners > UNCLAIMED)
        if not records:
            return numbers[:0], numbers[:0]
        ids = np.array([record.id for record in records], np.uint64)
        turn = ids.argsort()
        owners = self._owners[numbers] & _OWNER
        places = np.minimum(ids[turn].searchsorted(owners), len(ids) - 1)
        owned = ids[turn][places] == owners
        return numbers[owned], turn[places[owned]]

    def have_one_owner(self, numbers: I64, others: I64) -> Mask:
        """Return which descriptors have the same owner as the others at their positions."""
        same: Mask = self._owners[numbers] & _OWNER == self._owners[others] & _OWNER
        return same

    # ---- rows

    def _find(self, tenant: int, session: str) -> int | None:
        rows = np.flatnonzero(self._hashes[: len(self._names)] == _hash(tenant, session)).tolist()
        name = session.encode()
        return next((row for row in rows if self._tenants[row] == tenant and self._names[row] == name), None)

    def _row_of(self, session: int) -> int | None:
        rows = np.flatnonzero(self._ids[: len(self._names)] == session)
        return int(rows[0]) if len(rows) else None

    def _tail(self, row: int) -> bytes:
        return bytes(self._tails[KEY_BYTES * row : KEY_BYTES * (row + 1)])

    def _record(self, row: int) -> SessionRecord:
        space, used, released = int(self._spaces[row]), int(self._used[row]), bool(self._released[row])
        return SessionRecord(
            row=row,
            id=int(self._ids[row]),
            tenant=int(self._tenants[row]),
            name=self._names[row].decode(),
            space=space,
            tail=self._tail(row) if space else b"",
            started_at=int(self._started[row]),
            used_at=used,
            released=released,
            retained_until=int(self._retained[row]),
            order=(0 if released else _RELEASED_FIRST) + (used << _ROW_BITS) + row,
        )


def _hash(tenant: int, session: str) -> int:
    return hash((tenant, session)) & _HASH
