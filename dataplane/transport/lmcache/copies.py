"""Copies between an engine's paged cache and blocks, for engines that let this node copy ("lmcache driven").

A chunk is what the engine's blocks hold for its tokens, group by group, tensor by tensor, plane by plane, block by
block. Nobody but this node reads it, so its order is ours.

The engine's segment is read and written through its descriptor, not mapped: memory that its owner cuts short is a copy
that fails, where a mapping would be a signal that ends this process.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import md5, sha256
from pathlib import Path
from typing import Protocol

from dataplane.transport.lmcache.chains import CHUNK_TOKENS
from dataplane.transport.lmcache.dtypes import canonical
from dataplane.transport.lmcache.ipc import CpuShm, Unsupported
from dataplane.transport.lmcache.messages import Group, Hints

SHM_FOLDER = Path("/dev/shm")
SHM_PREFIX = "lmcache_kv_"
"""Of the names that clients give their caches: no other segment of this machine is touched in their name."""
MAX_TENSORS = 4096
MAX_GROUPS = 64
MAX_CHUNK_BYTES = 1 << 36
MAX_DIGESTED_BYTES = 1 << 30
"""Of one question: half a second, or a few."""
NULL_BLOCK = 0
"""What engines put where they have no block."""
ENGINE_TYPES = ("vllm", "mock")
"""Engines whose tensors are told apart here."""

Blocks = Sequence[Sequence[int]]
"""Block numbers by group."""


class CopyFailed(Exception):
    """A copy that did not happen, or not whole: the sentence says why."""


class Copier(Protocol):
    """Copies chunks of one engine's cache. `gather` and `scatter` run on a thread of their own."""

    layout: str
    """Equal where chunks are interchangeable."""
    dtype: str
    chunk_bytes: int

    def chunks(self, blocks: Blocks, wanted: int) -> int:
        """How many leading chunks have blocks. Raises CopyFailed for block numbers that cannot be."""

    def gather(self, blocks: Blocks, chunk: int, target: memoryview) -> None:
        """Copy a chunk out of the engine's cache. Raises CopyFailed."""

    def scatter(self, blocks: Blocks, chunk: int, source: memoryview, skip_tokens: int) -> None:
        """Copy a chunk into the engine's cache, but not into its blocks that end within the first `skip_tokens` of all
        chunks. Raises CopyFailed."""

    def digests(self, chunks: Blocks, *, layerwise: bool) -> list[list[str]]:
        """MD5 of what some blocks of the engine's cache hold now, for each of the chunks: one list for each layer, or
        one of all layers together. Raises CopyFailed."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Planes:
    """One tensor as runs of bytes for each block."""

    fd: int
    starts: tuple[int, ...]
    """Bytes from the start of the segment to block 0 of each plane."""
    step: int
    """Bytes from a block to the next one."""
    nbytes: int
    """Bytes of a block in one plane."""


@dataclass(frozen=True, slots=True)
class _GroupForm:
    """Tensors that share block numbers."""

    blocks: int
    """That the smallest tensor has."""
    tokens_per_block: int
    blocks_per_chunk: int
    tensors: tuple[_Planes, ...]

    @property
    def chunk_bytes(self) -> int:
        return self.blocks_per_chunk * sum(len(each.starts) * each.nbytes for each in self.tensors)


class CpuShmCopier:
    """Copies between named POSIX segments and blocks."""

    def __init__(
        self, tensors: Sequence[CpuShm], groups: Sequence[Group], hints: Hints | None, engine_type: str
    ) -> None:
        """Raises Unsupported."""
        if engine_type not in ENGINE_TYPES:
            raise Unsupported(
                f"engine type {engine_type[:32]!r}: expected one of {', '.join(ENGINE_TYPES)}; "
                "use mp_transfer_mode=engine_driven"
            )
        if not 1 <= len(tensors) <= MAX_TENSORS or len(groups) > MAX_GROUPS:
            raise Unsupported(f"expected 1 to {MAX_TENSORS} tensors, got {len(tensors)}")
        self._fds: dict[str, int] = {}
        layout = "" if hints is None or hints.kv_layout is None else hints.kv_layout[:16]
        groups = groups or [Group(layer_indices=list(range(len(tensors))))]
        try:
            self._groups = [self._group(tensors, group, layout) for group in groups]
            self._layers = {
                index: planes
                for group, form in zip(groups, self._groups, strict=True)
                for index, planes in zip(group.layer_indices, form.tensors, strict=True)
            }
            self.chunk_bytes = sum(group.chunk_bytes for group in self._groups)
            if not 0 < self.chunk_bytes <= MAX_CHUNK_BYTES:
                raise Unsupported(f"expected chunks of 1 to {MAX_CHUNK_BYTES} bytes, got {self.chunk_bytes}")
        except BaseException:
            self.close()
            raise
        names = {canonical(tensor.metadata.dtype) or "" for tensor in tensors}
        self.dtype = names.pop() if len(names) == 1 else "mixed"
        self.layout = f"lmcache-driven:{layout or '-'}:{_digest(self._groups, tensors)}"

    def _group(self, tensors: Sequence[CpuShm], group: Group, layout: str) -> _GroupForm:
        indices = group.layer_indices
        if (
            not indices
            or len(set(indices)) != len(indices)
            or not 0 <= min(indices) <= max(indices) < len(tensors)
        ):
            raise Unsupported(f"expected layers of 0 to {len(tensors) - 1}, each once, got {indices[:16]}")
        members = [tensors[index] for index in indices]
        tokens = group.tokens_per_block or _tokens_per_block(members[0].metadata.shape, layout)
        if tokens < 1 or CHUNK_TOKENS % tokens:
            raise Unsupported(f"expected blocks whose tokens divide {CHUNK_TOKENS}, got {tokens}")
        return _GroupForm(
            blocks=min(member.metadata.shape[_block_axis(member.metadata.shape)] for member in members),
            tokens_per_block=tokens,
            blocks_per_chunk=CHUNK_TOKENS // tokens,
            tensors=tuple(self._planes(member) for member in members),
        )

    def _planes(self, tensor: CpuShm) -> _Planes:
        shape, stride = tensor.metadata.shape, tensor.metadata.stride
        item = tensor.metadata.item_bytes
        axis = _block_axis(shape)
        inner = 1
        for size, step in zip(reversed(shape[axis + 1 :]), reversed(stride[axis + 1 :]), strict=True):
            if size > 1 and step != inner:
                raise Unsupported(f"a block of shape {shape[axis + 1 :]} is not contiguous: stride {stride}")
            inner *= size
        start = tensor.metadata.storage_offset
        planes = range(shape[0]) if axis else range(1)
        return _Planes(
            fd=self._open(tensor),
            starts=tuple(item * (start + plane * stride[0] * axis) for plane in planes),
            step=item * stride[axis],
            nbytes=item * inner,
        )

    def _open(self, tensor: CpuShm) -> int:
        name = tensor.shm_name.removeprefix("/")
        fd = self._fds.get(name)
        if fd is None:
            if not name.startswith(SHM_PREFIX) or "/" in name or "\0" in name:
                raise Unsupported(f"segment {name[:64]!r}: expected a name that begins with {SHM_PREFIX}")
            try:
                fd = os.open(SHM_FOLDER / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError as error:
                raise Unsupported(f"segment {name[:64]!r}: {error.strerror}") from None
            self._fds[name] = fd
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size < tensor.nbytes:
            raise Unsupported(f"segment {name[:64]!r} has {status.st_size} bytes, expected {tensor.nbytes}")
        return fd

    def chunks(self, blocks: Blocks, wanted: int) -> int:
        if len(blocks) != len(self._groups):
            raise CopyFailed(f"expected blocks of {len(self._groups)} groups, got {len(blocks)}")
        real = [False] * wanted
        for numbers, group in zip(blocks, self._groups, strict=True):
            needed = wanted * group.blocks_per_chunk
            if len(numbers) < needed:
                raise CopyFailed(f"expected at least {needed} blocks in each group, got {len(numbers)}")
            numbers = numbers[:needed]
            if numbers and not 0 <= min(numbers) <= max(numbers) < group.blocks:
                raise CopyFailed(f"expected blocks from 0 to {group.blocks - 1}")
            for chunk in range(wanted):
                first = chunk * group.blocks_per_chunk
                real[chunk] = real[chunk] or any(
                    number != NULL_BLOCK for number in numbers[first : first + group.blocks_per_chunk]
                )
        return real.index(False) if False in real else wanted

    def gather(self, blocks: Blocks, chunk: int, target: memoryview) -> None:
        at = 0
        for numbers, group in zip(blocks, self._groups, strict=True):
            first = chunk * group.blocks_per_chunk
            own = numbers[first : first + group.blocks_per_chunk]
            for tensor in group.tensors:
                runs = _runs(own, merge=tensor.step == tensor.nbytes)
                for start in tensor.starts:
                    for number, count in runs:
                        size = count * tensor.nbytes
                        offset = start + number * tensor.step
                        _whole(os.preadv, tensor.fd, target[at : at + size], offset)
                        at += size

    def scatter(self, blocks: Blocks, chunk: int, source: memoryview, skip_tokens: int) -> None:
        at = 0
        for numbers, group in zip(blocks, self._groups, strict=True):
            first = chunk * group.blocks_per_chunk
            own = numbers[first : first + group.blocks_per_chunk]
            skip = min(max(skip_tokens // group.tokens_per_block - first, 0), group.blocks_per_chunk)
            for tensor in group.tensors:
                runs = _runs(own[skip:], merge=tensor.step == tensor.nbytes)
                for start in tensor.starts:
                    at += skip * tensor.nbytes
                    for number, count in runs:
                        size = count * tensor.nbytes
                        offset = start + number * tensor.step
                        if os.fstat(tensor.fd).st_size < offset + size:
                            raise CopyFailed("the engine's segment was cut short")
                        _whole(os.pwritev, tensor.fd, source[at : at + size], offset)
                        at += size

    def digests(self, chunks: Blocks, *, layerwise: bool) -> list[list[str]]:
        last = min(group.blocks for group in self._groups) - 1
        numbers = [number for chunk in chunks for number in chunk]
        if min(numbers) < 0 or max(numbers) > last:
            raise CopyFailed(f"expected blocks from 0 to {last}")
        tensors = [self._layers[index] for index in sorted(self._layers)]
        size = len(numbers) * sum(len(tensor.starts) * tensor.nbytes for tensor in tensors)
        if size > MAX_DIGESTED_BYTES:
            raise CopyFailed(f"expected blocks of at most {MAX_DIGESTED_BYTES} bytes, got {size}")
        buffer = memoryview(bytearray(max(tensor.nbytes for tensor in tensors)))
        layers = [[tensor] for tensor in tensors] if layerwise else [tensors]
        return [[_digest_of(chunk, layer, buffer) for chunk in chunks] for layer in layers]

    def close(self) -> None:
        for fd in self._fds.values():
            with suppress(OSError):
                os.close(fd)
        self._fds.clear()


class _Call(Protocol):
    def __call__(self, fd: int, buffers: list[memoryview], offset: int, /) -> int: ...


def _whole(call: _Call, fd: int, buffer: memoryview, offset: int) -> None:
    """Read or write all of a buffer. Raises CopyFailed."""
    try:
        while buffer:
            done = call(fd, [buffer], offset)
            if not done:
                raise CopyFailed("the engine's segment was cut short")
            buffer, offset = buffer[done:], offset + done
    except OSError as error:
        raise CopyFailed(f"copying failed: {error.strerror}") from None


def _digest_of(numbers: Sequence[int], tensors: Sequence[_Planes], buffer: memoryview) -> str:
    """Of some blocks, tensor by tensor, plane by plane. Raises CopyFailed."""
    digest = md5(usedforsecurity=False)
    for tensor in tensors:
        piece = buffer[: tensor.nbytes]
        for start in tensor.starts:
            for number in numbers:
                _whole(os.preadv, tensor.fd, piece, start + number * tensor.step)
                digest.update(piece)
    return digest.hexdigest()


def _runs(numbers: Sequence[int], *, merge: bool) -> list[tuple[int, int]]:
    """(first block, blocks) for runs of consecutive numbers; every block alone where planes do not lie together."""
    if not merge:
        return [(number, 1) for number in numbers]
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][0] + runs[-1][1]:
            runs[-1] = runs[-1][0], runs[-1][1] + 1
        else:
            runs.append((number, 1))
    return runs


def _block_axis(shape: Sequence[int]) -> int:
    """Where a tensor counts its blocks: behind the two planes of keys and values, where those come first."""
    return 1 if len(shape) >= 5 and shape[0] == 2 else 0


def _tokens_per_block(shape: Sequence[int], layout: str) -> int:
    """Tokens of a block, where the engine does not say: from the order that it names."""
    heads_first = layout in ("HND", "BLHNC")
    if len(shape) == 3:  # blocks, tokens, content
        return shape[1]
    if len(shape) == 4:  # blocks, then heads and tokens in either order, content
        return shape[2 if heads_first else 1]
    if len(shape) == 5:  # two planes first or second
        return shape[3 if heads_first else 2]
    raise Unsupported(f"expected tensors of 3 to 5 dimensions, got {len(shape)}")


def _digest(groups: Sequence[_GroupForm], tensors: Sequence[CpuShm]) -> str:
    """What must be equal where chunks are interchangeable: sizes of blocks and planes, shapes but for the number of
    blocks."""
    shapes = [
        (
            tensor.metadata.dtype,
            *(
                size
                for at, size in enumerate(tensor.metadata.shape)
                if at != _block_axis(tensor.metadata.shape)
            ),
        )
        for tensor in tensors
    ]
    forms = [
        (group.tokens_per_block, [(len(each.starts), each.nbytes) for each in group.tensors])
        for group in groups
    ]
    return sha256(repr((shapes, forms)).encode()).hexdigest()[:24]
