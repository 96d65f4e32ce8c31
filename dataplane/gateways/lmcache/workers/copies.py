"""Copies between an engine's paged cache and blocks, for engines that let this node copy ("lmcache driven").

`dataplane.devices.paged` defines chunks and the layout of their bytes. `device_copies` copies device memory.

A cache in host memory is a named segment. It is read and written through its descriptor instead of a mapping: if its
owner truncates the segment, a copy fails, whereas access to a mapping would raise a signal that ends this process.
"""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import md5, sha256
from pathlib import Path

from dataplane.base.dtypes import canonical
from dataplane.copies.copying import CopyFailed
from dataplane.devices.paged import (
    LayoutRefused,
    Planes,
    TensorGroup,
    block_axis,
    consecutive,
    planes_of,
    tokens_per_block,
)
from dataplane.gateways.lmcache.wire.ipc import CpuShm, MemoryUnsupported, Metadata, Tensor
from dataplane.gateways.lmcache.wire.messages import Group, Hints
from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS

SHM_FOLDER = Path("/dev/shm")
SHM_PREFIX = "lmcache_kv_"
"""Prefix of the names that clients give their caches. No other segment of this machine is opened for a client."""
MAX_TENSORS = 4096
MAX_GROUPS = 64
MAX_REGISTERED_PLANES = 1 << 16
"""Maximum planes of all tensors of a registration, whose layout is made on the loop."""
MAX_CHUNK_BYTES = 1 << 36
MAX_DIGESTED_BYTES = 1 << 30
"""Maximum bytes that one digest request reads, which takes from half a second to a few seconds."""
NULL_BLOCK = 0
"""Block number that engines send where they have no block."""
ENGINE_TYPES = ("vllm", "mock")
"""Engines whose tensor layouts are supported."""

Blocks = Sequence[Sequence[int]]
"""Block numbers by group."""


Source = memoryview | int
"""The bytes of a chunk in the named segment, or the address of a GPU copy on the engine's device."""


def _planes(metadata: Sequence[Metadata], groups: Sequence[Group]) -> dict[int, Planes]:
    """Return the planes of the tensors of all groups by position. Raise MemoryUnsupported, LayoutRefused."""
    indices = [index for group in groups for index in group.layer_indices]
    is_complete = all(group.layer_indices for group in groups) and len(set(indices)) == len(indices)
    if not is_complete or not 0 <= min(indices) <= max(indices) < len(metadata):
        raise MemoryUnsupported(f"expected layers of 0 to {len(metadata) - 1}, each once, got {indices[:16]}")
    planes: dict[int, Planes] = {}
    count = 0
    for index in indices:
        member = metadata[index]
        planes[index] = planes_of(member.shape, member.stride, member.item_bytes, member.storage_offset)
        count += len(planes[index].starts)
        if count > MAX_REGISTERED_PLANES:
            raise MemoryUnsupported(
                f"expected blocks of at most {MAX_REGISTERED_PLANES} separate pieces in all tensors together"
            )
    return planes


def _group(metadata: Sequence[Metadata], group: Group, layout: str, planes: Mapping[int, Planes]) -> TensorGroup:
    indices = group.layer_indices
    members = [metadata[index] for index in indices]
    tokens = group.tokens_per_block or tokens_per_block(members[0].shape, layout)
    if tokens < 1 or CHUNK_TOKENS % tokens:
        raise MemoryUnsupported(f"expected blocks whose tokens divide {CHUNK_TOKENS}, got {tokens}")
    return TensorGroup(
        blocks=min(member.shape[block_axis(member.shape)] for member in members),
        tokens_per_block=tokens,
        blocks_per_chunk=CHUNK_TOKENS // tokens,
        tensors=tuple(planes[index] for index in indices),
    )


