"""The table of GPU copies on one device: which blocks have a copy in its memory, and where.

The data plane writes it and engines map it read-only: a header, then two words per descriptor. GPU copies lie in
*extents*: device memory that belongs to one space each, and that engines of the space open by its handle.

Theory
======

A GPU copy never outlives its block: its row names the READY control word that the block had. An engine that holds a
lease on the block knows the control word, which does not change while the lease lasts (see
`dataplane.protocol.layout`). The engine loads the place, the control word and the place again. If the two places are
equal and not 0, and the control word is the block's, the bytes at the place are those of the block.

*Withdrawing.* The data plane stores 0 in the place, issues the barrier, and then sums the lease counters of the block.
If a counter is raised, an engine may have seen the place, so the memory is kept until the counters are 0. If none is
raised, any process that takes a lease later sees the 0. So a lease on a block is also a lease on its GPU copies, and
reading a copy costs three more loads. The row of a block that is gone may stay: the next block of its descriptor has
another control word, and before that word is written with a GPU copy of its own, the old place is overwritten with 0.
So a control word read between two equal loads of the place was written together with it.

*Extents* are listed in the header while they exist. An extent that is no longer listed cannot be used. Engines close it
when they notice and report that, because an open handle keeps the memory on the device. Its bytes are charged until
then.

A table belongs to one data plane process, as does the device memory. When that process dies, neither changes any more,
and leased copies may still be read. The header stores H_MEMORY of the index that the table belongs to.
"""

from __future__ import annotations

import numpy as np

from dataplane.protocol.layout import I64, PAGE, U64, LayoutError

MAGIC = int.from_bytes(b"LARDERRP", "little")
VERSION = 1
R_MAGIC, R_VERSION, R_MEMORY, R_MAX_BLOCKS, R_CHANGES = range(5)
"""R_CHANGES increases whenever an extent is removed from the list."""
R_EXTENTS = 16
MAX_EXTENTS = 448
"""Limit for extents listed at one time; word `R_EXTENTS + i` is the number of a listed extent, or 0."""
ROW_WORDS = 2
LOCATION, CONTROL = 0, 1
UNIT_BYTES = 4096
"""GPU copies start at multiples of this."""
UNIT_BITS = 32
_UNIT_MASK = np.uint64((1 << UNIT_BITS) - 1)
_UNIT_BITS = np.uint64(UNIT_BITS)
_ROW = np.int64(ROW_WORDS)


def table_bytes(max_blocks: int) -> int:
    """Return the size of a table in bytes."""
    return PAGE + -(-8 * ROW_WORDS * max_blocks // PAGE) * PAGE


def location_of(extent: int, offset: int) -> int:
    """Return the word for a GPU copy at an offset of an extent, whose number is 1 or more."""
    return extent << UNIT_BITS | offset // UNIT_BYTES


class GpuCopyIndex:
    """Typed views of a table: `header[512]`, `rows[n, 2]`, all u64."""

    def __init__(self, buffer: memoryview | bytearray, max_blocks: int) -> None:
        words = np.frombuffer(buffer, np.uint64)
        if len(words) * 8 < table_bytes(max_blocks):
            raise LayoutError(f"a table of {max_blocks} blocks needs {table_bytes(max_blocks)} bytes")
        self.max_blocks = max_blocks
        self.header: U64 = words[: PAGE // 8]
        self._words: U64 = words[PAGE // 8 : PAGE // 8 + ROW_WORDS * max_blocks]
        self._cells = memoryview(buffer).cast("B").cast("Q")

    @classmethod
    def attach(cls, buffer: memoryview | bytearray, memory: int) -> GpuCopyIndex:
        """Return views of a table that the data plane laid out, for the index memory with this identity. Raises
        LayoutError."""
        header = np.frombuffer(buffer, np.uint64, min(PAGE // 8, len(buffer) // 8))
        if len(header) < PAGE // 8 or int(header[R_MAGIC]) != MAGIC:
            raise LayoutError("not a table of GPU copies of a Larder data plane")
        if int(header[R_VERSION]) != VERSION:
            raise LayoutError(f"table of GPU copies has layout {int(header[R_VERSION])}, expected {VERSION}")
        if int(header[R_MEMORY]) != memory:
            raise LayoutError("table of GPU copies of another index")
        return cls(buffer, int(header[R_MAX_BLOCKS]))

    def format(self, memory: int) -> None:
        """Write the header of fresh (zeroed) memory, the magic last."""
        self.header[R_VERSION] = VERSION
        self.header[R_MEMORY] = memory
        self.header[R_MAX_BLOCKS] = self.max_blocks
        self.header[R_MAGIC] = MAGIC

    # ---- the data plane's side

    def show(self, number: int, control: int, location: int) -> None:
        """Publish the complete GPU copy of a descriptor's block."""
        at = PAGE // 8 + ROW_WORDS * number
        self._cells[at + LOCATION] = 0  # the place of an earlier block may still be there
        self._cells[at + CONTROL] = control
        self._cells[at + LOCATION] = location

    def hide(self, numbers: I64) -> None:
        """Withdraw the GPU copies of descriptors. Their memory may be reused only as the theory above says."""
        self._words[numbers * _ROW + LOCATION] = 0

    def list_extents(self, numbers: list[int]) -> None:
        """List exactly these extents, at most MAX_EXTENTS. An extent that stays listed keeps its word, because readers
        may look at any time."""
        words = self.header[R_EXTENTS : R_EXTENTS + MAX_EXTENTS].tolist()
        fresh, gone = sorted(set(numbers) - set(words), reverse=True), False
        for at, number in enumerate(words):
            if number and number not in numbers:
                gone, number = True, 0
            if not number and fresh:
                number = fresh.pop()
            if number != words[at]:
                self._cells[R_EXTENTS + at] = number
        if gone:
            self._cells[R_CHANGES] += 1

    # ---- both

    def extents(self) -> list[int]:
        """Return the numbers of the listed extents."""
        words = self.header[R_EXTENTS : R_EXTENTS + MAX_EXTENTS]
        return [number for number in words.tolist() if number]

    # ---- the engine's side

    @property
    def changes(self) -> int:
        """Counter that changes when an extent is removed from the list."""
        return int(self.header[R_CHANGES])

    def locations(self, numbers: I64, controls: U64) -> tuple[I64, I64]:
        """Return where leased blocks [n] with these control words have a GPU copy: extents [n] (0: no copy) and offsets
        [n] in bytes."""
        at = numbers * _ROW
        before = self._words.take(at + LOCATION, mode="clip")
        control = self._words.take(at + CONTROL, mode="clip")
        after = self._words.take(at + LOCATION, mode="clip")
        location = np.where((before == after) & (control == controls), after, np.uint64(0))
        return (location >> _UNIT_BITS).astype(np.int64), (location & _UNIT_MASK).astype(np.int64) * UNIT_BYTES
