"""Duplicates of a data plane's memory, kept so that it outlives its process.

A data plane says `Held` with fds whenever memory comes, and names what it gives back. What lies in the socket when it
dies is still read. Keeping an fd keeps the memory; nothing here maps or reads it.
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
    Held,
    HeldMemory,
    Hold,
    Refused,
)

Key = tuple[str, int]
"""Kind and number."""

_decoder = decoder(EngineReply)


class Kept:
    """Memory fds by kind and number."""

    def __init__(self) -> None:
        self._fds: dict[Key, int] = {}
        self._sizes: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._fds)

    def fd(self, key: Key) -> int:
        """The fd of one memory, which stays ours. Raises KeyError."""
        return self._fds[key]

    def put(self, key: Key, fd: int, nbytes: int) -> None:
        """Own an fd, in place of the one before."""
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

    def same_memory(self, other: Kept) -> bool:
        """Whether both are of one index memory: the later data plane went on with that of the earlier."""
        mine, others = self._fds.get(("index", 0)), other._fds.get(("index", 0))
        if mine is None or others is None:
            return False
        return os.path.samestat(os.fstat(mine), os.fstat(others))

    def move_to(self, other: Kept) -> None:
        """Give everything away."""
        for key, fd in self._fds.items():
            other.put(key, fd, self._sizes[key])
        self._fds.clear()
        self._sizes.clear()

    def messages(self) -> Iterator[tuple[bytes, list[int]]]:
        """What hands all of it to a new process; a datagram with fewer fds than fit ends the list."""
        keys = list(self._fds)
        for first in range(0, len(keys) + 1, MAX_FDS_PER_DATAGRAM):
            part = keys[first : first + MAX_FDS_PER_DATAGRAM]
            memory = [HeldMemory(kind, number, self._sizes[kind, number]) for kind, number in part]
            yield encode(Held(0, 0, memory)), [self._fds[key] for key in part]


class Holder:
    """One connection that brings memory. `read` never waits."""

    def __init__(self, connection: socket.socket, kept: Kept) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.ready = False
        """It said something: a process that waits has everything imported."""
        self.heard = 0
        """How often it said something of its memory, also that there is none."""
        self.complete = False
        """The list of all memory came to its end: the data plane serves."""
        self.refused: Refused | None = None
        self._kept = kept
        """What the holder is for: all memory of the data plane that lives, or lived last."""
        self._fresh = Kept()
        """What came before the list was complete."""

    def ask(self) -> None:
        """Ask a data plane that was met on its engine socket. Raises OSError."""
        self.connection.send(encode(Hold(1, VERSION)))

    def read(self) -> bool:
        """Take in what lies in the socket; False when the other end is gone and everything was read."""
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
        except ConnectionResetError:  # said once, ahead of the last words
            data, fds, _, _ = socket.recv_fds(
                self.connection, MAX_DATAGRAM_BYTES, MAX_FDS_PER_DATAGRAM, flags
            )
        return data, fds

    def _take(self, said: EngineReply, fds: list[int]) -> None:
        if isinstance(said, Refused):
            self.refused = said
        if not isinstance(said, Held) or len(said.memory) != len(fds):
            _close(fds)
            return
        self.ready = True
        self.heard += 1
        into = self._kept if self.complete else self._fresh
        for each, fd in zip(said.memory, fds, strict=True):
            into.put((each.kind, each.number), fd, each.nbytes)
        for each in said.dropped:
            into.drop((each.kind, each.number))
        if said.id and len(said.memory) < MAX_FDS_PER_DATAGRAM:
            self.complete = True
            self._kept.clear()
            self._fresh.move_to(self._kept)

    def settle(self) -> None:
        """The data plane is gone, perhaps before it had said everything: what belongs together is kept."""
        if not len(self._fresh):
            return
        if not self._fresh.same_memory(self._kept):
            self._kept.clear()  # a cold start's memory took the place of what was kept
        self._fresh.move_to(self._kept)

    def close(self) -> None:
        with suppress(OSError):
            self.connection.close()
        self._fresh.clear()


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
