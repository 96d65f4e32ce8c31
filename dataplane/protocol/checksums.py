"""A block's checksum: xxh3-128 of its bytes, 16 bytes, never all zero.

It says that bytes are as they were written, against hardware, a stray pointer or a mapping that is not what it seems.
It is no identity and no signature: whoever can write a block can forge it. All zero means that a block has none.
"""

from typing import Any

import xxhash

NONE = bytes(16)
_INSTEAD_OF_NONE = b"\x01" + bytes(15)

Bytes = Any
"""Anything with a contiguous buffer: bytes, memoryview, numpy array."""


def checksum(data: Bytes) -> bytes:
    """The checksum of bytes in one piece. Does not hold the interpreter's lock while it reads large ones."""
    return _never_none(xxhash.xxh3_128_digest(data))


class Checksum:
    """The checksum of bytes that come piece by piece."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def update(self, data: Bytes) -> None:
        self._state.update(data)

    def digest(self) -> bytes:
        """Of all pieces so far; the same as `checksum` of them joined."""
        return _never_none(self._state.digest())


def _never_none(digest: bytes) -> bytes:
    return digest if digest != NONE else _INSTEAD_OF_NONE
