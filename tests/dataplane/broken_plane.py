"""A data plane that answers whatever a test says: memory of its own, and one function for all but the attach."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from dataplane.client import Client
from dataplane.protocol import engine as wire
from dataplane.protocol.codec import encode
from dataplane.protocol.layout import (
    DEFAULT_RING_ENTRIES,
    HOT_CONTROL,
    HOT_KEY,
    HOT_NBYTES,
    HOT_OFFSET,
    HOT_SPACE_SEGMENT,
    AreaMemory,
    IndexMemory,
    area_bytes,
    index_bytes,
    pack_keys,
)
from dataplane.protocol.states import State
from tests.threads import join

SEGMENT = 1 << 16
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
SPACE = 1
Answer = tuple[Any, list[int]]


def memory(nbytes: int, seals: int = SEALS, name: str = "broken-segment") -> int:
    """A memory fd."""
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


@dataclass
class BrokenPlane:
    """Serves in threads until it is closed. `answer` gets each request after the attach; None answers nothing."""

    folder: Path
    answer: Callable[[Any], Answer | bytes | None] = lambda request: None
    spaces: list[int] = field(default_factory=lambda: [SPACE])
    max_blocks: int = 64
    area_blocks: int = 64
    ring_entries: int = DEFAULT_RING_ENTRIES
    membarrier: bool = True
    seals: int = SEALS
    attach_fds: Callable[[BrokenPlane], list[int]] | None = None
    flood: bytes = b""
    """Sent for ever after the first request, instead of answers."""
    requests: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.socket = str(self.folder / "broken.sock")
        self.index_fd = memory(index_bytes(self.max_blocks), self.seals, "broken-index")
        self.area_fd = memory(area_bytes(self.max_blocks), self.seals, "broken-area")
        self.index = IndexMemory(memoryview(mmap.mmap(self.index_fd, 0)), self.max_blocks)
        self.index.format(5, 1)
        self.area = AreaMemory(
            memoryview(mmap.mmap(self.area_fd, 0)), self.area_blocks, min(self.ring_entries, DEFAULT_RING_ENTRIES)
        )
        self.area.format()
        self.area.header[3] = self.ring_entries
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.socket)
        self._listener.listen(64)
        self._accepting = threading.Thread(target=self._accept, name="broken-plane", daemon=True)
        self._accepting.start()

    def publish(self, key: bytes, *, segment: int = 1, offset: int = 0, nbytes: int = 4096, at: int = 3) -> None:
        """A READY block; its entry names descriptor `at`, its row is the last one when `at` is beyond the index."""
        words = pack_keys([key])
        buckets, tags = self.index.buckets_and_tags(words, SPACE)
        row = self.index.hot[min(at, self.max_blocks - 1)]
        row[HOT_KEY : HOT_KEY + 4] = words[0]
        row[HOT_SPACE_SEGMENT] = np.uint64(SPACE | segment << 32)
        row[HOT_OFFSET], row[HOT_NBYTES] = np.uint64(offset), np.uint64(nbytes)
        row[HOT_CONTROL] = np.uint64(State.READY)
        self.index.entries[int(buckets[0, 0]), 0] = np.uint64(int(tags[0]) << 32 | (at + 1))

    def close(self) -> None:
        # Shut down first: `close` alone wakes no thread that waits in `accept` or `recv`.
        self._listener.shutdown(socket.SHUT_RDWR)
        join(self._accepting)  # what it accepted last is in the list, too
        for each in [self._listener, *self._open]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        os.close(self.index_fd)
        os.close(self.area_fd)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            while data := connection.recv(1 << 18):
                request = msgspec.msgpack.decode(data, type=wire.EngineRequest)
                self.requests.append(request)
                if isinstance(request, wire.Attach):
                    fds = self.attach_fds(self) if self.attach_fds else [self.index_fd, self.area_fd]
                    attached = wire.Attached(request.id, 1, "broken", 5, self.spaces, self.membarrier, 30.0)
                    socket.send_fds(connection, [encode(attached)], fds)
                    continue
                while self.flood:
                    connection.send(self.flood)
                answer = self.answer(request)
                if isinstance(answer, bytes):
                    connection.send(answer)
                elif answer is not None:
                    message, fds = answer
                    socket.send_fds(connection, [encode(message)], fds)
                    for fd in fds:
                        os.close(fd)


def use(client: Client, keys: list[bytes], nbytes: int = 4096) -> None:
    """Do all that an engine does."""
    client.lookup(keys)
    with client.acquire(keys) as lease:
        for at in range(len(lease)):
            bytes(lease.view(at))
        lease.copy_to(bytearray(sum(lease.nbytes(at) for at in range(len(lease)))))
    with client.reserve(keys, nbytes) as reservation:
        for at in reservation.writable:
            reservation.view(at)[:] = b"x" * nbytes
        reservation.copy_from(b"y" * nbytes * len(keys))
        reservation.commit()
