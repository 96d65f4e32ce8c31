"""One attachment's memory, as this process maps it: index, own area, segments.

A world outlives its connection: leases and views keep it alive, also when the client has attached anew to another data
plane. Counters are raised and lowered here, by the rules that `dataplane.protocol.layout` explains.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from collections import deque
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from dataplane.protocol.engine import SegmentGrant
from dataplane.protocol.layout import (
    A_RING_DROPPED,
    A_RING_HEAD,
    A_RING_TAIL,
    H_CLOSED,
    HOT_SPACE_SEGMENT,
    I64,
    RING_COUNT_BITS,
    RING_COUNT_MASK,
    RING_KIND_SHIFT,
    RING_LOOKUP,
    RING_TOUCH,
    U64,
    AreaMemory,
    IndexMemory,
    is_ready,
    leading,
)

_TOUCH = np.uint64(RING_TOUCH << RING_KIND_SHIFT)
_ONE = np.uint32(1)
_SHIFT32 = np.uint64(32)


def map_shared(fd: int, nbytes: int, *, writable: bool) -> mmap.mmap:
    """Map a memory fd, and keep it out of forked children: they are not part of the protocol."""
    protection = mmap.PROT_READ | mmap.PROT_WRITE if writable else mmap.PROT_READ
    mapped = mmap.mmap(fd, nbytes, mmap.MAP_SHARED, protection)
    mapped.madvise(mmap.MADV_DONTFORK)
    return mapped


class MappedSegment:
    """One segment of the arena in this process's address space."""

    __slots__ = ("_map", "address", "nbytes", "writable")

    def __init__(self, mapped: mmap.mmap, *, writable: bool) -> None:
        self._map = mapped
        self.nbytes = len(mapped)
        self.writable = writable
        self.address: int = np.frombuffer(mapped, np.uint8).ctypes.data


