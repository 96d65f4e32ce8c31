"""The pages that the benchmarks of a GPU copy: layers whose keys come before their values, in one buffer, and blocks in
shuffled order."""

from __future__ import annotations

import numpy as np

from dataplane.devices.paged import Planes, TensorGroup

PAGES = (16 << 10, 32 << 10, 64 << 10)
LAYERS = 32
BLOCKS_PER_CHUNK = 16
TOKENS_PER_BLOCK = 16


def tensor_group(page: int, blocks: int) -> TensorGroup:
    """Of pages of so many bytes."""
    plane = blocks * page
    tensors = [Planes((2 * layer * plane, (2 * layer + 1) * plane), page, page) for layer in range(LAYERS)]
    return TensorGroup(blocks, TOKENS_PER_BLOCK, BLOCKS_PER_CHUNK, tuple(tensors))


def blocks_in(page: int, batch: int) -> int:
    """As many blocks as fill a batch, in whole chunks."""
    return batch // (2 * LAYERS * page) // BLOCKS_PER_CHUNK * BLOCKS_PER_CHUNK


def shuffled(blocks: int) -> list[int]:
    return [int(each) for each in np.random.default_rng(0).permutation(blocks)]