def _digest(groups: Sequence[TensorGroup], metadata: Sequence[Metadata]) -> str:
    """Return a digest of the properties that interchangeable chunks share.

    These are the sizes of blocks and planes, the shapes without the number of blocks, and the order of axes where it
    differs from that of the shape.
    """
    shapes = [
        (tensor.dtype, *(size for at, size in enumerate(tensor.shape) if at != block_axis(tensor.shape)))
        for tensor in metadata
    ]
    layouts = [
        (
            group.tokens_per_block,
            [
                (len(planes.starts), planes.nbytes, *([planes.order] if planes.order else []))
                for planes in group.tensors
            ],
        )
        for group in groups
    ]
    return sha256(repr((shapes, layouts)).encode()).hexdigest()[:24]


class Copier(ABC):
    """Copy chunks of one engine's cache. `begin`, `gather`, `scatter` and `finish` run on a separate thread."""

    own_thread = False
    """Whether its copies need a thread of their own, because they wait for the engine and must not delay others."""
    device_uuid = ""
    """UUID of the device with the engine's memory; empty for host memory."""

    def __init__(
        self, tensors: Sequence[Tensor], groups: Sequence[Group], hints: Hints | None, engine_type: str
    ) -> None:
        """Check the tensors. Raise MemoryUnsupported on failure."""
        metadata = [tensor.metadata for tensor in tensors]
        if engine_type not in ENGINE_TYPES:
            raise MemoryUnsupported(
                f"engine type {engine_type[:32]!r}: expected one of {', '.join(ENGINE_TYPES)}; "
                "use mp_transfer_mode=engine_driven"
            )
        if not 1 <= len(metadata) <= MAX_TENSORS or len(groups) > MAX_GROUPS:
            raise MemoryUnsupported(f"expected 1 to {MAX_TENSORS} tensors, got {len(metadata)}")
        order = "" if hints is None or hints.kv_layout is None else hints.kv_layout[:16]
        groups = groups or [Group(layer_indices=list(range(len(metadata))))]
        try:
            planes = _planes(metadata, groups)
            self._groups = [_group(metadata, group, order, planes) for group in groups]
            """Tensors that share block numbers."""
        except LayoutRefused as error:
            raise MemoryUnsupported(str(error)) from None
        self._members = [group.layer_indices for group in groups]
        """Positions of each group's tensors."""
        self.layout = f"lmcache-driven:{order or '-'}:{_digest(self._groups, metadata)}"
        """Layout name, equal for interchangeable chunks."""
        dtype_names = {canonical(tensor.dtype) or "" for tensor in metadata}
        self.dtype = dtype_names.pop() if len(dtype_names) == 1 else "mixed"
        """Data type of all tensors, or `mixed`."""
        self.chunk_bytes = sum(group.chunk_bytes for group in self._groups)
        if not 0 < self.chunk_bytes <= MAX_CHUNK_BYTES:
            raise MemoryUnsupported(f"expected chunks of 1 to {MAX_CHUNK_BYTES} bytes, got {self.chunk_bytes}")

    @abstractmethod
    def open(self) -> None:
        """Open the engine's memory unless it is already open. Raise CopyFailed on failure."""

    def chunks(self, blocks: Blocks, chunk_count: int) -> int:
        """Return how many leading chunks have blocks. Raise CopyFailed for invalid block numbers."""
        if len(blocks) != len(self._groups):
            raise CopyFailed(f"expected blocks of {len(self._groups)} groups, got {len(blocks)}")
        real = [False] * chunk_count
        for numbers, group in zip(blocks, self._groups, strict=True):
            needed = chunk_count * group.blocks_per_chunk
            if len(numbers) < needed:
                raise CopyFailed(f"expected at least {needed} blocks in each group, got {len(numbers)}")
            numbers = numbers[:needed]
            if numbers and not 0 <= min(numbers) <= max(numbers) < group.blocks:
                raise CopyFailed(f"expected blocks from 0 to {group.blocks - 1}")
            for chunk in range(chunk_count):
                first = chunk * group.blocks_per_chunk
                real[chunk] = real[chunk] or any(
                    number != NULL_BLOCK for number in numbers[first : first + group.blocks_per_chunk]
                )
        return real.index(False) if False in real else chunk_count

    @abstractmethod
    def begin(self, event: bytes, ended: Callable[[], bool]) -> None:
        """Wait, before the copies of a request, for the work that the engine enqueued before it recorded `event`.

        Raise CopyFailed, also if the wait takes too long or `ended` returns True because the result is no longer
        needed.
        """

    @abstractmethod
    def gather(self, blocks: Blocks, chunk: int, target: memoryview) -> None:
        """Copy a chunk out of the engine's cache. The copy is complete after `finish`. Raise CopyFailed on failure."""

    @abstractmethod
    def scatter(self, blocks: Blocks, chunk: int, source: Source, skip_tokens: int) -> None:
        """Copy a chunk into the engine's cache, except blocks that end within the first `skip_tokens` of all chunks.

        The copy is complete after `finish`. Raise CopyFailed on failure.
        """

    @abstractmethod
    def finish(self) -> None:
        """Complete the copies of a request, failed or not. Afterwards nothing accesses either memory. Raise
        CopyFailed."""

    def digests(self, chunks: Blocks, *, layerwise: bool) -> list[list[str]]:
        """Return the MD5 digests of the current contents of blocks of the engine's cache, one for each chunk.

        The result has one list per layer, or a single list over all layers together. Raise CopyFailed on failure.
        """
        last = min(group.blocks for group in self._groups) - 1
        numbers = [number for chunk in chunks for number in chunk]
        if min(numbers) < 0 or max(numbers) > last:
            raise CopyFailed(f"expected blocks from 0 to {last}")
        tensors = sorted(
            (position, planes)
            for positions, group in zip(self._members, self._groups, strict=True)
            for position, planes in zip(positions, group.tensors, strict=True)
        )
        size = len(numbers) * sum(len(planes.starts) * planes.nbytes for _, planes in tensors)
        if size > MAX_DIGESTED_BYTES:
            raise CopyFailed(f"expected blocks of at most {MAX_DIGESTED_BYTES} bytes, got {size}")
        layers = [[tensor] for tensor in tensors] if layerwise else [tensors]
        return [[self._digest_of(chunk, layer) for chunk in chunks] for layer in layers]

    def _digest_of(self, numbers: Sequence[int], tensors: Sequence[tuple[int, Planes]]) -> str:
        """Return the MD5 digest of blocks, tensor by tensor and plane by plane."""
        digest = md5(usedforsecurity=False)
        for position, planes in tensors:
            for content in self._contents(position, planes, numbers):
                digest.update(content)
        return digest.hexdigest()

    @abstractmethod
    def _contents(self, position: int, planes: Planes, numbers: Sequence[int]) -> Iterator[memoryview]:
        """Yield the bytes of blocks of the tensor at a position, plane by plane. Raise CopyFailed on failure."""

    def _own(
        self, blocks: Blocks, chunk: int, skip_tokens: int
    ) -> Iterator[tuple[TensorGroup, list[int], Sequence[int], int]]:
        """Yield each group, the positions of its tensors, its blocks of a chunk, and how many leading blocks are left
        out of them because they end within the first `skip_tokens` of all chunks."""
        for numbers, group, positions in zip(blocks, self._groups, self._members, strict=True):
            first = chunk * group.blocks_per_chunk
            skip = min(max(skip_tokens // group.tokens_per_block - first, 0), group.blocks_per_chunk)
            yield group, positions, numbers[first + skip : first + group.blocks_per_chunk], skip

    @abstractmethod
    def close(self) -> None:
        """Close the engine's memory permanently. No copy may be running."""


class CpuShmCopier(Copier):
    """Copy between named POSIX segments and blocks. An engine with its cache in host memory finishes its work before it
    sends a request, and the copies are synchronous."""

    def __init__(
        self, tensors: Sequence[Tensor], groups: Sequence[Group], hints: Hints | None, engine_type: str
    ) -> None:
        """Open the segments. Raise MemoryUnsupported on failure."""
        super().__init__(tensors, groups, hints, engine_type)
        self._fds: dict[str, int] = {}
        try:
            self._files = [self._open(at, tensor) for at, tensor in enumerate(tensors)]
        except BaseException:
            self.close()
            raise

    def _open(self, at: int, tensor: Tensor) -> int:
        if not isinstance(tensor, CpuShm):
            raise MemoryUnsupported(f"tensor {at} is of type {tensor.type}, where the first one is cpu_shm")
        name = tensor.shm_name.removeprefix("/")
        fd = self._fds.get(name)
        if fd is None:
            if not name.startswith(SHM_PREFIX) or "/" in name or "\0" in name:
                raise MemoryUnsupported(f"segment {name[:64]!r}: expected a name that begins with {SHM_PREFIX}")
            try:
                fd = os.open(SHM_FOLDER / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError as error:
                raise MemoryUnsupported(f"segment {name[:64]!r}: {error.strerror}") from None
            self._fds[name] = fd
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size < tensor.nbytes:
            raise MemoryUnsupported(f"segment {name[:64]!r} has {status.st_size} bytes, expected {tensor.nbytes}")
        return fd

    def open(self) -> None:
        """Do nothing: the segments are open."""

    def begin(self, event: bytes, ended: Callable[[], bool]) -> None:
        """Do nothing: the engine has finished its work."""

    def gather(self, blocks: Blocks, chunk: int, target: memoryview) -> None:
        for fd, offset, at, size in self._runs(blocks, chunk, 0):
            _copy_all(os.preadv, fd, target[at : at + size], offset)

    def scatter(self, blocks: Blocks, chunk: int, source: Source, skip_tokens: int) -> None:
        assert not isinstance(source, int)  # only devices have GPU copies
        for fd, offset, at, size in self._runs(blocks, chunk, skip_tokens):
            if os.fstat(fd).st_size < offset + size:
                raise CopyFailed("the engine's segment was cut short")
            _copy_all(os.pwritev, fd, source[at : at + size], offset)

    def finish(self) -> None:
        """Do nothing: the copies are complete."""

    def _runs(self, blocks: Blocks, chunk: int, skip_tokens: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (file, offset in the file, offset in the chunk, bytes) of each run of a chunk."""
        at = 0
        for group, positions, group_blocks, skip in self._own(blocks, chunk, skip_tokens):
            for position, tensor in zip(positions, group.tensors, strict=True):
                runs = consecutive(group_blocks, merge=tensor.step == tensor.nbytes)
                for start in tensor.starts:
                    at += skip * tensor.nbytes
                    for number, count in runs:
                        size = count * tensor.nbytes
                        yield self._files[position], start + number * tensor.step, at, size
                        at += size

    def _contents(self, position: int, planes: Planes, numbers: Sequence[int]) -> Iterator[memoryview]:
        buffer = memoryview(bytearray(planes.nbytes))
        for start in planes.starts:
            for number in numbers:
                _copy_all(os.preadv, self._files[position], buffer, start + number * planes.step)
                yield buffer

    def close(self) -> None:
        for fd in self._fds.values():
            with suppress(OSError):
                os.close(fd)
        self._fds.clear()


def _copy_all(call: Callable[[int, list[memoryview], int], int], fd: int, buffer: memoryview, offset: int) -> None:
    """Read or write all of a buffer. Raise CopyFailed on failure."""
    try:
        while buffer:
            done = call(fd, [buffer], offset)
            if not done:
                raise CopyFailed("the engine's segment was cut short")
            buffer, offset = buffer[done:], offset + done
    except OSError as error:
        raise CopyFailed(f"copying failed: {error.strerror}") from None
