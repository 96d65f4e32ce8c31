"""Block checksums: the xxh3-128 of a block's bytes, 16 bytes, never all zero.

A checksum detects bytes that changed since they were written: a hardware error, a stray pointer, or a wrong mapping. It
is neither an identity nor a signature: anyone who can write a block can forge it. All zero means that the block has no
checksum.
"""

from typing import Any

import xxhash

NONE = bytes(16)
_INSTEAD_OF_NONE = b"\x01" + bytes(15)

Bytes = Any
"""Any object with a contiguous buffer: bytes, memoryview, numpy array."""


def checksum(data: Bytes) -> bytes:
    """Return the checksum of contiguous bytes. Releases the GIL while it reads large buffers."""
    return _never_none(xxhash.xxh3_128_digest(data))


class Checksum:
    """Incremental checksum of bytes that arrive in pieces."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def update(self, data: Bytes) -> None:
        self._state.update(data)

    def digest(self) -> bytes:
        """Return the checksum of all pieces so far, equal to `checksum` of their concatenation."""
        return _never_none(self._state.digest())


def _never_none(digest: bytes) -> bytes:
    return digest if digest != NONE else _INSTEAD_OF_NONE
