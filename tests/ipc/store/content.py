"""Arrays whose bytes follow from their key, so that a reader knows whether any of them is wrong."""

import hashlib

import numpy as np
import numpy.typing as npt


def content(key: str, words: int) -> npt.NDArray[np.uint64]:
    """Return an array [words] that depends on the key in every element."""
    seed = np.uint64(int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "little"))
    return np.arange(words, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + seed


def is_whole(key: str, array: npt.NDArray[np.uint64]) -> bool:
    """Return whether an array is the content of its key."""
    return bool((array == content(key, len(array))).all())
