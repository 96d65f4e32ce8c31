"""Memory that fails: bytes change under a running data plane, as hardware or a stray pointer would change them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from dataplane.client import Client
from dataplane.protocol.layout import (
    COLD_CHECKSUM,
    H_ADOPTED_NS,
    HOT_CONTROL,
    HOT_OFFSET,
    HOT_SPACE_SEGMENT,
    pack_keys,
)
from tests.dataplane.plane import Plane, wait_for


@contextmanager
def memory_fd(plane: Plane, name: str) -> Iterator[int]:
    """A read-write descriptor of one of the data plane's memory files. A supervisor gets them a moment later."""
    paths: list[str] = []

    def found() -> bool:
        paths[:] = _memory(plane.pid, name)
        return bool(paths)

    wait_for(found, f"the data plane has memory {name}")
    fd = os.open(paths[0], os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


def _memory(pid: int, name: str) -> list[str]:
    folder = f"/proc/{pid}/fd"
    found = []
    for number in os.listdir(folder):
        with suppress(FileNotFoundError):  # closed meanwhile
            if os.readlink(f"{folder}/{number}").startswith(f"/memfd:{name} "):
                found.append(f"{folder}/{number}")
    return found


def row_of(client: Client, key: bytes, space: int = 0) -> tuple[int, int, int, int]:
    """(descriptor, control word, segment, offset) of a block."""
    world = client._link.world
    assert world is not None
    numbers, control = world.index.find(pack_keys([key]), world.spaces[space])
    number = int(numbers[0])
    assert number >= 0, "the block is there"
    row = world.index.hot[number]
    assert int(control[0]) == int(row[HOT_CONTROL])
    return number, int(control[0]), int(row[HOT_SPACE_SEGMENT]) >> 32, int(row[HOT_OFFSET])


def checksum_in_index(client: Client, key: bytes) -> bytes:
    """What the index says of a block's bytes."""
    world = client._link.world
    assert world is not None
    words = world.index.cold[row_of(client, key)[0], COLD_CHECKSUM : COLD_CHECKSUM + 2]
    return words.tobytes()


def flip(plane: Plane, client: Client, key: bytes, at: int = 0, space: int = 0) -> None:
    """Change one bit of a block's bytes."""
    _, _, segment, offset = row_of(client, key, space)
    with memory_fd(plane, f"larder-segment-{segment}") as fd:
        byte = os.pread(fd, 1, offset + at)
        os.pwrite(fd, bytes([byte[0] ^ 0x10]), offset + at)


def say_adopted(plane: Plane, at_ns: int) -> None:
    """Make the index say that its blocks lived through a crash at a time."""
    with memory_fd(plane, "larder-index") as fd:
        os.pwrite(fd, at_ns.to_bytes(8, "little"), 8 * H_ADOPTED_NS)
