"""Copies between chunks and paged tensors in CPU memory.

The order of bytes in a chunk is that of `dataplane.devices.paged`, so an engine with a GPU can read a block that a CPU
engine stored, and vice versa.

Numpy copies many pages in one call, without the interpreter lock. Planes that follow each other in a chunk and lie in
one stretch of memory form a region, and each region takes one call: an indexed assignment to write pages, `np.take` to
read them. `np.take` needs contiguous memory on both sides, so it cannot fill a part of a chunk, nor read pages at odd
distances. Such pages are read in the first of these ways that applies: block by block, as one run for each plane,
plane by plane, or through a small temporary array.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dataplane.client.copies import copy
from dataplane.devices.paged import I64, TensorGroup, block_axis, planes_of

U8 = npt.NDArray[np.uint8]

MIN_UNIT = 1 << 10
"""Smallest row that `np.take` copies at a good speed, in bytes."""
MAX_JOINED_UNIT = 4 << 10
"""A plane joins a region if the region's rows stay at least this large, or do not become smaller."""
MIN_PAGE_BYTES = 32 << 10
"""Smaller pages are read faster block by block, if the bytes of a block in all planes are adjacent."""
MIN_PLANE_BYTES = 64 << 10
"""Smallest number of bytes for which a separate call for each plane is worthwhile."""
TEMPORARY_BYTES = 1 << 20
"""Size of temporary arrays: they fit into the cache of one CPU core."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One tensor: its address in bytes, shape and stride in elements, and the bytes of an element."""

    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    item_bytes: int


class TorchTensor(Protocol):
    """The part of `torch.Tensor` that `pages_of` uses."""

    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def is_cpu(self) -> bool: ...
    def data_ptr(self) -> int: ...
    def stride(self) -> Sequence[int]: ...
    def element_size(self) -> int: ...


class Pages:
    """Paged tensors of one KV-cache group in CPU memory, one tensor per layer, that share block numbers."""

    def __init__(self, tensors: Sequence[Layout], *, tokens_per_block: int, chunk_tokens: int, owner: object) -> None:
        """Prepare for copies. Raise LayoutRefused for tensors whose blocks cannot be separated, or ValueError.

        `owner` is an object that keeps the tensors' memory alive.
        """
        if not tensors:
            raise ValueError("tensors: expected at least one tensor")
        if tokens_per_block < 1 or chunk_tokens < tokens_per_block or chunk_tokens % tokens_per_block:
            raise ValueError(
                f"tokens_per_block: expected a divisor of the {chunk_tokens} tokens of a chunk, got {tokens_per_block}"
            )
        blocks = [tensor.shape[block_axis(tensor.shape)] for tensor in tensors]
        if min(blocks) < 1:
            raise ValueError("tensors: expected at least one block in each tensor")
        self.group = TensorGroup(
            min(blocks),
            tokens_per_block,
            chunk_tokens // tokens_per_block,
            tuple(planes_of(tensor.shape, tensor.stride, tensor.item_bytes) for tensor in tensors),
        )
        self.blocks = self.group.blocks
        self.blocks_per_chunk = self.group.blocks_per_chunk
        self.chunk_bytes = self.group.chunk_bytes
        self._owner = owner
        self._regions = _regions(self.group, [tensor.address for tensor in tensors], blocks)

    def gather(self, blocks: Sequence[int] | I64, chunk: U8, position: int = 0) -> None:
        """Copy blocks from the tensors into a chunk, from block `position` of the chunk on.

        Raise ValueError for invalid arguments, before anything is written.
        """
        numbers = self._checked(blocks, position)
        content = self._content(chunk, writable=True)
        if len(numbers):
            for region in self._regions:
                region.gather(numbers, region.part(content), position)

    def scatter(self, chunk: U8, blocks: Sequence[int] | I64, position: int = 0) -> None:
        """Copy blocks of a chunk, from block `position` of the chunk on, into the tensors.

        A block number that occurs twice gets the bytes of one of its positions. Raise ValueError for invalid arguments,
        before anything is written.
        """
        numbers = self._checked(blocks, position)
        content = self._content(chunk, writable=False)
        if len(numbers):
            for region in self._regions:
                region.scatter(region.part(content), numbers, position)

    def _checked(self, blocks: Sequence[int] | I64, position: int) -> I64:
        numbers = np.asarray(blocks)
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise ValueError(f"blocks: expected a list of block numbers, got {numbers.dtype} of shape {numbers.shape}")
        if not 0 <= position <= self.blocks_per_chunk - len(numbers):
            raise ValueError(
                f"position: expected {len(numbers)} blocks within the {self.blocks_per_chunk} of a chunk, "
                f"got position {position}"
            )
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < self.blocks):
            invalid = numbers[(numbers < 0) | (numbers >= self.blocks)][0]
            raise ValueError(f"blocks: expected numbers from 0 to {self.blocks - 1}, got {invalid}")
        return numbers.astype(np.int64, copy=False)

    def _content(self, chunk: object, *, writable: bool) -> U8:
        if not isinstance(chunk, np.ndarray) or chunk.dtype != np.uint8 or not chunk.flags.c_contiguous:
            raise ValueError("chunk: expected a contiguous numpy array of uint8")
        if chunk.size < self.chunk_bytes:
            raise ValueError(f"chunk: expected at least {self.chunk_bytes} bytes, got {chunk.size}")
        if writable and not chunk.flags.writeable:
            raise ValueError("chunk: expected a writable array")
        return chunk.reshape(-1)


