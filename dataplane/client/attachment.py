"""Memory of one attachment as this process maps it: index, own area, segments; and which attachment a client reads.

An attachment outlives its connection: leases and views keep it alive, even after the client has attached to another
data plane. This module raises and lowers the counters, by the rules in `dataplane.protocol.layout`.
"""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter_ns

import numpy as np

from dataplane.client import checks
from dataplane.client.memory import SharedMapping
from dataplane.protocol.engine import (
    MAX_KEYS_PER_REQUEST,
    Attach,
    Attached,
    EngineReply,
    Leased,
    Reserved,
    SegmentGrant,
    SegmentsMapped,
)
from dataplane.protocol.layout import (
    A_EXPELLED,
    A_RING_DROPPED,
    A_RING_HEAD,
    A_RING_TAIL,
    H_CLOSED,
    HOT_NBYTES,
    HOT_OFFSET,
    HOT_SPACE_SEGMENT,
    I64,
    OPERATION_BOUNDS_NS,
    OPERATION_WORDS,
    RING_COUNT_BITS,
    RING_COUNT_MASK,
    RING_KIND_SHIFT,
    RING_LOOKUP,
    RING_POSITION_SHIFT,
    RING_TOUCH,
    U64,
    AreaMemory,
    IndexMemory,
    LayoutError,
    Mask,
    is_ready,
    is_reserved,
    leading,
    longest_prefix,
)

_TOUCH = np.uint64(RING_TOUCH << RING_KIND_SHIFT)
_ONE = np.uint32(1)
_SHIFT32 = np.uint64(32)
_LAST_HEAD = 1 << 62
_largest = np.maximum.reduce