class Window:
    """Bytes of a block as numpy sees them; keeps its owner (a lease's hold, a reservation) alive with every view."""

    __slots__ = ("__array_interface__", "_owner", "_segment")

    def __init__(
        self, owner: object, segment: MappedSegment, offset: int, nbytes: int, *, writable: bool
    ) -> None:
        self._owner = owner
        self._segment = segment
        self.__array_interface__ = {
            "data": (segment.address + offset, not writable),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }

    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes; whatever is derived from the array keeps the owner alive."""
        return np.asarray(self)


class World:
    """Memory of one attachment."""

    def __init__(
        self,
        index: mmap.mmap,
        area: mmap.mmap,
        spaces: list[int],
        client: int,
        epoch: int,
        *,
        membarrier: bool,
    ) -> None:
        self.index = IndexMemory.attach(memoryview(index))
        self.area = AreaMemory.attach(memoryview(area))
        self.spaces = spaces
        self.client = client
        self.epoch = epoch
        self.membarrier = membarrier
        self.segments: dict[int, MappedSegment] = {}
        self.alive = True
        """False in a forked child, where nothing of it is mapped."""
        self._lock = threading.Lock()
        self._drops: deque[I64] = deque()
        self._held = 0
        self._head = int(self.area.header[A_RING_HEAD])
        _worlds.add(self)

    @property
    def closed(self) -> bool:
        """The data plane stopped in good order."""
        return int(self.index.header[H_CLOSED]) != 0

    @property
    def idle(self) -> bool:
        """No lease or view of this world is left."""
        self._settle()
        return self._held == 0

    def add_segments(self, grants: list[SegmentGrant], fds: list[int]) -> None:
        """Map granted segments; closes the fds."""
        for grant, fd in zip(grants, fds, strict=True):
            try:
                if grant.segment not in self.segments:
                    mapped = map_shared(fd, grant.nbytes, writable=grant.writable)
                    self.segments[grant.segment] = MappedSegment(mapped, writable=grant.writable)
            finally:
                os.close(fd)

    # ---- reading

    def hits(self, words: U64, space: int) -> int:
        """Leading READY blocks of a chain in a space, as of now."""
        numbers, control = self.index.find(words, space)
        return leading((numbers >= 0) & is_ready(control))

    def unmapped(self, rows: U64) -> list[int]:
        """Segments of held blocks that are not mapped yet."""
        wanted = set((rows[:, HOT_SPACE_SEGMENT] >> _SHIFT32).tolist())
        return sorted(wanted - self.segments.keys())

    def mapped(self, rows: U64) -> int:
        """Leading held blocks whose segments are mapped."""
        segments = (rows[:, HOT_SPACE_SEGMENT] >> _SHIFT32).tolist()
        return next(
            (at for at, segment in enumerate(segments) if segment not in self.segments), len(segments)
        )

    def hold(self, words: U64, space: int) -> tuple[I64, U64]:
        """Raise counters on the leading hits of a chain, then look again; (descriptors, hot rows) of what is held."""
        numbers, control = self.index.find(words, space)
        hits = leading((numbers >= 0) & is_ready(control))
        raised = numbers[:hits]
        self._raise(raised)
        control, rows, same = self.index.confirm(raised, words[:hits], space)
        kept = leading(same & is_ready(control))
        if kept < hits:
            self.drop(raised[kept:])
        return raised[:kept], rows[:kept]

    def held_rows(self, descriptors: I64) -> U64:
        """Rows of blocks that the data plane leased for us."""
        with self._lock:
            self._held += len(descriptors)
        return self.index.hot[descriptors]

    def _raise(self, descriptors: I64) -> None:
        self._settle()
        with self._lock:
            np.add.at(self.area.counters, descriptors, _ONE)
            self._held += len(descriptors)

    def drop(self, descriptors: I64) -> None:
        """Lower counters. May be called by the garbage collector in any thread, also inside `_raise`: never waits."""
        self._drops.append(descriptors)
        self._settle()

    def _settle(self) -> None:
        while self._drops and self.alive and self._lock.acquire(blocking=False):
            try:
                with suppress(IndexError):
                    descriptors = self._drops.popleft()
                    np.subtract.at(self.area.counters, descriptors, _ONE)
                    self._held -= len(descriptors)
            finally:
                self._lock.release()

    # ---- the access ring

    def note_touches(self, descriptors: I64, rows: U64) -> None:
        """Tell the data plane which blocks were read; tail first, so that ancestors stay newest."""
        entries = np.empty((len(descriptors), 2), np.uint64)
        entries[:, 0] = descriptors[::-1].astype(np.uint64) | _TOUCH
        entries[:, 1] = rows[::-1, 0]
        self._append(entries)

    def note_lookup(self, fingerprint: int, requested: int, hits: int) -> None:
        """Tell the data plane how a look-up went."""
        first = (
            RING_LOOKUP << RING_KIND_SHIFT
            | min(requested, RING_COUNT_MASK) << RING_COUNT_BITS
            | min(hits, requested)
        )
        with self._lock:
            header = self.area.header
            if self._head - int(header[A_RING_TAIL]) >= self.area.ring_entries:
                header[A_RING_DROPPED] += np.uint64(1)
                return
            self.area.ring[self._head % self.area.ring_entries] = (first, fingerprint)
            self._head += 1
            header[A_RING_HEAD] = self._head

    def _append(self, entries: U64) -> None:
        with self._lock:
            header = self.area.header
            room = self.area.ring_entries - (self._head - int(header[A_RING_TAIL]))
            fits = max(0, min(room, len(entries)))
            if fits < len(entries):
                header[A_RING_DROPPED] += np.uint64(len(entries) - fits)
            at = np.arange(self._head, self._head + fits, dtype=np.int64) % self.area.ring_entries
            self.area.ring[at] = entries[:fits]
            self._head += fits
            header[A_RING_HEAD] = self._head


_worlds: weakref.WeakSet[World] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for world in list(_worlds):
        world.alive = False
        # Nothing of it is mapped here, so the child's own memory may lie where it was: the mappings must never be
        # closed, not even at the end of the interpreter.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(world))


os.register_at_fork(after_in_child=_after_fork_in_child)
