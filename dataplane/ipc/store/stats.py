"""Counters of stores, which any process of the user can read without attaching."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import numpy as np

from dataplane.ipc import memory
from dataplane.ipc.store.errors import StoreCorrupted
from dataplane.ipc.store.layout import (
    COLUMN_NBYTES,
    FREE,
    H_ABANDONED_PUTS,
    H_DEAD_PROCESSES,
    H_EVICTIONS,
    H_PAST_HITS,
    H_PAST_MISSES,
    H_PUT_BYTES,
    H_PUTS,
    H_USED_SLOTS,
    KIND,
    PAGE_BYTES,
    R_HITS,
    R_LEFT,
    R_MISSES,
    R_PID,
    READY,
    ROW_WORDS,
    STATE_MASK,
    U64,
    shape_of,
)

MAX_COUNTED_SLOTS = 1 << 16
"""Objects are counted only in stores that have used at most this many slots of their table."""
MAX_LEASE_BYTES = 1 << 20
"""Objects that are being read are counted only in stores whose lease counters take at most this many bytes."""


class StoreStats(msgspec.Struct, frozen=True):
    """Counters of one store. Totals are since its creation."""

    name: str
    identity: str
    data_bytes: int
    """The budget."""
    max_objects: int
    objects: int | None
    """Objects that can be read; None in a store whose table is too large to count them."""
    object_bytes: int | None
    """Their size."""
    used_bytes: int | None
    """Size of all objects: also those that are being written, and removed ones that are still being read."""
    leased_objects: int | None
    """Objects that are being read; None in a store with too many lease counters to read them all."""
    hits: int
    misses: int
    puts: int
    put_bytes: int
    evictions: int
    dead_processes: int
    """Processes that ended without closing the store and whose leases were given back."""
    abandoned_puts: int
    """Half-written objects of dead processes that were freed."""
    pids: tuple[int, ...]
    """Pids of attached processes, each as that process itself sees its pid."""


def read_stats(fd: int, name: str, identity: str, *, bounded: bool = True) -> StoreStats:
    """Read the counters of a store from copies of its pages, without a mapping. If processes use the store, the
    counters may be from slightly different times.

    With `bounded`, reads at most 2.3 MiB, whatever the memory contains. Raises StoreCorrupted if it is not a store's
    memory, and OSError.
    """
    page = os.pread(fd, PAGE_BYTES, 0)
    if len(page) < PAGE_BYTES:
        raise StoreCorrupted("header: expected a whole page")
    header = np.frombuffer(page, np.uint64)
    shape = shape_of(header, os.fstat(fd).st_size)
    rows = _words(fd, shape.rows_offset, ROW_WORDS * shape.processes).reshape(-1, ROW_WORDS)
    slots = min(int(header[H_USED_SLOTS]), shape.objects)  # the rest was never written
    objects = object_bytes = used_bytes = leased = None
    if slots <= MAX_COUNTED_SLOTS or not bounded:
        state = _words(fd, PAGE_BYTES, slots) & np.uint64(STATE_MASK)
        nbytes = _words(fd, PAGE_BYTES + COLUMN_NBYTES * shape.stride, slots)
        ready, used = state == READY, state != FREE
        objects, object_bytes, used_bytes = (int(ready.sum()), int(nbytes[ready].sum()), int(nbytes[used].sum()))
        lease_bytes = slots * shape.lease_stride
        if lease_bytes <= MAX_LEASE_BYTES or not bounded:
            leases = _words(fd, shape.leases_offset, lease_bytes // 8).reshape(slots, shape.lease_stride // 8)
            leased = int((leases.any(axis=1) & used).sum())
    pids = np.flatnonzero((rows[:, R_PID] != 0) & (rows[:, R_LEFT] == 0))
    return StoreStats(
        name=name,
        identity=identity,
        data_bytes=shape.data_bytes,
        max_objects=shape.objects,
        objects=objects,
        object_bytes=object_bytes,
        used_bytes=used_bytes,
        leased_objects=leased,
        hits=int(header[H_PAST_HITS]) + int(rows[:, R_HITS].sum()),
        misses=int(header[H_PAST_MISSES]) + int(rows[:, R_MISSES].sum()),
        puts=int(header[H_PUTS]),
        put_bytes=int(header[H_PUT_BYTES]),
        evictions=int(header[H_EVICTIONS]),
        dead_processes=int(header[H_DEAD_PROCESSES]),
        abandoned_puts=int(header[H_ABANDONED_PUTS]),
        pids=tuple(rows[pids, R_PID].tolist()),
    )


def _words(fd: int, offset: int, count: int) -> U64:
    """Return a copy of words of the memory. Raises StoreCorrupted if it ends before them."""
    data = os.pread(fd, 8 * count, offset)
    if len(data) < 8 * count:
        raise StoreCorrupted("memory: it ends within its tables")
    return np.frombuffer(data, np.uint64)


def live_stores() -> Iterator[StoreStats]:
    """Return the counters of each store that a process of this user has open."""
    return memory.read_all(KIND, read_stats, StoreCorrupted)
