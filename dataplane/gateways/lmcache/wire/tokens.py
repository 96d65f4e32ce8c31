"""Tokens of keys: convert both forms in which clients send them to the bytes from which chunk keys are computed."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np

from dataplane.gateways.lmcache.wire.messages import TOKEN_BYTES, Key
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS, TokenError, token_bytes

CHUNK_TOKENS = DEFAULT_CHUNK_TOKENS
MAX_HEADER_BYTES = 5

_decode = msgspec.msgpack.Decoder(list[int]).decode
_LONGEST_SHORT = 15


class TokenArray(NamedTuple):
    """Token ids as received."""

    fixed: bool
    """True for u32 big-endian, False for the elements of a MessagePack array without its header."""
    length: int
    """Number of tokens."""
    body: bytes

    def after(self, count: int, nbytes: int) -> TokenArray:
        """Return the tokens after the first `count`, which take `nbytes` of the body."""
        return TokenArray(self.fixed, self.length - count, self.body[nbytes:])

    def decode(self) -> bytes:
        """Return the tokens as u32 little-endian. Raise TokenError if one is invalid."""
        if self.fixed:
            return np.frombuffer(self.body, ">u4").astype("<u4").tobytes()
        return decode(self.body, self.length)

    def encoded_bytes(self, data: bytes) -> int:
        """Return the bytes that tokens (u32 little-endian) take in this form, if each has its shortest encoding."""
        if self.fixed:
            return len(data)
        ids = np.frombuffer(data, "<u4")
        return len(ids) + sum(int(np.count_nonzero(ids >= limit)) * extra_bytes for limit, extra_bytes in _WIDER)


def array_of(key: Key) -> TokenArray:
    """Return the tokens of a key. Raise TokenError if `token_ids` is not an array."""
    if key.token_bytes is not None:
        return TokenArray(True, len(key.token_bytes) // TOKEN_BYTES, key.token_bytes)
    data = bytes(key.token_ids)
    count, first = header(data)
    return TokenArray(False, count, data[first:])


def header(data: bytes, at: int = 0) -> tuple[int, int]:
    """Return the number of elements of the array at `at`, and the offset of the first one.

    Raise TokenError on failure.
    """
    head = data[at : at + MAX_HEADER_BYTES]
    first = head[0] if head else 0
    if 0x90 <= first <= 0x9F:
        return first & _LONGEST_SHORT, at + 1
    if first == 0xDC and len(head) >= 3:
        return int.from_bytes(head[1:3], "big"), at + 3
    if first == 0xDD and len(head) == MAX_HEADER_BYTES:
        return int.from_bytes(head[1:5], "big"), at + MAX_HEADER_BYTES
    raise TokenError("expected an array of token ids")


def decode(body: bytes, count: int) -> bytes:
    """Return the elements of an array, without its header, as u32 little-endian. Raise TokenError if one is invalid.

    Arrays whose elements all have the same encoded size, as with token ids of 256 to 65,535, are converted without a
    Python object for each element.
    """
    even = _even(body, count)
    if even is not None:
        return even
    try:
        tokens = _decode(_head(count) + body)
    except (msgspec.DecodeError, ValueError, RecursionError, OverflowError) as error:
        raise TokenError(f"expected token ids from 0 to 4294967295: {error}") from None
    return token_bytes(tokens)


def _even(body: bytes, count: int) -> bytes | None:
    """Return the converted elements if all have the same encoded size, else None."""
    width, remainder = divmod(len(body), count) if count else (0, 1)
    if remainder or width not in (1, 2, 3, 5):
        return None
    rows = np.frombuffer(body, np.uint8).reshape(count, width)
    if width == 1:
        return rows[:, 0].astype("<u4").tobytes() if (rows < 0x80).all() else None
    if not (rows[:, 0] == _MARKS[width]).all():
        return None
    numbers = np.ascontiguousarray(rows[:, 1:]).view(f">u{width - 1}")
    return numbers[:, 0].astype("<u4").tobytes()


_WIDER = ((0x80, 1), (0x100, 1), (0x10000, 2))
"""Pairs of a limit and the additional bytes of an array's element that is at least as large."""
_MARKS = {2: 0xCC, 3: 0xCD, 5: 0xCE}
"""Type byte of a MessagePack u8, u16 and u32, by encoded size including the type byte."""


def _head(count: int) -> bytes:
    if count <= _LONGEST_SHORT:
        return bytes((0x90 | count,))
    return b"\xdd" + count.to_bytes(4, "big")
