"""A message as bytes: a body, and large buffers that are copied beside it without being serialised.

A payload without buffers is the body. With buffers it is their lengths (a word each), the body, and each buffer at an
aligned offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from dataplane.ipc.queue.errors import CorruptMessage
from dataplane.ipc.queue.layout import ALIGNMENT, WORD, align


class Payload(NamedTuple):
    """A message as a codec makes it."""

    body: bytes
    buffers: Sequence[memoryview] = ()
    """Contiguous buffers of bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes of the payload."""
        body = len(self.body)
        if not self.buffers:
            return body
        return align(WORD * len(self.buffers) + body) + sum(align(buffer.nbytes) for buffer in self.buffers)

    def write(self, target: memoryview) -> None:
        """Copy the payload to memory of `nbytes` bytes."""
        body = len(self.body)
        if not self.buffers:
            target[:body] = self.body
            return
        at = WORD * len(self.buffers)
        target[:at] = b"".join(buffer.nbytes.to_bytes(WORD, "little") for buffer in self.buffers)
        target[at : at + body] = self.body
        at = align(at + body)
        for buffer in self.buffers:
            target[at : at + buffer.nbytes] = buffer
            at += align(buffer.nbytes)


def parse(source: memoryview, count: int, body: int) -> tuple[memoryview, list[memoryview]]:
    """Return the body and the `count` buffers of a payload, as views. Raises CorruptMessage."""
    if not count:
        if body > source.nbytes:
            raise CorruptMessage(f"a body of {body} bytes in a payload of {source.nbytes}")
        return source[:body], []
    at = WORD * count
    lengths = [int.from_bytes(source[i : i + WORD], "little") for i in range(0, at, WORD)]
    if align(at + body) + sum(map(align, lengths)) > source.nbytes or max(lengths) > source.nbytes:
        raise CorruptMessage(f"{count} buffers and a body of {body} bytes in a payload of {source.nbytes}")
    content = source[at : at + body]
    at = align(at + body)
    buffers = []
    for length in lengths:
        buffers.append(source[at : at + length])
        at += align(length)
    return content, buffers


def checksum(source: memoryview) -> int:
    """Return the xxh3-64 of a payload."""
    return xxhash.xxh3_64_intdigest(source)


assert ALIGNMENT % WORD == 0
