"""Memory of a store, and why its protocol is safe.

One sealed memfd: a header page, the table of objects (an array for each field), the rows of processes, their leases,
and the data. The table is the only truth. Everything else (free ranges, order of eviction) is derived from it.

*State.* The control word of an object is `sequence << 8 | state`:

    FREE ──allocate──> WRITING ──publish──> READY ──evict, clear──> RETIRED ──free──> FREE

A WRITING object returns to FREE when its writer fails or dies. Sequence numbers are never reused, so a handle always
names the same object. The control word is stored last in every step: a writer that is killed between two stores
leaves the previous state, or the next one.

*Writers* change the table under one lock (`locks`), which the kernel releases when the holder dies. Payloads are copied
outside the lock, into WRITING objects, which only their writer touches. A writer first increments H_CHANGES; a process
that finds another number than the one that it left derives its free ranges again. A process that takes the lock
therefore does not need to know how far a killed holder got.

*Readers* take no lock. A reader increments its own lease counter of the object, reads the control word, and continues
only if it is READY with the expected sequence. A writer that evicts stores RETIRED, issues `membarrier`, and reads the
lease counters of all rows; it frees the object only if all are 0. This is Dekker's mutual exclusion with the fence on
the rare side: either the reader's increment came before the barrier, and the writer sees it; or it came after, and
the reader sees RETIRED and lowers its counter again. `dataplane.protocol.layout` gives the full argument.

*Death.* A process holds a kernel lock on the byte of its row as long as it lives. Another process that gets that lock
has proof that the first one is gone: its leases are set to 0 and its WRITING objects are freed.

*Reads that are waited for.* A store may be created for a number of readers. Then every handle that `put` or
`get_cached` returns counts as a reference (`refs`), every `get` of a handle counts in the row of its reader (`reads`),
and an object is kept until each living reader has read it once for each reference. A row that replaces a dead reader's
starts with the references of that moment. A reader may never get a handle, because what carried it was dropped:
`return_reference` lowers `refs` if the sender knows, and H_UNREAD_NS limits the wait if it does not.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dataplane.ipc.arguments import whole_number
from dataplane.ipc.store.errors import StoreCorrupted

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]

KIND = "store"
"""Part of the name of the memory, see `dataplane.ipc.memory`."""
MAGIC = 0x3145524F5453444C  # "LDSTORE1"
PAGE_BYTES = 4096
ALIGNMENT = 64
"""Objects, and the arrays in them, start at multiples of this many bytes."""
MAX_OBJECTS = 1 << 20
MAX_PROCESSES = 4096
MAX_DATA_BYTES = 1 << 46

(H_MAGIC, H_IDENTITY, H_IDENTITY_2, H_DATA_OFFSET, H_DATA_BYTES, H_OBJECTS, H_PROCESSES, H_FLAGS, H_CHECK) = range(9)
"""Words that never change; the last one is a checksum of the others."""
FLAG_CHECKSUMS = 1
FLAG_PICKLE = 2

(
    H_CHANGES,
    H_NEXT_SEQUENCE,
    H_LOCK_PID,
    H_READERS_EVER,
    H_PUTS,
    H_PUT_BYTES,
    H_EVICTIONS,
    H_DEAD_PROCESSES,
    H_ABANDONED_PUTS,
    H_PAST_HITS,
    H_PAST_MISSES,
    H_USED_SLOTS,
    H_READERS,
    H_UNREAD_NS,
) = range(16, 30)
"""Words that change, under the lock. H_PAST_* count hits and misses of processes that have left; rows of the table from
H_USED_SLOTS on were never used; H_READERS is the number of readers that handles are kept for, and H_UNREAD_NS for how
long (0: without end)."""
H_SECRET, H_SECRET_END = 64, 68
"""32 random bytes, with which attached processes may sign what they send each other."""

FREE, WRITING, READY, RETIRED = range(4)
STATE_BITS = 8
STATE_MASK = (1 << STATE_BITS) - 1
MAX_COUNT = (1 << 55) - 1
"""Largest count or sequence number that writers store: it fits into the control word of an object."""

R_PID, R_LEFT, R_READER, R_HITS, R_MISSES = range(5)
ROW_WORDS = 8
"""Words of a process's row: its pid (0: the row is free), whether it left in order, whether it reads, counters."""

