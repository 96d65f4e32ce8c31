"""Copies between chunks and paged tensors in CPU memory: they move the bytes that the layout names, and no others."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from dataplane.devices.paged import LayoutRefused, TensorGroup, planes_of
from dataplane.engines.pages import Layout, Pages, pages_of
from tests.gpu.layouts import BLOCKS, CHUNK, ORDERS, TOKENS, layout
from tests.threads import join

PER_CHUNK = CHUNK // TOKENS
POISON = 0xEE


class Cache:
    """Layers with random bytes in one allocation, and a slow reference copy of them."""

    def __init__(self, name: str, page_bytes: int = 8 << 10, chunk: int = CHUNK, layers: int = 2) -> None:
        kind = layout(name, "bfloat16", page_bytes, layers)
        self.memory = np.random.default_rng(0).integers(0, 256, kind.nbytes, np.uint8)
        storage = torch.from_numpy(self.memory).view(torch.bfloat16)
        self.tensors = [
            torch.as_strided(storage, kind.shape, stride, offset)
            for stride, offset in zip(kind.strides, kind.offsets, strict=True)
        ]
        self.group = TensorGroup(BLOCKS, TOKENS, chunk // TOKENS, tuple(kind.planes()))
        self.pages = pages_of(self.tensors, tokens_per_block=TOKENS, chunk_tokens=chunk)

    def gathered(self, blocks: Sequence[int], position: int) -> np.ndarray:
        return gathered(self.group, self.memory, blocks, position)

    def scattered(self, chunk: np.ndarray, blocks: Sequence[int], position: int) -> np.ndarray:
        return scattered(self.group, self.memory, chunk, blocks, position)


def gathered(
    group: TensorGroup, memory: np.ndarray, blocks: Sequence[int], position: int, bases: Sequence[int] = ()
) -> np.ndarray:
    """Return a chunk with the bytes of these blocks, and poison elsewhere."""
    runs = group.runs(blocks, first=position, bases=bases or None)
    chunk = np.full(group.chunk_bytes, POISON, np.uint8)
    for device, at, size in zip(runs.device, runs.chunk, runs.sizes, strict=True):
        chunk[at : at + size] = memory[device : device + size]
    return chunk


def scattered(
    group: TensorGroup,
    memory: np.ndarray,
    chunk: np.ndarray,
    blocks: Sequence[int],
    position: int,
    bases: Sequence[int] = (),
) -> np.ndarray:
    """Return a copy of the memory into which these blocks of a chunk are copied."""
    runs = group.runs(blocks, first=position, bases=bases or None)
    memory = memory.copy()
    for device, at, size in zip(runs.device, runs.chunk, runs.sizes, strict=True):
        memory[device : device + size] = chunk[at : at + size]
    return memory


def block_lists(per_chunk: int = PER_CHUNK) -> list[tuple[list[int], int]]:
    """Return blocks and a position: consecutive, scattered, mixed, one, none; whole chunks and parts of chunks."""
    rng = np.random.default_rng(1)
    lists = [
        (list(range(7, 7 + per_chunk)), 0),
        (rng.permutation(BLOCKS)[:per_chunk].tolist(), 0),
        ([BLOCKS - 1], per_chunk - 1),
        ([], 0),
        ([], per_chunk),
        (list(range(per_chunk))[::-1], 0),
        (list(range(5, 5 + per_chunk // 2)), per_chunk - per_chunk // 2),
    ]
    for _ in range(3):
        count = int(rng.integers(1, per_chunk + 1))
        blocks = rng.permutation(BLOCKS)[:count]
        lists.append((blocks.tolist(), int(rng.integers(0, per_chunk - count + 1))))
        lists.append((np.sort(blocks).tolist(), per_chunk - count))
    return lists


@pytest.mark.parametrize("chunk", [TOKENS, 2 * TOKENS, CHUNK])
@pytest.mark.parametrize("name", ORDERS)
def test_every_layout_is_copied_as_the_reference_copies_it(name, chunk):
    cache = Cache(name, chunk=chunk)
    assert cache.pages.chunk_bytes == cache.group.chunk_bytes
    assert cache.pages.group == TensorGroup(
        BLOCKS,
        TOKENS,
        chunk // TOKENS,
        tuple(planes_of(each.shape, each.stride(), each.element_size()) for each in cache.tensors),
    )
    for blocks, position in block_lists(chunk // TOKENS):
        numbers = np.array(blocks, np.int64)
        got = np.full(cache.pages.chunk_bytes, POISON, np.uint8)
        cache.pages.gather(numbers, got, position)
        np.testing.assert_array_equal(got, cache.gathered(blocks, position))
        new = np.roll(cache.memory[: len(got)], position + 1)
        expected = cache.scattered(new, blocks, position)
        cache.pages.scatter(new, numbers, position)
        np.testing.assert_array_equal(cache.memory, expected)


@pytest.mark.parametrize("name", ORDERS)
def test_a_block_is_loaded_to_another_block(name):
    cache = Cache(name, page_bytes=4 << 10)
    old, new = [3, 4, 5, 20, 1], [30, 11, 12, 13, 39]
    axis = 1 if "first" in name else 0
    before = [each.index_select(axis, torch.tensor(old)) for each in cache.tensors]
    chunk = np.zeros(cache.pages.chunk_bytes, np.uint8)
    cache.pages.gather(old, chunk, 2)
    cache.pages.scatter(chunk, new, 2)
    for tensor, content in zip(cache.tensors, before, strict=True):
        moved = tensor.index_select(axis, torch.tensor(new))
        assert torch.equal(moved.contiguous().view(torch.int16), content.contiguous().view(torch.int16))


ODD: dict[str, list[tuple[int, tuple[int, ...]]]] = {
    "different shapes in one storage": [(0, (9, 2, 4, 64)), (0, (12, 1, 4, 64)), (0, (9, 2, 4, 64))],
    "gaps between tensors": [(6, (9, 2, 4, 64)), (100_002, (9, 2, 4, 64)), (34, (9, 2, 4, 64))],
    "pages of odd sizes": [(0, (9, 4, 71)), (0, (9, 4, 71)), (2, (10, 4, 33))],
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("step", [0, 26, 2048])
def test_odd_tensors_are_copied_as_the_reference_copies_them(name, step):
    """`step` is the number of bytes between the blocks of a tensor."""
    layouts, offsets, at = [], [], 0
    for gap, shape in ODD[name]:
        at += gap
        row = int(np.prod(shape[1:])) + step // 2
        stride = [row, *[int(np.prod(shape[axis + 1 :])) for axis in range(1, len(shape))]]
        offsets.append(at)
        layouts.append((shape, tuple(stride)))
        at += shape[0] * row * 2
    memory = np.random.default_rng(3).integers(0, 256, at, np.uint8)
    pages = Pages(
        [Layout(memory.ctypes.data + offset, *each, 2) for offset, each in zip(offsets, layouts, strict=True)],
        tokens_per_block=4,
        chunk_tokens=16,
        owner=memory,
    )
    group = TensorGroup(9, 4, 4, tuple(planes_of(*each, 2) for each in layouts))
    for blocks, position in [([1, 2, 3, 4], 0), ([8, 0, 3, 2], 0), ([8, 0, 1], 1), ([5], 3)]:
        got = np.full(pages.chunk_bytes, POISON, np.uint8)
        pages.gather(blocks, got, position)
        np.testing.assert_array_equal(got, gathered(group, memory, blocks, position, offsets))
        new = np.random.default_rng(4).integers(0, 256, len(got), np.uint8)
        expected = scattered(group, memory, new, blocks, position, offsets)
        pages.scatter(new, blocks, position)
        np.testing.assert_array_equal(memory, expected)


def test_pages_keep_their_tensors_alive():
    content = [torch.randint(0, 100, (8, 2, 4, 64), dtype=torch.int16) for _ in range(3)]
    expected = np.concatenate([each[[6, 1]].numpy().view(np.uint8).ravel() for each in content])
    pages = pages_of(content, tokens_per_block=4, chunk_tokens=8)
    content.clear()
    chunk = np.zeros(pages.chunk_bytes, np.uint8)
    pages.gather([6, 1], chunk)
    np.testing.assert_array_equal(chunk, expected)


def read_only(nbytes: int) -> np.ndarray:
    return np.frombuffer(bytes(nbytes), np.uint8)


@pytest.mark.parametrize(
    ("blocks", "position", "chunk", "message"),
    [
        ([0, BLOCKS], 0, None, "blocks: expected numbers from 0 to 39, got 40"),
        ([3, -1], 0, None, "blocks: expected numbers from 0 to 39, got -1"),
        ([0.5], 0, None, "blocks: expected a list of block numbers"),
        ([[1, 2]], 0, None, "blocks: expected a list of block numbers"),
        ([1, 2], 15, None, "position: expected 2 blocks within the 16 of a chunk, got position 15"),
        ([1, 2], -1, None, "position: expected 2 blocks within the 16 of a chunk, got position -1"),
        (list(range(17)), 0, None, "position: expected 17 blocks within"),
        ([1], 0, lambda size: np.full(size - 1, POISON, np.uint8), "chunk: expected at least"),
        ([1], 0, lambda size: np.full(2 * size, POISON, np.uint8)[::2], "chunk: expected a contiguous"),
        ([1], 0, lambda size: np.full(size, -1, np.int8), "chunk: expected a contiguous numpy array of uint8"),
        ([1], 0, bytearray, "chunk: expected a contiguous numpy array of uint8"),
    ],
)
def test_wrong_arguments_are_named_and_nothing_is_written(blocks, position, chunk, message):
    cache = Cache("fused, LBHNC", page_bytes=4 << 10)
    target = (chunk or (lambda size: np.full(size, POISON, np.uint8)))(cache.pages.chunk_bytes)
    memory, before = cache.memory.copy(), bytes(target)
    with pytest.raises(ValueError, match=message):
        cache.pages.gather(blocks, target, position)
    with pytest.raises(ValueError, match=message):
        cache.pages.scatter(target, blocks, position)
    assert bytes(target) == before
    np.testing.assert_array_equal(cache.memory, memory)


def test_a_read_only_chunk_is_read_but_not_written():
    cache = Cache("fused, LBHNC", page_bytes=4 << 10)
    chunk = read_only(cache.pages.chunk_bytes)
    with pytest.raises(ValueError, match="chunk: expected a writable array"):
        cache.pages.gather([1], chunk)
    cache.pages.scatter(chunk, [1])
    assert not cache.gathered([1], 0)[: 4 << 10].any()


@pytest.mark.parametrize(("tokens_per_block", "chunk_tokens"), [(0, 256), (-16, 256), (16, 250), (16, 0), (16, 8)])
def test_blocks_that_do_not_divide_a_chunk_are_refused(tokens_per_block, chunk_tokens):
    with pytest.raises(ValueError, match="tokens_per_block: expected a divisor"):
        pages_of([torch.zeros(4, 2, 16, 8)], tokens_per_block=tokens_per_block, chunk_tokens=chunk_tokens)


def test_tensors_without_blocks_in_cpu_memory_are_refused():
    with pytest.raises(ValueError, match="tensors: expected at least one tensor"):
        pages_of([], tokens_per_block=16, chunk_tokens=256)
    with pytest.raises(ValueError, match="tensors: expected at least one block"):
        pages_of([torch.zeros(0, 2, 16, 8)], tokens_per_block=16, chunk_tokens=256)
    with pytest.raises(ValueError, match=r"tensors\[1\]: expected a tensor in CPU memory"):
        pages_of(
            [torch.zeros(4, 2, 16, 8), torch.zeros(4, 2, 16, 8, device="meta")], tokens_per_block=16, chunk_tokens=256
        )
    with pytest.raises(LayoutRefused, match="tensors with elements"):
        pages_of([torch.zeros(4, 2, 0, 8)], tokens_per_block=16, chunk_tokens=256)
    with pytest.raises(LayoutRefused, match="overlap"):
        pages_of([torch.zeros(4096).as_strided((4, 2, 16, 8), (128, 128, 8, 1))], tokens_per_block=16, chunk_tokens=256)


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("page_bytes", [64 << 10, 512 << 10])
def test_other_threads_run_during_copies(page_bytes, part):
    """The switch interval is so long that another thread runs only if the copy releases the interpreter lock."""
    cache = Cache("fused, LBHNC", page_bytes=page_bytes, chunk=32 * TOKENS)
    chunk = np.zeros(cache.pages.chunk_bytes, np.uint8)
    blocks = np.random.default_rng(5).permutation(BLOCKS)[: 31 if part else 32]
    turns, ended = 0, threading.Event()

    def other() -> None:
        nonlocal turns
        while not ended.is_set():
            turns += 1
            time.sleep(0)

    copies: list[Callable[[], None]] = [
        lambda: cache.pages.gather(blocks, chunk),
        lambda: cache.pages.scatter(chunk, blocks),
    ]
    interval = sys.getswitchinterval()
    thread = threading.Thread(target=other)
    try:
        sys.setswitchinterval(5)  # a thread that a failed test left would stop this one for a longer interval
        thread.start()
        for copy in copies:
            for _ in range(200):
                before = turns
                copy()
                if turns > before:
                    break
            else:
                pytest.fail("no other thread ran during 200 copies")
    finally:
        ended.set()
        join(thread)
        sys.setswitchinterval(interval)
