"""Memory of a queue: a header, a slot per reader, and a ring of bytes. Numbers are 64-bit words, little-endian.

Each word has one writer at a time, so no operation has to be atomic beyond an aligned store of 8 bytes:

* The queue's writer stores records into the ring and then publishes: it stores the end position in PUBLISHED.
* A reader copies records up to PUBLISHED and then stores how far it read in the POSITION of its slot.
* The states of slots and of the writer change under `flock(2)` on the memory. The kernel releases the lock when its
  holder dies.

Positions count bytes since the queue was created and never wrap. A record begins with its own position, so a record of
an earlier round of the ring is recognised. x86-64 keeps stores in order and loads in order; only a store and a later
load need a fence, and the comments of `writer.py` and `reader.py` name the pairs. `tests/ipc/queue/model.py` explores
the protocol, with delayed stores and with kills between any two steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct

MAGIC = 0x4555455545445244
VERSION = 1
PAGE_BYTES = 4096
WORD = 8
MAX_WORD = (1 << 64) - 1
MAX_READERS = 64


class QueueHeader(IntEnum):
    """Words of the header; a cache line has eight words."""

    MAGIC = 0
    VERSION = 1
    CAPACITY = 2
    SLOTS = 3
    FLAGS = 4
    CREATED_S = 5
    PUBLISHED = 8
    """Position of the end of the last published record; readers sleep on its low half."""
    WRITER_STATE = 16
    WRITER_PID = 17
    WRITER_STARTED = 18
    EPOCH = 19
    """Number of writers that the queue has had."""
    NEEDED = 24
    """Position that the sleeping writer waits for the slowest reader to reach; 0 while it does not wait."""
    CHANGES = 32
    """Number of changes to reader slots; the writer sleeps on it until readers have joined."""
    READY = 40
    """1 once the writer has seen all expected readers; readers sleep on it."""
    MESSAGES = 48
    BYTES = 49
    WAITS = 50
    WAKES = 51
    DROPPED = 52
    DEAD_READERS = 53
    LARGE_MESSAGES = 54
    REMOTE_READERS = 55
    """Readers that are connected to the writer over ZeroMQ, when it last looked."""
    REMOTE_SECRET = 64
    """First word of the secret key of CURVE, of REMOTE_SECRET_BYTES, for the next writer; zeros if there is none."""


class ReaderSlot(IntEnum):
    """Words of a reader's slot."""

    STATE = 0
    PID = 1
    STARTED = 2
    POSITION = 8
    """Position up to which the reader has read; the writer sleeps on its low half."""
    SLEEPING = 9
    """1 while the reader sleeps, or is about to."""
    SKIP_TO = 16
    """Position to which the writer moved a slow reader, in a queue that drops."""
    MESSAGES = 24
    BYTES = 25
    WAITS = 26
    WAKEUPS = 27
    LOST = 28


class SlotState(IntEnum):
    """State of a slot. A reader claims it; the reader, the writer or the next reader frees it."""

    FREE = 0
    RESERVED = 1
    """Kept for a reader that has not joined yet: messages wait for it. PID and STARTED name its process if it is known,
    else they are 0."""
    ACTIVE = 2


class WriterState(IntEnum):
    """State of the writer. A writer that ended without closing is detected by its process."""

    NONE = 0
    ACTIVE = 1
    CLOSED = 2


class Flag(IntEnum):
    """Bits of FLAGS."""

    DROP = 1
    CHECKSUM = 2
    PICKLE = 4


class Kind(IntEnum):
    """Kinds of records."""

    MESSAGE = 1
    PADDING = 2
    """Unused bytes up to the end of the ring."""
    LARGE = 3
    """The message is in memory of its own, which the record names."""


REMOTE_SECRET_BYTES = 40
SLOT_WORDS = 32
SLOTS_AT = PAGE_BYTES // WORD
"""Word at which the slots begin."""
RECORD_BYTES = 32
RECORD = Struct("<4Q")
"""A record begins with four words: position, kind | buffers | bytes, length of the body, checksum."""
LARGE = Struct("<3Q")
"""Process, descriptor and inode of a message that has memory of its own."""
LARGE_BYTES = 32
ALIGNMENT = 64
"""Alignment of records and of buffers in them, in bytes."""
MIN_CAPACITY, MAX_CAPACITY = 1 << 12, 1 << 40
"""Bounds of the bytes of a ring."""
MAX_POSITION = 1 << 62
"""Larger positions are garbage: a queue would need decades to reach this one."""
_BUFFERS_SHIFT = 40
_KIND_SHIFT = 56
_LENGTH_MASK = (1 << _BUFFERS_SHIFT) - 1
MAX_BUFFERS = (1 << 16) - 1
MAX_MESSAGE_BYTES = _LENGTH_MASK


def header_fault(words: Sequence[int], nbytes: int) -> str:
    """Return why memory is not a queue of this release; empty if it is. `words`: those of its first page or more.
    `nbytes`: size of the memory."""
    if len(words) < SLOTS_AT or words[QueueHeader.MAGIC] != MAGIC:
        return "is not a queue"
    if words[QueueHeader.VERSION] != VERSION:
        return f"has layout {words[QueueHeader.VERSION]}, and this release reads layout {VERSION}"
    slots, capacity = words[QueueHeader.SLOTS], words[QueueHeader.CAPACITY]
    if not 1 <= slots <= MAX_READERS:
        return f"has {slots} slots for readers; expected 1 to {MAX_READERS}"
    if not MIN_CAPACITY <= capacity <= MAX_CAPACITY or capacity % ALIGNMENT:
        return f"has a ring of {capacity} bytes; expected {MIN_CAPACITY} to {MAX_CAPACITY}, a multiple of {ALIGNMENT}"
    if ring_at(slots) + capacity != nbytes:
        return f"has {nbytes} bytes; expected {ring_at(slots) + capacity}"
    return ""


def position_fault(words: Sequence[int]) -> str:
    """Return why a queue cannot be joined or taken over at its position; empty if it can."""
    position = words[QueueHeader.PUBLISHED]
    if position % ALIGNMENT or position > MAX_POSITION:
        return f"has messages up to {position}; expected a multiple of {ALIGNMENT} up to {MAX_POSITION}"
    return ""


def slot_word(slot: int) -> int:
    """Return the first word of a reader's slot."""
    return SLOTS_AT + slot * SLOT_WORDS


def ring_at(slots: int) -> int:
    """Return the byte at which the ring begins."""
    return PAGE_BYTES + -(-slots * SLOT_WORDS * WORD // PAGE_BYTES) * PAGE_BYTES


def align(nbytes: int) -> int:
    """Round up to the alignment of records."""
    return (nbytes + ALIGNMENT - 1) & -ALIGNMENT


def describe(kind: int, buffers: int, nbytes: int) -> int:
    """Return the second word of a record. `nbytes`: of the payload, without the record's own words."""
    return kind << _KIND_SHIFT | buffers << _BUFFERS_SHIFT | nbytes


def described(word: int) -> tuple[int, int, int]:
    """Return the kind, the number of buffers and the payload bytes of a record."""
    return word >> _KIND_SHIFT, word >> _BUFFERS_SHIFT & MAX_BUFFERS, word & _LENGTH_MASK
