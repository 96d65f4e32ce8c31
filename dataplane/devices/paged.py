"""Memory layout of paged tensors, and the bytes that make up a chunk.

A tensor has one axis that counts blocks. The contents of a block are contiguous, or consist of equal pieces at fixed
distances: for example one plane of keys and one of values, or one plane per head. A tensor is thus a list of planes,
and in each plane a block is one run of bytes, at a fixed step from the previous block. This covers keys and values on
the first or second axis, heads before or after tokens, keys and values fused in one row, latent attention without a
second plane, and layers that share one buffer in any order.

A chunk contains the engine's blocks for its tokens: group by group, tensor by tensor, plane by plane, block by block.
Only Larder reads a chunk, so Larder is free to choose the order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

I64 = npt.NDArray[np.int64]
MAX_PLANES = 4096
"""Highest number of planes of one tensor."""


class LayoutRefused(Exception):
    """Raised for a tensor whose blocks cannot be separated. The message says why."""


@dataclass(frozen=True, slots=True)
class Planes:
    """One tensor as runs of bytes for each block."""

    starts: tuple[int, ...]
    """Bytes from the start of its memory to block 0 of each plane."""
    step: int
    """Bytes from one block to the next."""
    nbytes: int
    """Bytes of a block in one plane."""
    order: tuple[int, ...] = ()
    """Axes of a block in memory order, if it differs from the order of the shape; otherwise empty."""


@dataclass(frozen=True)
class Runs:
    """Copies as arrays of one length: bytes from the start of device memory, bytes from a chunk's start, sizes."""

    device: I64
    chunk: I64
    sizes: I64

    @property
    def nbytes(self) -> int:
        return int(self.sizes.sum())

    def __len__(self) -> int:
        return len(self.sizes)


@dataclass(frozen=True)
class TensorGroup:
    """Tensors that share block numbers."""

    blocks: int
    """Number of blocks of the smallest tensor."""
    tokens_per_block: int
    blocks_per_chunk: int
    tensors: tuple[Planes, ...]

    @cached_property
    def chunk_bytes(self) -> int:
        return self.blocks_per_chunk * sum(len(tensor.starts) * tensor.nbytes for tensor in self.tensors)

    @cached_property
    def _first_plane(self) -> list[int]:
        """Index of each tensor's first plane, and the total number of planes at the end."""
        return [0, *np.cumsum([len(tensor.starts) for tensor in self.tensors]).tolist()]

    @cached_property
    def _columns(self) -> tuple[I64, I64, I64, I64]:
        """(start, step, bytes, place in the chunk) of all planes of all tensors."""
        counts = [len(tensor.starts) for tensor in self.tensors]
        starts = np.array([start for tensor in self.tensors for start in tensor.starts], np.int64)
        steps = np.repeat(np.array([tensor.step for tensor in self.tensors], np.int64), counts)
        sizes = np.repeat(np.array([tensor.nbytes for tensor in self.tensors], np.int64), counts)
        starts_in_chunk = np.concatenate(([0], np.cumsum(sizes * self.blocks_per_chunk)[:-1]))
        return starts, steps, sizes, starts_in_chunk

    def page_bytes(self) -> int:
        """Return the bytes of the largest run of one block."""
        return max(tensor.nbytes for tensor in self.tensors)

    def runs(
        self,
        numbers: Sequence[int] | I64,
        *,
        first: int = 0,
        base: int = 0,
        bases: Sequence[int] | None = None,
        tensors: slice = slice(None),
        in_chunks: tuple[I64, I64] | None = None,
    ) -> Runs:
        """Return the copies for some blocks of a chunk: those from position `first` on, with block numbers `numbers`.

        `base` is added to every device address; `bases` has one base per tensor. `tensors` selects some of the tensors.
        `in_chunks` has the position of each block in its own chunk, and the start of that chunk, so that one call
        covers blocks of many chunks. Runs that are adjacent on both sides are joined.
        """
        low, high, _ = tensors.indices(len(self.tensors))
        planes = slice(self._first_plane[low], self._first_plane[max(low, high)])
        starts, steps, sizes, offsets = (column[planes] for column in self._columns)
        if bases is not None:
            counts = [len(tensor.starts) for tensor in self.tensors[low:high]]
            starts = starts + np.repeat(np.array(bases[low:high], np.int64), counts)
        requested = np.asarray(numbers, np.int64)
        if in_chunks is None:
            positions, begins = (np.arange(first, first + len(requested), dtype=np.int64), np.zeros(1, np.int64))
        else:
            positions, begins = in_chunks
        device = base + starts[:, None] + steps[:, None] * requested[None, :]
        chunk = offsets[:, None] + sizes[:, None] * positions[None, :] + begins[None, :]
        spread = np.broadcast_to(sizes[:, None], device.shape)
        return joined(device.ravel(), chunk.ravel(), spread.ravel())


