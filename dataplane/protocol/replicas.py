"""The table of replicas on one device: which blocks have a copy in its memory, and where.

Written by the data plane, mapped read-only by engines: a header, then two words a descriptor. Replicas lie in
*extents*, device memory of one space each, which engines of that space open by their handles.

Theory
======

A replica never lives without its block: the words name the READY control word that the block had. An engine that holds
a lease on the block knows the control word, and that it does not change while the lease lasts (see
`dataplane.protocol.layout`). It loads the place, the control word and the place again: equal places that are not 0, and
its own control word, mean that the bytes there are those of its block.

*Withdrawing.* The data plane stores 0 in the place, issues the barrier, and then sums the lease counters of the block.
Where a counter is up, an engine may have seen the place: the memory is kept until the counters are down. Where none is,
whoever takes a lease later sees the 0. So a lease on a block is a lease on its replicas, and reading one costs three
loads more. The words of a block that is gone need no care: its descriptor's next block has another control word.

*Extents* are listed in the header while they are there. One that is not listed any more is of no use; engines close it
when they see that and say so, because an open handle keeps the memory on the device. Its bytes are charged until then.

A table belongs to one data plane process, as the device's memory does. When that process dies, nothing in either
changes any more: what is held may be read on. H_MEMORY of the index that it goes with stands in the header.
"""

from __future__ import annotations

import numpy as np

from dataplane.protocol.layout import I64, PAGE, U64, LayoutError

MAGIC = int.from_bytes(b"LARDERRP", "little")
VERSION = 1
R_MAGIC, R_VERSION, R_MEMORY, R_MAX_BLOCKS, R_CHANGES = range(5)
"""R_CHANGES grows whenever an extent goes."""
R_EXTENTS = 16
MAX_EXTENTS = 448
"""At one time; word `R_EXTENTS + i` is the number of a listed extent, or 0."""
ROW_WORDS = 2
PLACE, CONTROL = 0, 1
UNIT_BYTES = 4096
"""Replicas begin at multiples of it."""
UNIT_BITS = 32
_UNIT_MASK = np.uint64((1 << UNIT_BITS) - 1)
_UNIT_BITS = np.uint64(UNIT_BITS)
_ROW = np.int64(ROW_WORDS)


def table_bytes(max_blocks: int) -> int:
    """Size of a table in bytes."""
    return PAGE + -(-8 * ROW_WORDS * max_blocks // PAGE) * PAGE


def place_of(extent: int, offset: int) -> int:
    """The word for a replica at an offset of an extent, whose number is 1 or more."""
    return extent << UNIT_BITS | offset // UNIT_BYTES


class ReplicaTable:
    """Typed views: `header[512]`, `rows[n, 2]`, all u64."""

    def __init__(self, buffer: memoryview | bytearray, max_blocks: int) -> None:
        words = np.frombuffer(buffer, np.uint64)
        if len(words) * 8 < table_bytes(max_blocks):
            raise LayoutError(f"a table of {max_blocks} blocks needs {table_bytes(max_blocks)} bytes")
        self.max_blocks = max_blocks
        self.header: U64 = words[: PAGE // 8]
        self._words: U64 = words[PAGE // 8 : PAGE // 8 + ROW_WORDS * max_blocks]
        self._cells = memoryview(buffer).cast("B").cast("Q")

    @classmethod
    def attach(cls, buffer: memoryview | bytearray, memory: int) -> ReplicaTable:
        """Views of a table that somebody else laid out, for the index memory of this identity; LayoutError."""
        header = np.frombuffer(buffer, np.uint64, min(PAGE // 8, len(buffer) // 8))
        if len(header) < PAGE // 8 or int(header[R_MAGIC]) != MAGIC:
            raise LayoutError("not a table of replicas of a Larder data plane")
        if int(header[R_VERSION]) != VERSION:
            raise LayoutError(f"table of replicas has layout {int(header[R_VERSION])}, expected {VERSION}")
        if int(header[R_MEMORY]) != memory:
            raise LayoutError("table of replicas of another index")
        return cls(buffer, int(header[R_MAX_BLOCKS]))

    def format(self, memory: int) -> None:
        """Write the header of fresh (zeroed) memory; the magic last."""
        self.header[R_VERSION] = VERSION
        self.header[R_MEMORY] = memory
        self.header[R_MAX_BLOCKS] = self.max_blocks
        self.header[R_MAGIC] = MAGIC

    # ---- the data plane's side

    def show(self, number: int, control: int, place: int) -> None:
        """A descriptor's block has a replica, whole."""
        at = PAGE // 8 + ROW_WORDS * number
        self._cells[at + CONTROL] = control
        self._cells[at + PLACE] = place

    def hide(self, numbers: I64) -> None:
        """Descriptors have none any more; memory may be used anew as the theory says."""
        self._words[numbers * _ROW + PLACE] = 0

    def list_extents(self, numbers: list[int]) -> None:
        """These are there, at most MAX_EXTENTS."""
        words = np.zeros(MAX_EXTENTS, np.uint64)
        words[: len(numbers)] = sorted(numbers)
        gone = set(self.extents()) - set(numbers)
        self.header[R_EXTENTS : R_EXTENTS + MAX_EXTENTS] = words
        if gone:
            self.header[R_CHANGES] += np.uint64(1)

    # ---- both

    def extents(self) -> list[int]:
        """Numbers of the extents that are listed."""
        words = self.header[R_EXTENTS : R_EXTENTS + MAX_EXTENTS]
        return [number for number in words.tolist() if number]

    # ---- the engine's side

    @property
    def changes(self) -> int:
        """Another number than before: some extent is not listed any more."""
        return int(self.header[R_CHANGES])

    def places(self, numbers: I64, controls: U64) -> tuple[I64, I64]:
        """Where leased blocks [n], whose control words are given, have a replica: extents [n] (0: nowhere) and
        offsets [n] in bytes."""
        at = numbers * _ROW
        before = self._words.take(at + PLACE, mode="clip")
        control = self._words.take(at + CONTROL, mode="clip")
        after = self._words.take(at + PLACE, mode="clip")
        found = np.where((before == after) & (control == controls), after, np.uint64(0))
        return (found >> _UNIT_BITS).astype(np.int64), (found & _UNIT_MASK).astype(np.int64) * UNIT_BYTES
