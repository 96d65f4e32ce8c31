"""Real data planes with their gateway on, and clients that map its memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataplane.protocol.stats.gateways import GatewayStats
from dataplane.protocol.stats.node import NodeStats
from tests.dataplane.plane import Plane, wait_for
from tests.dataplane.recovery.support.harness import Supervised, supervised
from tests.free_port import free_port
from tests.lmcache.client import Client

FOLDER = Path("/dev/shm")


def url_of(plane: Plane) -> str:
    return f"tcp://127.0.0.1:{plane.settings['lmcache_port']}"


@contextmanager
def gateway_plane(folder: Path, **settings: str) -> Iterator[Plane]:
    """A data plane that serves LMCache clients."""
    plane = Plane(folder, {"lmcache_port": str(free_port()), **settings})
    try:
        yield plane.start()
    finally:
        plane.kill()


@contextmanager
def supervised_gateway(folder: Path, **settings: str) -> Iterator[Supervised]:
    """The same under a supervisor, which starts it again when it is killed."""
    with supervised(folder, lmcache_port=str(free_port()), **settings) as plane:
        yield plane


def wait_for_standby(plane: Supervised) -> None:
    """Wait until a standby waits. The data plane has then taken what it answered off the connections: the next one
    answers the other requests alone."""
    wait_for(plane.standby_waits, "a standby waits", 60)
    plane.describe()


def gateway_stats(plane: Plane) -> GatewayStats:
    stats = plane.describe().gateway
    assert stats is not None
    return stats


def leased(stats: NodeStats) -> int:
    return sum(engine.leased_blocks for engine in stats.engines)


@dataclass
class Segment:
    """The named segment as a client maps it: whole, and read-write."""

    name: str
    memory: mmap.mmap

    @classmethod
    def open(cls, name: str, size: int) -> Segment:
        fd = os.open(FOLDER / name, os.O_RDWR)
        try:
            assert os.fstat(fd).st_mode & 0o777 == 0o600
            return cls(name, mmap.mmap(fd, size))
        finally:
            os.close(fd)

    def read(self, slot: dict[str, Any]) -> bytes:
        return self.memory[slot["offset"] : slot["offset"] + slot["length"]]

    def write(self, slot: dict[str, Any], data: bytes) -> None:
        self.memory[slot["offset"] : slot["offset"] + slot["length"]] = data

    def close(self) -> None:
        self.memory.close()


@contextmanager
def mapped(answer: dict[str, Any]) -> Iterator[Segment]:
    """What a registration was answered with, mapped."""
    segment = Segment.open(answer["shm_name"], answer["pool_size"])
    try:
        yield segment
    finally:
        segment.close()


def content(name: int, chunk: int, nbytes: int) -> bytes:
    """Bytes that follow from a prompt's name and the chunk's number."""
    unit = b"%d:%d;" % (name, chunk)
    return (unit * (nbytes // len(unit) + 1))[:nbytes]


def store(client: Client, segment: Segment, tokens: list[int], name: int, request: str, **fields: Any) -> bool:
    """Prepare, write what is missing, commit."""
    answer = client.prepare_store(tokens, request, **fields)
    if "slots" not in answer:
        return client.commit_store(tokens, request, **fields)
    for slot, chunk in zip(answer["slots"], answer["chunk_indices"], strict=True):
        segment.write(slot, content(name, chunk, slot["length"]))
    return not answer["slots"] or client.commit_store(tokens, request, **fields)


def check(client: Client, segment: Segment, tokens: list[int], name: int, request: str, **fields: Any) -> bool:
    """Retrieve all chunks: True when each has the bytes that were written, False when they are not there."""
    answer = client.prepare_retrieve(tokens, request, **fields)
    if not answer["success"]:
        return False
    for chunk, slot in enumerate(answer["context"]["slots"]):
        assert segment.read(slot) == content(name, chunk, slot["length"])
    released = client.commit_retrieve(tokens, request, **fields)
    # A commit that the killed data plane carried out without answering is put to the next one, which has none to end.
    assert released is True or client.answered_twice
    return True


__all__ = ["wait_for"]
