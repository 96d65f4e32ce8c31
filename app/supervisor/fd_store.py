"""Duplicate file descriptors of a data plane's memory, kept so that the memory outlives the process.

A data plane sends `MemoryHeld` with descriptors whenever it gets memory, and names the memory that it frees. Messages
that are still in the socket when it dies are read as well. An open descriptor keeps the memory alive; this module never
maps or reads it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress

from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.engine import (
    MAX_DATAGRAM_BYTES,
    MAX_FDS_PER_DATAGRAM,
    VERSION,
    EngineReply,
    HeldMemory,
    Hold,
    MemoryHeld,
    Refused,
    Serving,
)
from dataplane.protocol.layout import H_CLOSED

Key = tuple[str, int]
"""Kind and number of a piece of memory."""

_decoder = decoder(EngineReply)


class FdStore:
    """Memory file descriptors by kind and number."""

    def __init__(self) -> None:
        self._fds: dict[Key, int] = {}
        self._sizes: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._fds)

    @property
    def released(self) -> bool:
        """Whether the data plane marked its memory as released when it stopped."""
        fd = self._fds.get(("index", 0))
        return fd is not None and any(os.pread(fd, 8, 8 * H_CLOSED))

    def fd(self, key: Key) -> int:
        """Return the descriptor of one piece of memory, which the store continues to own. Raise KeyError."""
        return self._fds[key]

    def put(self, key: Key, fd: int, nbytes: int) -> None:
        """Take ownership of a descriptor, and close the one that it replaces."""
        self.drop(key)
        self._fds[key], self._sizes[key] = fd, nbytes

    def drop(self, key: Key) -> None:
        fd = self._fds.pop(key, None)
        if fd is not None:
            os.close(fd)
            del self._sizes[key]

    def clear(self) -> None:
        for key in list(self._fds):
            self.drop(key)

    def same_memory(self, other: FdStore) -> bool:
        """Return whether both have the same index memory: then the later data plane took it over."""
        mine, others = self._fds.get(("index", 0)), other._fds.get(("index", 0))
        if mine is None or others is None:
            return False
        return os.path.samestat(os.fstat(mine), os.fstat(others))

    def move_to(self, other: FdStore) -> None:
        """Move all descriptors to another store."""
        for key, fd in self._fds.items():
            other.put(key, fd, self._sizes[key])
        self._fds.clear()
        self._sizes.clear()

    def messages(self) -> Iterator[tuple[bytes, list[int]]]:
        """Yield the messages that hand all memory to a new process. A datagram that is not full ends the list."""
        keys = list(self._fds)
        for first in range(0, len(keys) + 1, MAX_FDS_PER_DATAGRAM):
            part = keys[first : first + MAX_FDS_PER_DATAGRAM]
            memory = [HeldMemory(kind, number, self._sizes[kind, number]) for kind, number in part]
            yield encode(MemoryHeld(0, 0, memory)), [self._fds[key] for key in part]


class FdReceiver:
    """One connection that receives memory. `read` never waits."""

    def __init__(self, connection: socket.socket, store: FdStore) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.ready = False
        """Whether any message has arrived: a waiting process has then imported all its modules."""
        self.messages_received = 0
        """Number of messages about memory, including those that list none."""
        self.complete = False
        """Whether the list of all memory is complete."""
        self._announced = False
        self._asked = False
        self.refused: Refused | None = None
        """Why an adopted data plane does not send its memory, or why one that was started ends."""
        self.store = store
        """All memory of the data plane that runs now or ran last."""
        self._fresh = FdStore()
        """Memory that arrived before the list was complete."""

    def ask(self) -> None:
        """Ask an adopted data plane, on its engine socket, to send its memory. Raise OSError."""
        self.connection.send(encode(Hold(1, VERSION)))
        self._asked = True

    @property
    def serves(self) -> bool:
        """Whether the data plane serves: it announced that, or has answered on its engine socket."""
        return self.complete and (self._announced or self._asked)

    def read(self) -> bool:
        """Process all messages in the socket. Return False if the other end is closed and everything has been read."""
        while True:
            try:
                data, fds = self._receive()
            except BlockingIOError:
                return True
            except OSError:
                data, fds = b"", []
            if not data:
                self.settle()
                return False
            try:
                self._take(decode(_decoder, data), fds)
            except ProtocolError:
                _close(fds)

    def _receive(self) -> tuple[bytes, list[int]]:
        flags = socket.MSG_CMSG_CLOEXEC
        try:
            data, fds, _, _ = socket.recv_fds(
                self.connection, MAX_DATAGRAM_BYTES, MAX_FDS_PER_DATAGRAM, flags
            )
        except ConnectionResetError:  # reported once, before the last datagrams
            data, fds, _, _ = socket.recv_fds(
                self.connection, MAX_DATAGRAM_BYTES, MAX_FDS_PER_DATAGRAM, flags
            )
        return data, fds

    def _take(self, reply: EngineReply, fds: list[int]) -> None:
        if isinstance(reply, Refused):
            self.refused = reply
        elif isinstance(reply, Serving):
            self._announced = True
        if not isinstance(reply, MemoryHeld) or len(reply.memory) != len(fds):
            _close(fds)
            return
        self.ready = True
        self.messages_received += 1
        into = self.store if self.complete else self._fresh
        for each, fd in zip(reply.memory, fds, strict=True):
            into.put((each.kind, each.number), fd, each.nbytes)
        for each in reply.dropped:
            into.drop((each.kind, each.number))
        if reply.id and len(reply.memory) < MAX_FDS_PER_DATAGRAM:
            self.complete = True
            self.store.clear()
            self._fresh.move_to(self.store)

    def settle(self) -> None:
        """Handle the end of the data plane, perhaps before its list was complete: keep matching memory."""
        if not len(self._fresh):
            return
        if not self._fresh.same_memory(self.store):
            self.store.clear()  # memory of a cold start replaces the kept memory
        self._fresh.move_to(self.store)

    def close(self) -> None:
        with suppress(OSError):
            self.connection.close()
        self._fresh.clear()


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
