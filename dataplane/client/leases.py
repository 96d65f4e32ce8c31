"""Leases: blocks that may be read until they are released."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dataplane.client.attachment import Attachment
from dataplane.client.copies import Buffer, address_of, addresses, copy
from dataplane.client.memory import SharedMapping, window
from dataplane.protocol.layout import HOT_CONTROL, HOT_NBYTES, HOT_OFFSET, HOT_SPACE_SEGMENT, I64, U64

if TYPE_CHECKING:
    import torch


class _Hold:
    """Raised counters. They are lowered when neither the lease nor any view refers to this object any more."""

    __slots__ = ("attachment", "descriptors")

    def __init__(self, attachment: Attachment, descriptors: I64) -> None:
        self.attachment = attachment
        self.descriptors = descriptors

    def keep(self, count: int) -> None:
        """Lower the counters of all but the leading `count` blocks."""
        self.descriptors, released = self.descriptors[:count], self.descriptors[count:]
        self.attachment.drop(released)

    def __del__(self) -> None:
        self.attachment.drop(self.descriptors)


class Corrupt(NamedTuple):
    """A leased block that does not match its checksum."""

    attachment: Attachment
    descriptor: int
    control: int
    nbytes: int


class LeasedBlocks(NamedTuple):
    """Leased blocks [n] as the index identifies them."""

    attachment: Attachment
    descriptors: I64
    controls: U64
    """Their control words, which do not change while the lease lasts."""
    nbytes: U64


class Lease:
    """Leading blocks of a chain, held in place; there are `len(lease)` of them.

    The blocks stay until the lease is released *and* the last view of it is collected.
    """

    __slots__ = ("_holds", "_length", "_rows")

    def __init__(self) -> None:
        self._holds: list[tuple[_Hold, dict[int, SharedMapping]]] = []
        """For each space, what keeps the blocks in place, and their segments. Another thread may release the lease at
        any time, so that each call reads this once."""
        self._rows: list[U64] = []
        self._length = 0

    def add(self, attachment: Attachment, descriptors: I64, rows: U64, segments: dict[int, SharedMapping]) -> None:
        """Take over the raised counters of one space. Every row lies within one of the segments."""
        self._holds.append((_Hold(attachment, descriptors), segments))
        self._rows.append(rows)
        self._length = min(self._length, len(rows)) if len(self._rows) > 1 else len(rows)

    def examine(
        self, count_intact: Callable[[Attachment, I64, U64, Mapping[int, SharedMapping]], int], part: slice
    ) -> Iterator[Corrupt]:
        """Truncate the lease in each space before its first corrupt block of `part`. Yield these blocks."""
        for space, (hold, segments) in enumerate(self._holds):
            rows = self._rows[space]
            first, end, _ = part.indices(len(rows))
            valid = first + count_intact(hold.attachment, hold.descriptors[part], rows[part], segments)
            if valid >= end:
                continue
            corrupt = Corrupt(
                hold.attachment,
                int(hold.descriptors[valid]),
                int(rows[valid, HOT_CONTROL]),
                int(rows[valid, HOT_NBYTES]),
            )
            hold.keep(valid)
            self._rows[space] = rows[:valid]
            self._length = min(self._length, valid)
            yield corrupt

    def _still_held(self) -> list[tuple[_Hold, dict[int, SharedMapping]]]:
        holds = self._holds
        if self._rows and not holds:
            raise ValueError("the lease was released")
        if holds and not holds[0][0].attachment.alive:
            raise ValueError("the lease is the parent's: a forked child maps nothing of it")
        return holds

    def __len__(self) -> int:
        return self._length

    def nbytes(self, i: int, space: int = 0) -> int:
        """Size of block `i` in bytes."""
        return int(self._rows[space][i, HOT_NBYTES])

    def array(self, i: int, space: int = 0) -> npt.NDArray[np.uint8]:
        """Return block `i` as a read-only array over the pool, without a copy."""
        holds = self._still_held()
        if not -self._length <= i < self._length:
            raise IndexError(f"the lease has {self._length} blocks, asked for {i}")
        hold, segments = holds[space]
        row = self._rows[space][i]
        segment = segments[int(row[HOT_SPACE_SEGMENT]) >> 32]
        return window(hold, segment, int(row[HOT_OFFSET]), int(row[HOT_NBYTES]), writable=False)

    def memory(self, i: int, space: int = 0) -> SharedMapping:
        """Return the mapping that contains block `i`, for registration with a device."""
        _, segments = self._still_held()[space]
        return segments[int(self._rows[space][i][HOT_SPACE_SEGMENT]) >> 32]

    def blocks_between(self, first: int, end: int, space: int = 0) -> LeasedBlocks:
        """Return the index's identification of blocks `first` to `end`, for looking up other copies of them."""
        (hold, _), rows = self._still_held()[space], self._rows[space][first:end]
        return LeasedBlocks(hold.attachment, hold.descriptors[first:end], rows[:, HOT_CONTROL], rows[:, HOT_NBYTES])

    def view(self, i: int, space: int = 0) -> memoryview:
        """Return block `i` as a read-only memoryview over the pool, without a copy."""
        return self.array(i, space).data

    def tensor(
        self, i: int, dtype: torch.dtype | None = None, shape: tuple[int, ...] | None = None, space: int = 0
    ) -> torch.Tensor:
        """Return block `i` as a tensor over the pool (default type: uint8). Writing to it is undefined behaviour."""
        import torch

        with warnings.catch_warnings():  # torch has no read-only tensors and warns
            warnings.simplefilter("ignore", UserWarning)
            flat: Any = torch.from_numpy(self.array(i, space))
        typed = flat if dtype is None else flat.view(dtype)
        result: torch.Tensor = typed if shape is None else typed.view(shape)
        return result

    def copy_to(self, buffer: Buffer, first: int = 0, count: int | None = None, space: int = 0) -> int:
        """Copy `count` blocks (default: all), starting with `first`, one after another into a writable contiguous
        buffer.

        Much cheaper than a view per block when blocks are small. Returns the number of copied bytes.
        """
        holds = self._still_held()
        end = self._length if count is None else first + count
        if not 0 <= first <= end <= self._length:
            raise IndexError(f"the lease has {self._length} blocks, asked for {first} to {end}")
        if first == end:  # a miss: nothing was ever held
            return 0
        rows = self._rows[space][first:end].astype(np.int64)
        sizes = rows[:, HOT_NBYTES]
        total = _sum(sizes)
        target, keep = address_of(buffer, total, writable=True)
        hold, segments = holds[space]
        sources = addresses(segments, rows[:, HOT_SPACE_SEGMENT] >> 32, rows[:, HOT_OFFSET])
        copy(target + np.cumsum(sizes) - sizes, sources, sizes)
        del keep, holds, hold, segments
        return total

    def copy_pieces_to(self, targets: I64, sizes: I64, first: int = 0, space: int = 0) -> int:
        """Copy blocks from position `first` on into pieces of memory, which the caller keeps alive.

        Row `i` of `targets` [blocks, pieces] has the addresses of the pieces of block `first + i`; the `sizes` [pieces]
        add up to a block. Stops before a block of another size, and at the end of the lease. Returns the number of
        copied blocks. Threads may copy different blocks at once.
        """
        holds = self._still_held()
        end = min(self._length, first + len(targets))
        if end <= first:
            return 0
        rows = self._rows[space][first:end].astype(np.int64)
        other = np.flatnonzero(rows[:, HOT_NBYTES] != sizes.sum())
        rows = rows[: other[0]] if len(other) else rows
        hold, segments = holds[space]
        starts = addresses(segments, rows[:, HOT_SPACE_SEGMENT] >> 32, rows[:, HOT_OFFSET])
        sources = starts[:, None] + np.cumsum(sizes) - sizes
        copy(targets[: len(rows)].reshape(-1), sources.reshape(-1), np.tile(sizes, len(rows)))
        del holds, hold, segments
        return len(rows)

    def release(self) -> None:
        """Release the lease. Views that are still in use keep their blocks until they are collected."""
        self._holds = []

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _sum(sizes: I64) -> int:
    if len(sizes) and int(sizes.max()) > (1 << 62) // len(sizes):
        return sum(sizes.tolist())
    return int(sizes.sum())