def joined(device: I64, chunk: I64, sizes: I64) -> Runs:
    """Return runs in which neighbours that are adjacent on both sides are joined."""
    if len(sizes) < 2:
        return Runs(device, chunk, sizes)
    follows = (device[:-1] + sizes[:-1] == device[1:]) & (chunk[:-1] + sizes[:-1] == chunk[1:])
    if not follows.any():
        return Runs(device, chunk, sizes)
    heads = np.concatenate(([0], np.flatnonzero(~follows) + 1))
    return Runs(device[heads], chunk[heads], np.add.reduceat(sizes, heads))


def split(runs: Runs, window: int, offset: int = 0) -> Runs:
    """Split runs at multiples of `window`, counted on the chunk side from `offset` before its start."""
    begins = runs.chunk + offset
    pieces = (begins + runs.sizes - 1) // window - begins // window + 1
    if not len(pieces) or int(pieces.max()) == 1:
        return runs
    rows = np.repeat(np.arange(len(pieces)), pieces)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    border = (begins[rows] // window + within) * window
    low = np.maximum(begins[rows], border)
    high = np.minimum(begins[rows] + runs.sizes[rows], border + window)
    skipped = low - begins[rows]
    return Runs(runs.device[rows] + skipped, low - offset, high - low)


def cut(runs: Runs, most_bytes: int) -> Runs:
    """Cut runs into pieces of at most so many bytes."""
    counts = -(-runs.sizes // most_bytes)
    rows = np.repeat(np.arange(len(runs)), counts)
    skipped = (np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)) * most_bytes
    return Runs(
        runs.device[rows] + skipped, runs.chunk[rows] + skipped, np.minimum(runs.sizes[rows] - skipped, most_bytes)
    )


def planes_of(shape: Sequence[int], stride: Sequence[int], item_bytes: int, storage_offset: int = 0) -> Planes:
    """Return a tensor's planes. Shape, stride and offset are in elements. Raise LayoutRefused."""
    if 0 in shape:
        raise LayoutRefused(f"expected tensors with elements, got shape {tuple(shape)}")
    axis = block_axis(shape)
    other_axes = [at for at in range(len(shape)) if at != axis and shape[at] > 1]
    by_step = sorted(other_axes, key=lambda at: (-stride[at], at))
    inner, dense = 1, len(by_step)
    for position in reversed(range(len(by_step))):
        at = by_step[position]
        if stride[at] != inner:
            break
        inner, dense = inner * shape[at], position
    outer = by_step[:dense]
    planes = 1
    for at in outer:
        planes *= shape[at]
    if planes > MAX_PLANES or (outer and stride[outer[-1]] < inner):
        block = (*shape[:axis], *shape[axis + 1 :])
        raise LayoutRefused(f"a block of shape {block} is not contiguous: stride {tuple(stride)}")
    starts = [storage_offset]
    for at in outer:
        starts = [start + index * stride[at] for start in starts for index in range(shape[at])]
    _check_apart(shape, stride, axis, inner, outer)
    return Planes(
        starts=tuple(item_bytes * start for start in starts),
        step=item_bytes * stride[axis],
        nbytes=item_bytes * inner,
        order=() if by_step == other_axes else tuple(by_step),
    )


def _check_apart(shape: Sequence[int], stride: Sequence[int], axis: int, inner: int, outer: Sequence[int]) -> None:
    """Check that blocks and planes share no byte: each stride must cover the extent of all smaller ones."""
    counted = sorted([at for at in (axis, *outer) if shape[at] > 1], key=lambda at: stride[at])
    reach = inner
    for at in counted:
        if stride[at] < reach:
            raise LayoutRefused(f"blocks of shape {tuple(shape)} overlap: stride {tuple(stride)}")
        reach = stride[at] * (shape[at] - 1) + reach


def block_axis(shape: Sequence[int]) -> int:
    """Return the axis that counts blocks: axis 1 if axis 0 separates keys and values, otherwise axis 0."""
    return 1 if len(shape) >= 5 and shape[0] == 2 else 0


def tokens_per_block(shape: Sequence[int], layout: str) -> int:
    """Return the tokens per block, from the named order of dimensions, if the engine does not state them."""
    heads_first = layout in ("HND", "BLHNC")
    if len(shape) == 3:  # blocks, tokens, content
        return shape[1]
    if len(shape) == 4:  # blocks, then heads and tokens in either order, content
        return shape[2 if heads_first else 1]
    if len(shape) == 5:  # two planes first or second
        return shape[3 if heads_first else 2]
    raise LayoutRefused(f"expected tensors of 3 to 5 dimensions, got {len(shape)}")


def consecutive(numbers: Sequence[int], *, merge: bool) -> list[tuple[int, int]]:
    """Return (first block, blocks) for runs of consecutive numbers, or single blocks without `merge`."""
    if not merge:
        return [(number, 1) for number in numbers]
    starts = [
        0,
        *(at + 1 for at, (number, following) in enumerate(pairwise(numbers)) if following != number + 1),
        len(numbers),
    ]
    return [(numbers[low], high - low) for low, high in pairwise(starts) if high > low]
