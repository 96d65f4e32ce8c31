"""The pages that the benchmarks of a GPU copy: 8 heads of 128 in bfloat16, with the blocks in shuffled order."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from benchmarks.harness.memory import MiB
from dataplane.client import Client
from dataplane.client.gpu import PagedCache
from dataplane.devices.paged import Planes, TensorGroup, planes_of
from dataplane.devices.runtime import Device, DeviceRuntime

HEADS, HEAD_SIZE, ITEM_BYTES = 8, 128, 2


@dataclass(frozen=True)
class Form:
    """Layers of paged memory, one after another in one allocation."""

    tokens: int
    """Tokens of a block."""
    fused: bool
    """Keys and values in one row; otherwise all keys of a layer come before its values."""
    layers: int
    blocks_per_chunk: int

    @property
    def page_bytes(self) -> int:
        """Bytes of a block that lie together."""
        return self.tokens * HEADS * HEAD_SIZE * ITEM_BYTES * (2 if self.fused else 1)

    @property
    def chunk_bytes(self) -> int:
        return 2 * self.layers * self.blocks_per_chunk * self.tokens * HEADS * HEAD_SIZE * ITEM_BYTES

    @property
    def chunk_tokens(self) -> int:
        return self.tokens * self.blocks_per_chunk

    @property
    def name(self) -> str:
        order = "fused" if self.fused else "split"
        return f"{self.tokens}tokens_{order}_{self.chunk_bytes // MiB}MiB"

    def blocks_in(self, nbytes: int) -> int:
        """Return the number of blocks in the whole chunks that fit into `nbytes`."""
        return nbytes // self.chunk_bytes * self.blocks_per_chunk

    def shape(self, blocks: int) -> tuple[int, ...]:
        """The shape of a layer with so many blocks."""
        if self.fused:
            return blocks, self.tokens, HEADS, 2 * HEAD_SIZE
        return 2, blocks, self.tokens, HEADS, HEAD_SIZE

    def stride(self, blocks: int) -> tuple[int, ...]:
        """Elements from one to the next along each axis."""
        shape = self.shape(blocks)
        return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))

    def offsets(self, blocks: int) -> list[int]:
        """Bytes from the start of the memory to each layer."""
        layer = ITEM_BYTES * prod(self.shape(blocks))
        return [number * layer for number in range(self.layers)]

    def planes(self, blocks: int) -> list[Planes]:
        shape, stride = self.shape(blocks), self.stride(blocks)
        return [planes_of(shape, stride, ITEM_BYTES, at // ITEM_BYTES) for at in self.offsets(blocks)]

    def group(self, blocks: int) -> TensorGroup:
        return TensorGroup(blocks, self.tokens, self.blocks_per_chunk, tuple(self.planes(blocks)))


FORMS = [
    Form(tokens, fused, layers, blocks_per_chunk)
    for tokens, layers, blocks_per_chunk in ((16, 32, 1), (16, 32, 16), (128, 4, 1), (128, 32, 2))
    for fused in (False, True)
]
"""Chunks of 2 and 32 MiB, of 16 and 128 tokens a page."""
SPLIT = [form for form in FORMS if form.chunk_bytes == 32 * MiB and not form.fused]
"""Those with which data planes and engines are measured."""


def paged_cache(
    form: Form,
    client: Client,
    runtime: DeviceRuntime,
    device: Device,
    memory: int,
    blocks: int,
    *,
    gpu_copies: bool = True,
) -> PagedCache:
    """Return a paged cache of `blocks` blocks in device memory at `memory`. Raise DeviceError."""
    return PagedCache(
        client,
        runtime,
        device,
        form.planes(blocks),
        [memory] * form.layers,
        blocks=blocks,
        tokens_per_block=form.tokens,
        chunk_tokens=form.chunk_tokens,
        gpu_copies=gpu_copies,
    )


def shuffled(blocks: int) -> list[int]:
    return [int(block) for block in np.random.default_rng(0).permutation(blocks)]
