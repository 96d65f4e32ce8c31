"""Bytes that are unique to their key: cheap to generate, and cheap to check in full.

Word j (64 bits, little-endian) of the block with key k is `base[j] ^ k[j % 4]`, where `base` is a fixed pseudorandom
pattern without repetition. A torn block mixes two keys, and a misplaced block is out of step with the pattern: both
fail the check. All bytes are checked.
"""

import numpy as np
import numpy.typing as npt

from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import U64

VERSION = 1
"""Part of the replay's space, so that blocks with another pattern are never found."""

Bytes = npt.NDArray[np.uint8]

_KEY_WORDS = KEY_BYTES // 8


class Content:
    """Content of blocks of one size, in batches that fit a scratch buffer of the same shape."""

    def __init__(self, block_bytes: int) -> None:
        """Create the pattern. Raise ValueError unless `block_bytes` is a positive multiple of 32."""
        if block_bytes < KEY_BYTES or block_bytes % KEY_BYTES:
            raise ValueError(f"expected a positive multiple of {KEY_BYTES} bytes, got {block_bytes}")
        self.block_bytes = block_bytes
        self._base = _pattern(block_bytes // 8).reshape(1, -1, _KEY_WORDS)

    def scratch(self, blocks: int) -> Bytes:
        """Return a buffer of `blocks` rows of one block each."""
        return np.zeros((blocks, self.block_bytes), np.uint8)

    def fill(self, out: Bytes, keys: U64) -> None:
        """Write the content of `keys` [n, 4] to the rows of `out` [n, block_bytes]."""
        np.bitwise_xor(self._base, keys[:, None, :], out=self._words(out))

    def wrong(self, blocks: Bytes, keys: U64) -> int:
        """Return the number of rows of `blocks` [n, block_bytes] that are wrong for their key. Overwrites `blocks`."""
        words = self._words(blocks)
        np.bitwise_xor(words, keys[:, None, :], out=words)
        return int(np.count_nonzero((words != self._base).any(axis=(1, 2))))

    def _words(self, rows: Bytes) -> U64:
        return rows.view(np.uint64).reshape(len(rows), -1, _KEY_WORDS)


def _pattern(words: int) -> U64:
    """Return SplitMix64 of 1 to `words`: a bijection, so no word is repeated."""
    values = np.arange(1, words + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