def pages_of(tensors: Iterable[TorchTensor], *, tokens_per_block: int, chunk_tokens: int) -> Pages:
    """Return the pages of torch tensors, which stay alive as long as the result.

    Raise LayoutRefused for tensors whose blocks cannot be separated, or ValueError.
    """
    owned = list(tensors)
    for at, tensor in enumerate(owned):
        if not tensor.is_cpu:
            raise ValueError(f"tensors[{at}]: expected a tensor in CPU memory")
    layouts = [
        Layout(tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size())
        for tensor in owned
    ]
    return Pages(layouts, tokens_per_block=tokens_per_block, chunk_tokens=chunk_tokens, owner=owned)


@dataclass(frozen=True, slots=True)
class _Plane:
    """One plane in this process's address space, and the number of its stretch of memory."""

    address: int
    step: int
    nbytes: int
    memory: int

    def unit(self, other: _Plane) -> int:
        """Return the largest number of bytes that divides the positions and sizes of the blocks of both planes."""
        return gcd(self.step, self.nbytes, other.step, other.nbytes, self.address - other.address)


class _Region:
    """Planes that follow each other in a chunk, have blocks of one size and lie in one stretch of memory."""

    def __init__(self, planes: Sequence[_Plane], blocks: int, blocks_per_chunk: int, offset: int) -> None:
        self._page_bytes = planes[0].nbytes
        self._unit = gcd(*(planes[0].unit(plane) for plane in planes))
        base = min(plane.address for plane in planes)
        nbytes = max(plane.address + plane.step * (blocks - 1) for plane in planes) + self._page_bytes - base
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(base))
        self._memory = memory
        self._rows = memory.reshape(-1, self._unit)
        """The memory, in rows whose size divides that of a block."""
        self._windows = np.lib.stride_tricks.as_strided(
            memory, ((nbytes - self._page_bytes) // self._unit + 1, self._page_bytes), (self._unit, 1)
        )
        """One row of a block's size for each position at which a block may start; rows overlap."""
        self._starts = np.array([(plane.address - base) // self._unit for plane in planes], np.int64)[:, None]
        self._steps = np.array([plane.step // self._unit for plane in planes], np.int64)[:, None]
        self._within = np.arange(self._page_bytes // self._unit, dtype=np.int64)
        order = np.argsort(self._starts[:, 0])
        together = np.diff(self._starts[order, 0]) == len(self._within)
        self._order = order if len(order) > 1 and together.all() and (self._steps == self._steps[0]).all() else None
        """Order of planes in memory, if a block's bytes in all planes are adjacent there."""
        self._shape = (len(planes), blocks_per_chunk, self._page_bytes)
        self._offset = offset
        self.nbytes = len(planes) * blocks_per_chunk * self._page_bytes

    def part(self, chunk: U8) -> U8:
        """Return this region's part of a chunk, with the axes planes, blocks and bytes."""
        return chunk[self._offset : self._offset + self.nbytes].reshape(self._shape)

    def scatter(self, part: U8, blocks: I64, position: int) -> None:
        self._windows[self._starts + self._steps * blocks] = part[:, position : position + len(blocks)]

    def gather(self, blocks: I64, part: U8, position: int) -> None:
        target = part[:, position : position + len(blocks)]
        in_rows = self._unit >= MIN_UNIT
        plane_bytes = len(blocks) * self._page_bytes
        if self._order is not None and (self._page_bytes < MIN_PAGE_BYTES or not target.flags.c_contiguous):
            for at, start in enumerate((blocks * (self._steps[0] * self._unit)).tolist()):
                block = self._memory[start : start + self._page_bytes * len(part)]
                target[self._order, at] = block.reshape(len(part), -1)
            return
        plane_starts = self._starts + self._steps * blocks
        if in_rows and target.flags.c_contiguous:
            self._take(plane_starts, target)
        elif self._is_run(plane_starts):
            sources = self._memory.ctypes.data + plane_starts[:, 0] * self._unit
            targets = target.ctypes.data + np.arange(len(plane_starts)) * target.strides[0]
            copy(targets, sources, np.full(len(plane_starts), plane_bytes))
        elif in_rows and plane_bytes >= MIN_PLANE_BYTES:
            for at in range(len(plane_starts)):
                self._take(plane_starts[at], target[at])
        else:
            planes = max(1, TEMPORARY_BYTES // plane_bytes)
            for at in range(0, len(plane_starts), planes):
                target[at : at + planes] = self._windows[plane_starts[at : at + planes]]

    def _is_run(self, plane_starts: I64) -> bool:
        """Return whether the blocks are adjacent in every plane."""
        return bool((np.diff(plane_starts) == len(self._within)).all())

    def _take(self, plane_starts: I64, target: U8) -> None:
        rows = (plane_starts[..., None] + self._within).reshape(-1)
        # "clip" copies straight into the target; all rows are in range.
        np.take(self._rows, rows, axis=0, out=target.reshape(-1, self._unit), mode="clip")


def _regions(group: TensorGroup, addresses: Sequence[int], blocks: Sequence[int]) -> list[_Region]:
    """Return the regions of a group whose tensors have these addresses and numbers of blocks."""
    split: list[list[_Plane]] = []
    unit = 0
    for plane in _planes(group, addresses, blocks):
        first, own_unit = split[-1][0] if split else plane, plane.unit(plane)
        joined = gcd(unit, first.unit(plane))
        if (
            split
            and (plane.memory, plane.nbytes) == (first.memory, first.nbytes)
            and joined >= min(unit, own_unit, MAX_JOINED_UNIT)
        ):
            split[-1].append(plane)
            unit = joined
        else:
            split.append([plane])
            unit = own_unit
    regions: list[_Region] = []
    offset = 0
    for planes in split:
        regions.append(_Region(planes, group.blocks, group.blocks_per_chunk, offset))
        offset += regions[-1].nbytes
    return regions


def _planes(group: TensorGroup, addresses: Sequence[int], blocks: Sequence[int]) -> list[_Plane]:
    """Return all planes in the order of a chunk. Planes whose bytes are adjacent in every block become one plane."""
    memories = _memories(group, addresses, blocks)
    planes: list[_Plane] = []
    for tensor, address, memory in zip(group.tensors, addresses, memories, strict=True):
        for start in tensor.starts:
            plane = _Plane(address + start, tensor.step, tensor.nbytes, memory)
            before = planes[-1] if planes else plane
            if (
                group.blocks_per_chunk == 1
                and (before.memory, before.step) == (memory, plane.step)
                and before.address + before.nbytes == plane.address
            ):
                planes[-1] = _Plane(before.address, plane.step, before.nbytes + plane.nbytes, memory)
            else:
                planes.append(plane)
    return planes


def _memories(group: TensorGroup, addresses: Sequence[int], blocks: Sequence[int]) -> list[int]:
    """Return a number for each tensor, the same for tensors whose extents overlap or touch."""
    extents = [
        (address + min(tensor.starts), address + max(tensor.starts) + tensor.step * (count - 1) + tensor.nbytes)
        for tensor, address, count in zip(group.tensors, addresses, blocks, strict=True)
    ]
    numbers = [0] * len(extents)
    number = reach = 0
    for at in sorted(range(len(extents)), key=extents.__getitem__):
        low, high = extents[at]
        if low > reach:
            number += 1
        numbers[at], reach = number, max(reach, high)
    return numbers
