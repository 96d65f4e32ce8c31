"""Content of blocks: right bytes verify, and nothing else does."""

from hashlib import sha256

import numpy as np
import pytest

from dataplane.protocol.layout import pack_keys
from dataplane.replay.content import Content

BLOCK_BYTES = 4096
KEYS = pack_keys([sha256(bytes([number])).digest() for number in range(5)])


@pytest.fixture
def content():
    return Content(BLOCK_BYTES)


@pytest.fixture
def blocks(content):
    rows = content.scratch(len(KEYS))
    content.fill(rows, KEYS)
    return rows


def test_filled_bytes_verify(content, blocks):
    assert content.wrong(blocks, KEYS) == 0


@pytest.mark.parametrize("position", [0, 1, 31, 32, 2048, BLOCK_BYTES - 1])
def test_one_changed_bit_anywhere_is_noticed(content, blocks, position):
    blocks[3, position] ^= 1
    assert content.wrong(blocks, KEYS) == 1


def test_blocks_under_each_others_keys_are_noticed(content, blocks):
    assert content.wrong(blocks[::-1].copy(), KEYS) == len(KEYS) - 1  # the middle one stayed where it was


@pytest.mark.parametrize("cut", [8, 32, 2048, BLOCK_BYTES - 8])
def test_a_torn_block_is_noticed(content, blocks, cut):
    blocks[0, cut:] = blocks[1, cut:]
    assert content.wrong(blocks, KEYS) == 1


@pytest.mark.parametrize("shift", [1, 8, 32, 64, 2048])
def test_a_block_at_a_shifted_place_is_noticed(content, blocks, shift):
    shifted = np.roll(blocks, shift, axis=1)
    assert content.wrong(shifted, KEYS) == len(KEYS)


def test_zeros_are_noticed(content):
    assert content.wrong(content.scratch(len(KEYS)), KEYS) == len(KEYS)


def test_every_byte_depends_on_key_and_position(content, blocks):
    assert (blocks[0] != blocks[1]).mean() > 0.9  # a byte of two random keys is equal once in 256
    assert len(np.unique(blocks[0].view(np.uint64))) == BLOCK_BYTES // 8


@pytest.mark.parametrize("size", [0, -32, 16, 100])
def test_a_size_that_keys_do_not_divide_is_refused(size):
    with pytest.raises(ValueError, match="multiple of 32"):
        Content(size)