class Attachment:
    """Memory of one attachment."""

    def __init__(self, answer: Attached, fds: list[int]) -> None:
        """Map the memory that an answer to an attach request brought. The caller closes the file descriptors. Raise
        ProtocolError, LayoutError, OSError or ValueError."""
        if len(fds) != 2:
            raise checks.fault(f"attached: expected 2 file descriptors, got {len(fds)}")
        self.index = IndexMemory.attach(SharedMapping.map(fds[0], writable=False).view())
        self.area = AreaMemory.attach(SharedMapping.map(fds[1], writable=True).view())
        self._header_cells = self.area.header.data
        self._head = int(self.area.header[A_RING_HEAD])
        if self.area.max_blocks != self.index.max_blocks:
            raise LayoutError(f"an area of {self.area.max_blocks} blocks for an index of {self.index.max_blocks}")
        if self.area.ring_entries < 1 or self._head > _LAST_HEAD:
            raise LayoutError(f"an access ring of {self.area.ring_entries} entries at {self._head}")
        self.spaces = answer.spaces
        self.client = answer.client
        self.epoch = answer.epoch
        self.membarrier = answer.membarrier
        self.memory = answer.memory
        """Identity of the index memory; 0 if it cannot be resumed."""
        self.writing: set[int] = set()
        """Open reservations: this process may be writing there."""
        self.segments: dict[int, SharedMapping] = {}
        """Segments available for new reads and writes. Leases and reservations keep their own references."""
        self.distrusted = False
        """Whether a block was found outside its segment."""
        self.alive = True
        """False in a forked child, where this memory is not mapped."""
        self._asking = False
        """Whether a lease was requested by message. Then only the data plane may write the counters."""
        self._lock = threading.Lock()
        self._drops: deque[I64] = deque()
        self._lease_count = 0
        self._dropped = 0
        self._operations = [([0] * OPERATION_WORDS, words.data) for words in self.area.operations]
        """For each operation, what this process has written into the words of the area, and these words."""
        self._beyond = np.uint64(self.index.max_blocks)
        _attachments.add(self)

    @property
    def closed(self) -> bool:
        """Whether the data plane stopped cleanly."""
        return int(self.index.header[H_CLOSED]) != 0

    @property
    def idle(self) -> bool:
        """Whether no lease or view of this attachment is left."""
        self._settle()
        return self._lease_count == 0

    def resume(self, answer: Attached, fds: list[int]) -> None:
        """Continue with a data plane that has adopted this memory: counters and views stay unchanged. Raise
        ProtocolError."""
        if fds or answer.memory != self.memory:
            raise checks.fault("attached: resumed what was not asked for")
        if answer.client != self.client or answer.spaces != self.spaces:
            raise checks.fault(f"attached: resumed as client {answer.client} with spaces {answer.spaces[:16]}")
        self.epoch = answer.epoch
        self.membarrier = answer.membarrier

    def add_segments(self, grants: list[SegmentGrant], fds: list[int]) -> None:
        """Map granted segments. The caller closes the file descriptors. Raise ProtocolError."""
        for grant, fd in zip(grants, fds, strict=True):
            mapping = self.segments.get(grant.segment)
            if mapping is None or (grant.writable and not mapping.writable):
                self.segments[grant.segment] = SharedMapping.map(fd, grant.nbytes, writable=grant.writable)

    def retire_segments(self, numbers: list[int]) -> None:
        """Drop segments that the data plane gave up. Their numbers are never reused."""
        for number in numbers:
            self.segments.pop(number, None)

    # ---- reading

    def hits(self, words: U64, tails: Sequence[int]) -> int:
        """Return the number of blocks in the longest prefix of a chain that is READY in every space at this moment.
        `tails` as in `longest_prefix`."""
        present: list[Mask] = []
        for number, tail in zip(self.spaces, tails, strict=True):
            present.append(self.index.find_ready(words, number)[2])
            if not tail:
                words = words[: leading(present[-1])]
                if not len(words):
                    return 0
        return longest_prefix(present, tails)

    def ready_and_writing(self, words: U64, space: int) -> tuple[Mask, Mask]:
        """Return which blocks of a chain are READY in a space at this moment, and which are READY or being written."""
        descriptors, control, rows = self.index.find_rows(words, space)
        is_found = descriptors >= 0
        ready = self.index.ready(descriptors, control, rows, is_found)
        return ready, ready | (is_found & is_reserved(control))

    def unmapped(self, rows: U64) -> list[int]:
        """Return the segments of held blocks that are not mapped yet."""
        mapped_numbers = set((rows[:, HOT_SPACE_SEGMENT] >> _SHIFT32).tolist())
        return sorted(mapped_numbers - self.segments.keys())

    def segments_of(self, rows: U64) -> dict[int, SharedMapping] | None:
        """Return the segments of held blocks, or None unless all blocks clearly lie in mapped segments."""
        if not len(rows):
            return {}
        segments = self.segments
        try:
            held_segments = {
                number: segments[number] for number in set((rows[:, HOT_SPACE_SEGMENT] >> _SHIFT32).tolist())
            }
        except KeyError:
            return None
        smallest_bytes = min([segment.nbytes for segment in held_segments.values()])
        # Floats do not wrap around, and are exact up to the size of any address space.
        block_ends = np.add(rows[:, HOT_OFFSET], rows[:, HOT_NBYTES], dtype=np.float64)
        return held_segments if _largest(block_ends) <= smallest_bytes else None

    def mapped_prefix(self, rows: U64) -> tuple[int, dict[int, SharedMapping]]:
        """Return the number of leading held blocks that lie within mapped segments, and those segments."""
        held_segments: dict[int, SharedMapping] = {}
        for at, (space_and_segment, offset, nbytes) in enumerate(rows[:, HOT_SPACE_SEGMENT:].tolist()):
            number = space_and_segment >> 32
            segment = self.segments.get(number)
            if segment is None:
                return at, held_segments
            if offset + nbytes > segment.nbytes:
                self.distrusted = True
                return at, held_segments
            held_segments[number] = segment
        return len(rows), held_segments

    def hold(self, words: U64, space: int) -> tuple[I64, U64]:
        """Raise counters on the leading hits of a chain and confirm them. Return descriptors and hot rows."""
        numbers, control = self.index.find(words, space)
        # As an unsigned number, a miss (-1) is beyond the index too.
        hits = leading((numbers.view(np.uint64) < self._beyond) & is_ready(control))
        raised = numbers[:hits]
        self._raise(raised)
        valid, rows = self._confirm(raised, words[:hits], space)
        if valid < hits:
            self.drop(raised[valid:])
        return raised[:valid], rows[:valid]

    def begin_asking(self) -> None:
        """Prepare to request a lease by message: counters are not lowered until `end_asking`."""
        with self._lock:
            self._asking = True

    def end_asking(self) -> None:
        """Allow counters to be lowered again: no answer is outstanding."""
        self._asking = False
        self._settle()

    def release(self, descriptors: I64) -> None:
        """Release blocks that the data plane leased in an answer that arrived too late."""
        with self._lock:
            self._lease_count += len(descriptors)
        self.drop(descriptors)

    def take_over(self, descriptors: I64, words: U64, space: int) -> tuple[I64, U64]:
        """Hold blocks as `hold` does, but for blocks whose counters the data plane has already raised."""
        with self._lock:
            self._lease_count += len(descriptors)
        self._settle()
        valid, rows = self._confirm(descriptors, words[: len(descriptors)], space)
        if valid < len(descriptors):
            self.drop(descriptors[valid:])
        return descriptors[:valid], rows[:valid]

    def _confirm(self, descriptors: I64, words: U64, space: int) -> tuple[int, U64]:
        """Return how many leading held blocks are still those that were looked up, and all rows."""
        control, rows, is_unchanged = self.index.confirm(descriptors, words, space)
        valid = leading(self.index.ready(descriptors, control, rows, is_unchanged))
        if self._header_cells[A_EXPELLED]:  # after raising: an expelled client's do not count
            valid = 0
        return valid, rows

    def _raise(self, descriptors: I64) -> None:
        with self._lock:
            np.add.at(self.area.counters, descriptors, _ONE)
            self._lease_count += len(descriptors)
        self._settle()

    def drop(self, descriptors: I64) -> None:
        """Lower counters. Never waits: the garbage collector may call this in any thread, even inside `_raise`. If the
        lock is taken, the thread that has it lowers them."""
        self._drops.append(descriptors)
        self._settle()

    def _settle(self) -> None:
        """Lower the counters of dropped blocks, unless another thread has the lock. Call this after each use of it."""
        while self._drops and self.alive and self._lock.acquire(blocking=False):
            try:
                if self._asking:
                    return
                with suppress(IndexError):
                    descriptors = self._drops.popleft()
                    np.subtract.at(self.area.counters, descriptors, _ONE)
                    self._lease_count -= len(descriptors)
            finally:
                self._lock.release()

    # ---- durations

    def count(self, operation: int, started: int) -> None:
        """Count an operation that began at `started` (nanoseconds of `perf_counter_ns`). The caller holds the client's
        lock."""
        took = perf_counter_ns() - started
        counts, cells = self._operations[operation]
        at = bisect_left(OPERATION_BOUNDS_NS, took)
        counts[at] = cells[at] = counts[at] + 1
        counts[-1] = cells[-1] = counts[-1] + took

    # ---- the access ring

    def note_touches(self, descriptors: I64, rows: U64) -> None:
        """Report to the data plane which blocks were read; tail first, so that ancestors stay newest."""
        entries = np.empty((len(descriptors), 2), np.uint64)
        positions = np.arange(len(descriptors) - 1, -1, -1, dtype=np.int64) << RING_POSITION_SHIFT
        entries[:, 0] = (descriptors[::-1] | positions).astype(np.uint64) | _TOUCH
        entries[:, 1] = rows[::-1, 0]
        self._append(entries)

    def note_lookup(self, fingerprint: int, requested: int, hits: int) -> None:
        """Report the result of a look-up to the data plane."""
        first = (
            RING_LOOKUP << RING_KIND_SHIFT | min(requested, RING_COUNT_MASK) << RING_COUNT_BITS | min(hits, requested)
        )
        with self._lock:
            header = self.area.header
            if self._head - int(header[A_RING_TAIL]) >= self.area.ring_entries:
                self._count_dropped(1)
            else:
                self.area.ring[self._head % self.area.ring_entries] = (first, fingerprint)
                self._head += 1
                header[A_RING_HEAD] = self._head
        self._settle()

    def _append(self, entries: U64) -> None:
        with self._lock:
            header = self.area.header
            used = max(0, self._head - int(header[A_RING_TAIL]))
            fits = max(0, min(self.area.ring_entries - used, len(entries)))
            if fits < len(entries):
                self._count_dropped(len(entries) - fits)
            first = self._head % self.area.ring_entries
            until_end = min(fits, self.area.ring_entries - first)
            self.area.ring[first : first + until_end] = entries[:until_end]
            if until_end < fits:
                self.area.ring[: fits - until_end] = entries[until_end:fits]
            self._head += fits
            header[A_RING_HEAD] = self._head
        self._settle()

    def _count_dropped(self, entries: int) -> None:
        self._dropped += entries
        self.area.header[A_RING_DROPPED] = self._dropped


