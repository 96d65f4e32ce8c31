"""Memory that fails: bytes change under a running data plane, as hardware or a stray pointer would change them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from dataplane.client import Client
from dataplane.holding import requests
from dataplane.holding.messages import close_all
from dataplane.protocol.layout import COLD_CHECKSUM, H_ADOPTED_NS, HOT_CONTROL, HOT_OFFSET, HOT_SPACE_SEGMENT, pack_keys
from tests.dataplane.plane import Plane, wait_for


@contextmanager
def memory_fd(plane: Plane, kind: str, number: int = 0) -> Iterator[int]:
    """A read-write descriptor of one of the data plane's memory files. Its holder gets them a moment later."""
    files: dict[tuple[str, int], int] = {}

    def found() -> bool:
        close_all(list(files.values()))
        files.clear()
        files.update({(kind, number): fd for kind, number, fd in requests.peek(plane.folder)})
        return (kind, number) in files

    wait_for(found, f"the holder has {kind} {number}")
    try:
        yield files[kind, number]
    finally:
        close_all(list(files.values()))


def row_of(client: Client, key: bytes, space: int = 0) -> tuple[int, int, int, int]:
    """(descriptor, control word, segment, offset) of a block."""
    attachment = client._memory.current
    assert attachment is not None
    numbers, control = attachment.index.find(pack_keys([key]), attachment.spaces[space])
    number = int(numbers[0])
    assert number >= 0, "the block is there"
    row = attachment.index.hot[number]
    assert int(control[0]) == int(row[HOT_CONTROL])
    return number, int(control[0]), int(row[HOT_SPACE_SEGMENT]) >> 32, int(row[HOT_OFFSET])


def checksum_in_index(client: Client, key: bytes) -> bytes:
    """What the index says of a block's bytes."""
    attachment = client._memory.current
    assert attachment is not None
    words = attachment.index.cold[row_of(client, key)[0], COLD_CHECKSUM : COLD_CHECKSUM + 2]
    return words.tobytes()


def flip(plane: Plane, client: Client, key: bytes, at: int = 0, space: int = 0) -> None:
    """Change one bit of a block's bytes."""
    _, _, segment, offset = row_of(client, key, space)
    with memory_fd(plane, "segment", segment) as fd:
        byte = os.pread(fd, 1, offset + at)
        os.pwrite(fd, bytes([byte[0] ^ 0x10]), offset + at)


def say_adopted(plane: Plane, at_ns: int) -> None:
    """Make the index say that its blocks lived through a crash at a time."""
    with memory_fd(plane, "index") as fd:
        os.pwrite(fd, at_ns.to_bytes(8, "little"), 8 * H_ADOPTED_NS)
