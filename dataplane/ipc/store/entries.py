"""Changes of the table of objects: allocate, publish, evict, clear. Each is made under the table's lock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

import numpy as np

from dataplane.ipc.store import steps
from dataplane.ipc.store.attachment import StoreAttachment
from dataplane.ipc.store.errors import ObjectExists, StoreFull
from dataplane.ipc.store.layout import (
    H_CHANGES,
    H_EVICTIONS,
    H_PUT_BYTES,
    H_PUTS,
    H_READERS_EVER,
    H_UNREAD_NS,
    READY,
    RETIRED,
    STATE_BITS,
    STATE_MASK,
    WRITING,
    Tables,
)
from dataplane.ipc.store.space import FreeSpace
from dataplane.protocol.barrier import fence

Tag = tuple[int, int]
ONE = np.uint64(1)
MAX_REFERENCES = (1 << 32) - 2
MAX_REMEMBERED = 32
"""Maximum number of objects that are remembered as the next to evict, so that not every put sorts all objects."""


def find(tables: Tables, tag: Tag) -> tuple[int, int] | None:
    """Return the slot and the sequence of the READY object of a key. Needs no lock; the object may go at any time."""
    for slot in (tables.tag[: tables.used_slots()] == np.uint64(tag[0])).nonzero()[0].tolist():
        control = int(tables.control[slot])
        if control & STATE_MASK == READY and int(tables.tag_2[slot]) == tag[1]:
            return slot, control >> STATE_BITS
    return None


class Allocation(NamedTuple):
    """Bytes that a writer has reserved."""

    slot: int
    sequence: int
    offset: int
    change: int
    """The number of the change that reserved them."""


class ObjectTable:
    """The table as one writer changes it."""

    def __init__(self, attachment: StoreAttachment) -> None:
        self.attachment = attachment
        self._tables = attachment.tables
        self._free: FreeSpace | None = None
        self._seen = -1
        """The number of the change after which the free space was known."""
        self._remembered: list[tuple[int, int, int, int]] = []
        """Slots of the next objects to evict, with their control words, times of use and references. The last entry is
        evicted first."""
        self._readers_ever = 0
        """Number of readers that had ever attached to the store when these objects were remembered."""

    def allocate(self, key: str, tag: Tag, nbytes: int, deadline: float) -> Allocation:
        """Reserve bytes for a writer.

        Raise ObjectExists if the key has an object, StoreFull if there is no room, StoreTimeout.
        """
        with _Change(self, deadline) as free:
            if find(self._tables, tag) is not None:
                raise ObjectExists(f"key {key!r} already exists in the store")
            offset_of = free.take(nbytes) or self._make_room(free, nbytes)
            slot, offset = offset_of
            sequence = steps.allocate(self._tables, slot, offset, nbytes, tag, self.attachment.row)
            change = int(self._tables.header[H_CHANGES])
        return Allocation(slot, sequence, offset, change)

    def publish(self, key: str, tag: Tag, reserved: Allocation, deadline: float) -> None:
        """Make a written object readable. Raise ObjectExists if another writer was first, StoreTimeout."""
        header, slot = self._tables.header, reserved.slot
        change = _Change(self, deadline)
        with change:
            if change.before != reserved.change and find(self._tables, tag) is not None:
                raise ObjectExists(f"key {key!r} was stored by another process meanwhile")
            steps.publish(self._tables, slot, reserved.sequence, references=int(self.attachment.readers > 0))
            header[H_PUTS] += ONE
            header[H_PUT_BYTES] += self._tables.nbytes[slot]

    def abandon(self, reserved: Allocation, deadline: float) -> None:
        """Free an object that was allocated, unless it was published."""
        slot, sequence = reserved.slot, reserved.sequence
        with _Change(self, deadline) as free:
            if int(self._tables.control[slot]) == sequence << STATE_BITS | WRITING:
                self._free_slot(free, slot)

    def refer(self, tag: Tag, deadline: float) -> tuple[int, int] | None:
        """Find an object and count another reference to it, which every reader is expected to read. Reads beyond the
        earlier references, of handles that were sent twice, do not count for it."""
        tables = self._tables
        with self.attachment.lock.until(deadline):
            entry = find(tables, tag)
            if entry is not None:
                slot = entry[0]
                rows = self.attachment.living_readers()
                reads = int(tables.reads[slot, rows].min()) if rows and self._all_attached() else 0
                tables.refs[slot] = min(max(int(tables.refs[slot]), reads), MAX_REFERENCES) + 1
                tables.used[slot] = time.monotonic_ns()
        return entry

    def return_reference(self, slot: int, sequence: int, deadline: float) -> None:
        """Take back a reference to an object: no reader will get that handle."""
        tables = self._tables
        with self.attachment.lock.until(deadline):
            if int(tables.control[slot]) == sequence << STATE_BITS | READY and tables.refs[slot]:
                tables.refs[slot] -= np.uint32(1)

    def _all_attached(self) -> bool:
        """Return whether all readers have attached: each reads for itself then."""
        return int(self._tables.header[H_READERS_EVER]) >= self.attachment.readers

    def evict(self, nbytes: int, deadline: float) -> int:
        """Evict objects, least recently used first, until `nbytes` are freed. Return the number of freed bytes."""
        freed = 0
        with _Change(self, deadline) as free:
            self._reclaim(free)
            victims = self._victims()
            while freed < nbytes and (slot := next(victims, None)) is not None:
                freed += self._evict(free, slot)
        return freed

    def _evict(self, free: FreeSpace, slot: int) -> int:
        """Free an object unless a process reads it. Return its size, else 0."""
        tables = self._tables
        nbytes = int(tables.nbytes[slot])
        steps.retire(tables, slot)
        fence()
        if tables.leases[slot].any():
            return 0
        tables.header[H_EVICTIONS] += np.uint64(1)
        self._free_slot(free, slot)
        return nbytes

    def clear(self, deadline: float) -> None:
        """Remove all objects. Objects that are being read are freed later."""
        tables = self._tables
        with _Change(self, deadline) as free:
            for slot in tables.in_state(READY):
                steps.retire(tables, slot)
            self._reclaim(free)

    def _make_room(self, free: FreeSpace, nbytes: int) -> tuple[int, int]:
        """Free objects until there is room: first removed objects that no process reads, then the least recently
        used ones."""
        tables = self._tables
        self._reclaim(free)
        offset_of = free.take(nbytes)
        if offset_of is not None:
            return offset_of
        for slot in self._victims():
            if self._evict(free, slot):
                offset_of = free.take(nbytes)
                if offset_of is not None:
                    return offset_of
        raise StoreFull(
            f"no room for {nbytes} bytes: expected less, or objects that nothing reads; the store has "
            f"{tables.shape.data_bytes} bytes for {tables.shape.objects} objects"
        )

    def _victims(self) -> Iterator[int]:
        """Yield the objects that may be evicted, least recently used first.

        Remembered objects that were used or removed meanwhile, or that are being read, are skipped.
        """
        remembered, ever = self._remembered, int(self._tables.header[H_READERS_EVER])
        if ever != self._readers_ever:  # new readers may have to read the objects
            remembered.clear()
        while remembered:
            entry = remembered.pop()
            slot = entry[0]
            if self._entry(slot) == entry and not self._tables.leases[slot].any():
                yield slot
        order = self._order()
        self._readers_ever = ever
        remembered += map(self._entry, order[MAX_REMEMBERED:0:-1])
        for number, slot in enumerate(order):
            if number and remembered:
                remembered.pop()
            yield slot

    def _entry(self, slot: int) -> tuple[int, int, int, int]:
        tables = self._tables
        return slot, int(tables.control[slot]), int(tables.used[slot]), int(tables.refs[slot])

    def _order(self) -> list[int]:
        """Return all objects that no process reads and that all readers have read, or that were used too long ago to
        wait for readers, least recently used first."""
        tables = self._tables
        ready = np.array(tables.in_state(READY), np.int64)
        ready = ready[~tables.leases[ready].any(axis=1)]
        readers = self.attachment.readers
        if readers:
            rows = self.attachment.living_readers()
            references, reads_of = tables.refs[ready], tables.reads[ready][:, rows]
            needed = readers
            if self._all_attached():
                needed = min(readers, len(rows))
                reads_of = np.minimum(reads_of, references[:, None])
            reads = reads_of.sum(axis=1, dtype=np.uint64)
            evictable = reads >= references.astype(np.uint64) * np.uint64(needed)
            limit = tables.header[H_UNREAD_NS]
            if limit:
                evictable |= tables.used[ready] + limit < time.monotonic_ns()
            ready = ready[evictable]
        order: list[int] = ready[np.argsort(tables.used[ready], kind="stable")].tolist()
        return order

    def _reclaim(self, free: FreeSpace) -> None:
        """Free what dead processes held, and removed objects that no process reads."""
        tables = self._tables
        changes = int(tables.header[H_CHANGES])
        self.attachment.reclaim_dead()
        if int(tables.header[H_CHANGES]) != changes:
            free.derive()
        retired = tables.in_state(RETIRED)
        if retired:
            fence()
        for slot in retired:
            if not tables.leases[slot].any():
                self._free_slot(free, slot)

    def _free_slot(self, free: FreeSpace, slot: int) -> None:
        offset, nbytes = self.attachment.location_of(slot)
        steps.free(self._tables, slot)
        free.give_back(slot, offset, nbytes)

    def begin(self) -> tuple[FreeSpace, int]:
        """Announce a change, under the lock. Return the free space, and the number of the previous change."""
        before = int(self._tables.header[H_CHANGES])
        free = self._free
        if free is None or self._seen != before:
            free = FreeSpace(self._tables)
        self._free = None
        steps.begin_change(self._tables)
        return free, before

    def end(self, free: FreeSpace) -> None:
        """Remember the free space after a completed change."""
        self._free, self._seen = free, int(self._tables.header[H_CHANGES])


class _Change:
    """`with _Change(table, deadline) as free:` holds the lock of the table, and announces a change."""

    __slots__ = ("_deadline", "_free", "_lock", "_table", "before")

    def __init__(self, table: ObjectTable, deadline: float) -> None:
        self._table = table
        self._lock = table.attachment.lock
        self._deadline = deadline

    def __enter__(self) -> FreeSpace:
        self._lock.acquire(self._deadline)
        try:
            self._free, self.before = self._table.begin()
        except BaseException:
            self._lock.release()
            raise
        return self._free

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None or isinstance(error, ObjectExists | StoreFull):  # nothing is half done
                self._table.end(self._free)
        finally:
            self._lock.release()
