"""Framing of requests and answers.

    request    [uid] [operation] [argument] ...      one MessagePack value per frame
    answer     [uid] [operation] [result]            uid and operation of the request; no result frame for None

An operation is a number or its name.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

MAX_HEAD_BYTES = 1024
"""Maximum bytes of a uid, and of an operation."""
MAX_REQUEST_FRAMES = 16
"""Maximum number of frames that are read; no request has that many."""


class RawRequest(NamedTuple):
    """The frames of one request before decoding."""

    uid: bytes
    operation: bytes
    arguments: list[bytes]

    def answer(self, result: bytes | None) -> list[bytes]:
        """Return the frames of the answer."""
        if result is None:
            return [self.uid, self.operation]
        return [self.uid, self.operation, result]


def split(frames: list[bytes]) -> RawRequest | None:
    """Return the request in the frames of a message, which has at least one frame.

    Return None for a message that wants no answer: one about a stream, which this node does not have, or one with an
    invalid uid or operation.
    """
    if len(frames[0]) > MAX_HEAD_BYTES:
        return None  # the answer would repeat it
    if len(frames) == 1:
        return RawRequest(frames[0], b"", [])
    if not frames[1] or len(frames[1]) > MAX_HEAD_BYTES:
        return None
    return RawRequest(frames[0], frames[1], frames[2:])


def number_or_name(operation: bytes) -> int | str | None:
    """Return the number or name in an operation frame; None if the frame contains neither."""
    if len(operation) == 1 and operation[0] < 0x80:  # the usual case
        return operation[0]
    try:
        value: object = msgspec.msgpack.decode(operation)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return value
