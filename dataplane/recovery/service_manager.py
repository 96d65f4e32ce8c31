"""systemd as holder of the memory: its file descriptor store, and the state of the service (`sd_notify`).

A data plane without a supervisor sends a duplicate of each descriptor that holders get to the socket that NOTIFY_SOCKET
names; systemd keeps up to `FileDescriptorStoreMax=` of them. After `kill -9` or a crash, the next process of the unit
gets them from descriptor 3 on (LISTEN_FDS), with names `KIND-NUMBER` (LISTEN_FDNAMES).

The store has the memory only while the data plane serves: an orderly stop hands the memory to the keeper, or releases
it, and removes every name. When both a keeper and the store have memory, the process was killed during its stop: the
keeper's memory is used, and the store's duplicates are dropped.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import time
from array import array
from collections import deque
from collections.abc import Iterable, MutableMapping
from contextlib import suppress
from typing import Protocol

import structlog

from dataplane.memory.inherited import NAMED, NEEDED
from dataplane.protocol.engine import SOCKETS

RETRY_S = 0.1
"""Interval of attempts to send messages that systemd has not accepted yet."""
END_S = 1.0
"""Time for systemd to accept the last messages of a data plane that stops."""
RETRY_PAUSE_S = 0.01
KINDS = frozenset((*(kind for kind, _ in NEEDED), NAMED, "segment", "area", *SOCKETS))
_VARIABLES = ("NOTIFY_SOCKET", "FDSTORE", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES")
_FIRST_FD = 3
_NAME = re.compile(r"([a-z]+)-(0|[1-9][0-9]{0,17})")
_NUMBER = re.compile(r"[0-9]{1,9}")
_NOT_NOW = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)
_NO_INODE = (-1, -1)

Key = tuple[str, int]
"""Kind and number of a piece of memory, or of a socket."""
Inode = tuple[int, int]


class Held(Protocol):
    """A file or a socket that the store may hold."""

    @property
    def fd(self) -> int: ...


log = structlog.stdlib.get_logger()


class ServiceManager:
    """Connection to systemd. Without an address, it does nothing. No call waits, except `end`."""

    def __init__(self, address: str = "", limit: int = 0) -> None:
        """`limit` is the number of descriptors that the unit may store; 0 if it is unknown."""
        self._address = address
        self._limit = limit
        self._full = False
        self._socket: socket.socket | None = None
        if address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        self._received: list[tuple[str, int, int]] = []
        self._stale: set[str] = set()
        """Names in the store that this process does not know."""
        self._stored: dict[Key, Inode] = {}
        """Contents of the store once all messages are sent."""
        self._unsent: deque[tuple[str, Key | None, int]] = deque()
        """Message, key and descriptor (-1: none), in order."""

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> ServiceManager:
        """Return the service manager of this process, with the descriptors that it passed. Removes its variables, so
        that no child process uses them."""
        address, limit, count, pid, names = (environ.pop(name, "") for name in _VARIABLES)
        if address.startswith("@"):  # Linux' abstract namespace
            address = f"\0{address[1:]}"
        elif not address.startswith("/"):
            address = ""
        manager = cls(address, int(limit) if _NUMBER.fullmatch(limit) else 0)
        if pid == str(os.getpid()) and _NUMBER.fullmatch(count):
            manager._receive(int(count), names.split(":"))
        return manager

    def _receive(self, count: int, names: list[str]) -> None:
        unknown = 0
        for fd in _passed(count):
            name = names[fd - _FIRST_FD] if fd - _FIRST_FD < len(names) else ""
            match = _NAME.fullmatch(name)
            key = (match[1], int(match[2])) if match is not None else ("", 0)
            if key[0] in KINDS and key not in self._stored:
                self._received.append((*key, fd))
                self._stored[key] = _inode(fd)
                continue
            os.close(fd)
            unknown += 1
            if key in self._stored:  # one name for two descriptors: `sync` replaces both
                self._stored[key] = _NO_INODE
            elif name.isascii() and name.isprintable():
                self._stale.add(name)
        if unknown:
            log.warning("fd_store.unknown", descriptors=unknown, effect="they are closed")

    def take(self) -> list[tuple[str, int, int]]:
        """Return the descriptors that were passed to this process (kind, number, fd). The caller owns them."""
        received, self._received = self._received, []
        return received

    def discard(self) -> None:
        """Close the descriptors that were passed to this process."""
        for _, _, fd in self.take():
            os.close(fd)

    # ---- the store

    def sync(self, files: Iterable[tuple[str, int, Held]]) -> None:
        """Make the store hold exactly these files and sockets, with kind and number."""
        wanted = {(kind, number): file for kind, number, file in files}
        for name in self._stale:
            self._queue(f"FDSTOREREMOVE=1\nFDNAME={name}")
        self._stale.clear()
        for key in self._stored.keys() - wanted.keys():
            self.dropped(*key)
        for key, file in wanted.items():
            if self._stored.get(key) != _inode(file.fd):
                self.made(*key, file)

    def made(self, kind: str, number: int, file: Held) -> None:
        """Store a duplicate of a descriptor, which stays open until `dropped`."""
        key = kind, number
        self.dropped(kind, number)  # the store holds any number of descriptors of one name
        self._stored[key] = _inode(file.fd)
        if self._limit and len(self._stored) > self._limit and not self._full:
            self._full = True
            log.error(
                "fd_store.full",
                limit=self._limit,
                effect="a kill of the data plane loses blocks, or the whole cache",
                next="raise FileDescriptorStoreMax= of the unit",
            )
        # FDPOLL=0: systemd would otherwise drop a connection as soon as its peer hangs up.
        self._queue(f"FDSTORE=1\nFDNAME={kind}-{number}\nFDPOLL=0", key, file.fd)

    def dropped(self, kind: str, number: int) -> None:
        """Remove a descriptor from the store."""
        key = kind, number
        self._stored.pop(key, None)
        self._unsent = deque(each for each in self._unsent if each[1] != key)
        self._queue(f"FDSTOREREMOVE=1\nFDNAME={kind}-{number}", key)

    # ---- the state of the service

    def ready(self, status: str) -> None:
        """Report that the data plane serves. `status` is one line for `systemctl status`."""
        message = f"READY=1\nSTATUS={' '.join(status.splitlines())}"
        # In front: systemd takes seconds for thousands of descriptors.
        self._queue(message, front=True)

    @property
    def is_current(self) -> bool:
        """Whether all messages were sent to systemd."""
        return not self._unsent

    def stopping(self) -> None:
        self._queue("STOPPING=1\nSTATUS=")

    def end(self, *, keep: bool) -> None:
        """End the connection. `keep` leaves the descriptors in the store for the next process; otherwise all are
        removed."""
        self.discard()
        if not keep:
            self.sync(())
        deadline = time.monotonic() + END_S
        self.flush()
        while self._unsent and time.monotonic() < deadline:
            time.sleep(RETRY_PAUSE_S)
            self.flush()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # ---- messages

    def _queue(self, message: str, key: Key | None = None, fd: int = -1, *, front: bool = False) -> None:
        if self._socket is None:
            return
        if front:
            self._unsent.appendleft((message, key, fd))
        else:
            self._unsent.append((message, key, fd))
        self.flush()

    def flush(self) -> None:
        """Send as many messages as systemd accepts now."""
        while self._unsent and self._socket is not None:
            message, _, fd = self._unsent[0]
            fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [fd]))] if fd >= 0 else []
            try:
                self._socket.sendmsg([message.encode()], fds, socket.MSG_NOSIGNAL, self._address)
            except OSError as error:
                if error.errno in _NOT_NOW:
                    return
                log.warning(
                    "service_manager.unreachable",
                    error=error.strerror,
                    effect="a kill of the data plane empties the cache",
                )
                self._unsent.clear()
                self._socket.close()
                self._socket = None
                return
            self._unsent.popleft()


def _passed(count: int) -> list[int]:
    """Return the descriptors that were passed to this process, and keep children from inheriting them."""
    found = []
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        # Descriptors that this process opened are not inheritable: a wrong count includes none of them.
        with suppress(OSError):
            if _FIRST_FD <= fd < _FIRST_FD + count and os.get_inheritable(fd):
                os.set_inheritable(fd, False)
                found.append(fd)
    return found


def _inode(fd: int) -> Inode:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino
