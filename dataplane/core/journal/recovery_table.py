"""The recovery table: data about blocks that must survive a `kill -9` and that engines may not read.

The table is a private memfd, which engines never get: a header and one row per descriptor. Rows are written before the
control words of a reservation, and a kill leaves a program-order prefix of the stores, so every block that is not FREE
has a complete row. The header holds the highest assigned numbers, each written before its first use, so that no number
is assigned twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import I64, LAYOUT_VERSION, PAGE, U64, LayoutError
from dataplane.protocol.states import MAX_BLOCKS

RECOVERY_TABLE_MAGIC = int.from_bytes(b"LARDERBK", "little")

# Words of the header.
B_MAGIC, B_VERSION, B_MAX_BLOCKS, B_MEMORY, B_EPOCH, B_PID, B_STARTED = range(7)
# B_EPOCH, B_PID and B_STARTED identify the writing process; the start time distinguishes it from a later process with
# the same pid.
B_CLIENT, B_SEGMENT, B_SPACE, B_TENANT, B_RESERVATION, B_CAPACITY = range(8, 14)
"""The highest number of each kind ever assigned, and the capacity of the pool in bytes."""

ROW_WORDS = 8
ROW_USED, ROW_HITS, ROW_TENANT_OWNER, ROW_RESERVATION, ROW_PARENT = 0, 1, 2, 3, 4
MAX_NUMBER = 2**31
"""Limit of the numbers of clients, segments, spaces and tenants, which share words with others."""
MAX_VALUE = 2**62
"""Limit of all other values. Numbers count on from them, and many are signed 64-bit integers elsewhere."""
_NO_PARENT = bytes(KEY_BYTES)
FEW = 64
"""Number of rows below which storing single words is cheaper than a numpy call."""
# ROW_USED is a clock in Unix nanoseconds that advances with every use of any block. The parent key takes four words,
# all zero for no parent. The low half of ROW_TENANT_OWNER is the tenant's number; the high half is the client that
# reserved the block.

_LIMITS = {
    **dict.fromkeys((B_CLIENT, B_SEGMENT, B_SPACE, B_TENANT), MAX_NUMBER),
    B_RESERVATION: MAX_VALUE,
    B_CAPACITY: 2**51,  # `pool_bytes` is at most 2^50
}


@dataclass(frozen=True, slots=True)
class TableWriter:
    """The process that writes the memory."""

    epoch: int
    pid: int
    started: int
    """Start time of the process in clock ticks since boot; 0 when unknown."""


def recovery_table_bytes(max_blocks: int) -> int:
    """Return the size of the recovery table in bytes."""
    return -(-(PAGE + 8 * ROW_WORDS * max_blocks) // PAGE) * PAGE


class RecoveryTable:
    """Typed views of the recovery table: `header[512]` and `rows[n, 8]`, both u64."""

    def __init__(self, buffer: memoryview | bytearray, max_blocks: int) -> None:
        if len(buffer) % 8:
            raise LayoutError(f"a recovery table of {len(buffer)} bytes, expected a multiple of 8")
        words = np.frombuffer(buffer, np.uint64)
        if len(words) * 8 < recovery_table_bytes(max_blocks):
            raise LayoutError(f"a recovery table of {max_blocks} blocks needs {recovery_table_bytes(max_blocks)} bytes")
        first = PAGE // 8
        self.max_blocks = max_blocks
        self.header: U64 = words[:first]
        self.rows: U64 = words[first : first + max_blocks * ROW_WORDS].reshape(max_blocks, ROW_WORDS)
        self._bytes = memoryview(buffer).cast("B")
        self._cells = self._bytes.cast("Q")
        self._first = first
        self._clock = 0

    @classmethod
    def attach(cls, buffer: memoryview | bytearray) -> RecoveryTable:
        """Return the table that a previous data plane wrote. Raise LayoutError when it is invalid or of another
        version."""
        header = np.frombuffer(buffer, np.uint64, min(PAGE // 8, len(buffer) // 8))
        if len(header) < PAGE // 8 or int(header[B_MAGIC]) != RECOVERY_TABLE_MAGIC:
            raise LayoutError("not the recovery table of a Larder data plane")
        if int(header[B_VERSION]) != LAYOUT_VERSION:
            raise LayoutError(f"the recovery table has layout {int(header[B_VERSION])}, expected {LAYOUT_VERSION}")
        max_blocks = int(header[B_MAX_BLOCKS])
        if not 1 <= max_blocks <= MAX_BLOCKS:
            raise LayoutError("the recovery table has a corrupted header")
        table = cls(buffer, max_blocks)
        for word, limit in _LIMITS.items():
            if table.highest(word) >= limit:
                raise LayoutError(
                    f"word {word} of the recovery table is {table.highest(word)}, expected less than {limit}"
                )
        for word in (ROW_USED, ROW_HITS, ROW_RESERVATION):
            highest = int(table.rows[:, word].max())
            if highest >= MAX_VALUE:
                raise LayoutError(
                    f"a row of the recovery table has {highest} in word {word}, expected less than {MAX_VALUE}"
                )
        table._clock = int(table.rows[:, ROW_USED].max())
        return table

    def format(self, memory: int) -> None:
        """Write the header of fresh (zeroed) memory, with the magic number last."""
        self.header[B_VERSION] = LAYOUT_VERSION
        self.header[B_MAX_BLOCKS] = self.max_blocks
        self.header[B_MEMORY] = memory
        self.header[B_MAGIC] = RECOVERY_TABLE_MAGIC

    @property
    def writer(self) -> TableWriter:
        return TableWriter(int(self.header[B_EPOCH]), int(self.header[B_PID]), int(self.header[B_STARTED]))

    def sign(self, writer: TableWriter) -> None:
        """Record the process that writes from now on."""
        self.header[B_EPOCH], self.header[B_PID] = writer.epoch, writer.pid
        self.header[B_STARTED] = writer.started

    def highest(self, word: int) -> int:
        """Return the highest number of a kind (`B_CLIENT` and so on) that was ever assigned; 0 for none."""
        return self._cells[word]

    def assigned(self, word: int, number: int) -> None:
        """Record a number of a kind that is about to be assigned."""
        if number > self._cells[word]:
            self._cells[word] = number

    def reserved(self, numbers: I64, tenant: int, owner: int, reservation: int) -> None:
        """Initialize the rows of blocks that are about to become RESERVED."""
        row = np.zeros(ROW_WORDS, np.uint64)
        self._clock += 1
        row[ROW_USED] = self._clock
        row[ROW_TENANT_OWNER] = tenant | owner << 32
        row[ROW_RESERVATION] = reservation
        self.rows[numbers] = row

    def published(self, number: int, parent: bytes) -> None:
        """Record the parent key of a block that is about to become READY; b"" for no parent."""
        at = 8 * (self._first + ROW_WORDS * number + ROW_PARENT)
        self._bytes[at : at + KEY_BYTES] = parent or _NO_PARENT

    def used(self, numbers: Sequence[int], hits: Sequence[int], now: float) -> None:
        """Record that these blocks, in this order, are the most recently used ones. `hits` are their numbers of uses
        since they were stored."""
        clock = max(self._clock + 1, int(now * 1e9))
        self._clock = clock + len(numbers)
        if len(numbers) < FEW:
            for number, count in zip(numbers, hits, strict=True):
                at = self._first + ROW_WORDS * number
                self._cells[at] = clock
                self._cells[at + ROW_HITS] = count
                clock += 1
            return
        rows = list(numbers)
        self.rows[rows, ROW_USED] = np.arange(clock, clock + len(rows), dtype=np.uint64)
        self.rows[rows, ROW_HITS] = hits