class AttachedMemory:
    """The memory that a client may read: that of its attachment, or of one whose data plane crashed. The client's lock
    is held by callers that change it."""

    def __init__(self) -> None:
        self.current: Attachment | None = None
        """None before the first attachment, and once the memory is released or is not to be trusted."""
        self.planes = 0
        """Number of data planes that gave this process memory or took it over. A data plane that resumes this client,
        with the same memory and as the same process, is not counted again."""

    def ask_to_resume(self, request: Attach) -> None:
        """Let an attach request ask to continue with this memory."""
        current = self.current
        if current is not None and current.memory:
            request.resume, request.resume_memory = current.client, current.memory
            request.writing = sorted(current.writing)

    def attach(self, answer: Attached, fds: list[int], spaces: int) -> None:
        """Map the memory of a new attachment with so many spaces, or continue with the memory that is mapped. The
        caller closes the file descriptors. Raise ProtocolError, LayoutError, OSError or ValueError."""
        checks.attached(answer, spaces)
        if not answer.resumed:
            self.current = Attachment(answer, fds)
            self.planes += 1
        elif self.current is None:
            raise checks.fault("attached: resumed what was not asked for")
        else:
            epoch = self.current.epoch
            self.current.resume(answer, fds)
            self.planes += answer.epoch != epoch

    def take(self, answer: EngineReply, fds: list[int]) -> None:
        """Map segments that came with an answer, and drop those that it lists as retired. The caller closes the file
        descriptors. Raise ProtocolError."""
        if isinstance(answer, (Reserved, SegmentsMapped)) and self.current is not None:
            checks.grants(answer.grants, len(fds))
            self.current.add_segments(answer.grants, fds)
            self.current.retire_segments(answer.retired)

    def release_late(self, answer: EngineReply) -> None:
        """Release blocks that were leased in an answer that arrived too late. Raise ProtocolError."""
        if isinstance(answer, Leased) and self.current is not None:
            checks.leased(MAX_KEYS_PER_REQUEST, self.current.index.max_blocks)(answer)
            self.current.release(checks.descriptors_of(answer))

    def end_asking(self) -> None:
        """Note that no answer is outstanding."""
        if self.current is not None:
            self.current.end_asking()

    def look(self) -> None:
        """Release the memory if its data plane stopped cleanly, or if its holder has released it."""
        if self.current is not None and self.current.closed:
            self.current = None

    def forget(self) -> None:
        """Read this memory no more."""
        self.end_asking()
        self.current = None


_attachments: weakref.WeakSet[Attachment] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for attachment in list(_attachments):
        attachment.alive = False


os.register_at_fork(after_in_child=_after_fork_in_child)