_STATE = np.uint64(STATE_MASK)
_COLUMNS = ("control", "tag", "tag_2", "offset", "nbytes", "used", "check", "check_2", "owner")
COLUMN_NBYTES = _COLUMNS.index("nbytes")


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes from which all places in the memory follow."""

    data_bytes: int
    objects: int
    processes: int

    def __post_init__(self) -> None:
        for name, value, most in (
            ("budget_bytes", self.data_bytes, MAX_DATA_BYTES),
            ("max_objects", self.objects, MAX_OBJECTS),
            ("max_processes", self.processes, MAX_PROCESSES),
        ):
            whole_number(name, value, 1, most)

    @property
    def stride(self) -> int:
        """Bytes from one column of 8-byte words to the next."""
        return up(8 * self.objects, ALIGNMENT)

    @property
    def lease_stride(self) -> int:
        """Bytes from the lease counters of one object to those of the next."""
        return up(4 * self.processes, ALIGNMENT)

    @property
    def refs_offset(self) -> int:
        return PAGE_BYTES + len(_COLUMNS) * self.stride

    @property
    def rows_offset(self) -> int:
        return self.refs_offset + self.stride

    @property
    def leases_offset(self) -> int:
        return self.rows_offset + 8 * ROW_WORDS * self.processes

    @property
    def reads_offset(self) -> int:
        return self.leases_offset + self.lease_stride * self.objects

    @property
    def data_offset(self) -> int:
        """Bytes before the data, in whole pages."""
        return up(self.reads_offset + self.lease_stride * self.objects, PAGE_BYTES)

    @property
    def file_bytes(self) -> int:
        return self.data_offset + up(self.data_bytes, PAGE_BYTES)


class Tables:
    """Arrays over everything before the data."""

    __slots__ = (
        "check",
        "check_2",
        "control",
        "header",
        "leases",
        "nbytes",
        "offset",
        "owner",
        "reads",
        "refs",
        "rows",
        "shape",
        "tag",
        "tag_2",
        "used",
    )
    control: U64
    """[objects] `sequence << 8 | state`."""
    tag: U64
    tag_2: U64
    """[objects] The digest of the key."""
    offset: U64
    """[objects] Start in the data, in bytes."""
    nbytes: U64
    """[objects] Size in bytes."""
    used: U64
    """[objects] When the object was last used, in nanoseconds of CLOCK_MONOTONIC."""
    check: U64
    check_2: U64
    """[objects] The checksum of the bytes, if the store has checksums."""
    owner: U64
    """[objects] The row of the process that writes the object."""

    def __init__(self, memory: npt.NDArray[np.uint8], shape: Shape) -> None:
        """`memory` [data_offset] stays alive as long as any of the arrays."""
        self.shape = shape
        words = memory.view(np.uint64)
        counters = memory.view(np.uint32)
        self.header = words[: PAGE_BYTES // 8]
        for number, name in enumerate(_COLUMNS):
            start = (PAGE_BYTES + number * shape.stride) // 8
            setattr(self, name, words[start : start + shape.objects])
        self.refs: U32 = counters[shape.refs_offset // 4 :][: shape.objects]
        rows = words[shape.rows_offset // 8 :][: ROW_WORDS * shape.processes]
        self.rows: U64 = rows.reshape(shape.processes, ROW_WORDS)
        self.leases = self._matrix(counters, shape.leases_offset)
        self.reads = self._matrix(counters, shape.reads_offset)

    def used_slots(self) -> int:
        """Return the number of leading rows of the table that may have objects."""
        return min(int(self.header[H_USED_SLOTS]), self.shape.objects)

    def in_state(self, state: int) -> list[int]:
        """Return the slots in a state at this moment."""
        states = self.control[: self.used_slots()] & _STATE
        slots: list[int] = (states == np.uint64(state)).nonzero()[0].tolist()
        return slots

    def _matrix(self, counters: U32, offset: int) -> U32:
        """Return counters [objects, processes]; each column is written by its process alone."""
        stride = self.shape.lease_stride // 4
        flat = counters[offset // 4 :][: stride * self.shape.objects]
        return flat.reshape(self.shape.objects, stride)[:, : self.shape.processes]


def shape_of(header: U64, file_bytes: int) -> Shape:
    """Return the sizes that a header states. Raise StoreCorrupted unless they fit the file."""
    words = header[:16].tolist()
    if words[H_MAGIC] != MAGIC:
        raise StoreCorrupted(f"header: expected the magic number {MAGIC:#x}, got {words[H_MAGIC]:#x}")
    if words[H_CHECK] != header_check(header):
        raise StoreCorrupted("header: the checksum of its sizes does not match")
    try:
        shape = Shape(words[H_DATA_BYTES], words[H_OBJECTS], words[H_PROCESSES])
    except ValueError as error:
        raise StoreCorrupted(f"header: {error}") from None
    if (shape.data_offset, shape.file_bytes) != (words[H_DATA_OFFSET], file_bytes):
        raise StoreCorrupted(
            f"header: expected data at {shape.data_offset} of {shape.file_bytes} bytes, "
            f"got {words[H_DATA_OFFSET]} of {file_bytes}"
        )
    return shape


def increment(header: U64, word: int) -> int:
    """Add one to a counter of the header, under the lock. Return its value before. Raise StoreCorrupted for garbage."""
    value = int(header[word])
    if value > MAX_COUNT:
        raise StoreCorrupted(f"header: expected at most {MAX_COUNT} in word {word}, got {value}")
    header[word] = value + 1
    return value


def header_check(header: U64) -> int:
    """Return the checksum of the words that never change."""
    return zlib.crc32(header[:H_CHECK].tobytes())


def up(value: int, to: int) -> int:
    """Round up to a multiple."""
    return -(-value // to) * to
