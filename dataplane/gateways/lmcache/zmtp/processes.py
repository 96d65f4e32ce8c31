"""Find the local process at the other end of a TCP connection, and watch for its end.

The kernel's connection table contains the inode of the peer's socket, and the process that has this inode open is the
peer. An inherited socket is open in several processes, of which the oldest one counts. A peer on another machine, in
another pid namespace, or of a user whose descriptors this process may not list has no pid; then only its connection
shows that it is alive.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue

from dataplane.io.loop import Loop
from dataplane.io.peers import open_process, started_at
from dataplane.ipc.processes import has_exited

Owner = tuple[int, int]
"""pid and start time of a process, in clock ticks since boot."""
UNKNOWN: Owner = (0, 0)
_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}
_PREFIX = "socket:["


def owners_of(fds: Iterable[int]) -> dict[int, Owner]:
    """Return the peers of connected sockets by descriptor; UNKNOWN for those not found. Never raise."""
    owners = dict.fromkeys(fds, UNKNOWN)
    queries = {fd: endpoints for fd in owners if (endpoints := _endpoints_of(fd)) is not None}
    inodes = _inodes(set(queries.values()))
    holders = _holders(set(inodes.values()))
    for fd, endpoints in queries.items():
        inode = inodes.get(endpoints)
        if inode is not None:
            owners[fd] = holders.get(inode, UNKNOWN)
    return owners


_Endpoints = tuple[int, str, str]
"""Family, peer address and local address of a connection, in the format of the kernel's tables."""


def _endpoints_of(fd: int) -> _Endpoints | None:
    try:
        connection = socket.socket(fileno=os.dup(fd))
    except OSError:  # closed in the meantime
        return None
    try:
        family = connection.family
        if family not in _TABLES:
            return None
        return family, _written(connection.getpeername()), _written(connection.getsockname())
    except (OSError, ValueError):
        return None
    finally:
        connection.close()


def _written(address: tuple[str, int]) -> str:
    """Return an address in the format of the kernel's tables: hexadecimal words in the host's byte order."""
    packed = ipaddress.ip_address(address[0].partition("%")[0]).packed
    words = [packed[at : at + 4][::-1].hex().upper() for at in range(0, len(packed), 4)]
    return f"{''.join(words)}:{address[1]:04X}"


def _inodes(queries: set[_Endpoints]) -> dict[_Endpoints, int]:
    """Return the inodes of the peers' sockets."""
    inodes: dict[_Endpoints, int] = {}
    for family in {family for family, _, _ in queries}:
        with suppress(OSError, ValueError, IndexError), open(_TABLES[socket.AddressFamily(family)]) as table:
            next(table)
            for line in table:
                columns = line.split()
                endpoints = family, columns[1], columns[2]
                if endpoints in queries:
                    inodes[endpoints] = int(columns[9])
    return inodes


def _holders(inodes: set[int]) -> dict[int, Owner]:
    """Return the oldest process that has each socket open, by inode."""
    owners: dict[int, Owner] = {}
    if not inodes:
        return owners
    own_pid = os.getpid()
    names: list[str] = []
    with suppress(OSError):  # without free descriptors, nothing is found
        names = os.listdir("/proc")
    for name in names:
        if not name.isdecimal() or int(name) == own_pid:
            continue
        open_inodes = _sockets_of(name) & inodes
        if not open_inodes:
            continue
        pid = int(name)
        owner = pid, started_at(pid)
        for inode in open_inodes:
            if inode not in owners or owner[1] < owners[inode][1]:
                owners[inode] = owner
    return owners


def _sockets_of(pid: str) -> set[int]:
    inodes: set[int] = set()
    folder = f"/proc/{pid}/fd"
    try:
        fd_names = os.listdir(folder)
    except OSError:  # the process is gone, or access is denied
        return inodes
    for name in fd_names:
        with suppress(OSError, ValueError):
            target = os.readlink(f"{folder}/{name}")
            if target.startswith(_PREFIX):
                inodes.add(int(target[len(_PREFIX) : -1]))
    return inodes


class PidResolver:
    """Find the owners of connections on a thread, because a scan of all processes takes milliseconds."""

    def __init__(self, on_owners: Callable[[Mapping[bytes, Owner]], None]) -> None:
        """Create the resolver. `on_owners` is called on its thread, with owners by connection name."""
        self._on_owners = on_owners
        self._queries: SimpleQueue[tuple[bytes, int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def resolve(self, name: bytes, fd: int) -> None:
        """Request a search for the owner of a connection."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lmcache-pid-resolver", daemon=True)
            self._thread.start()
        self._queries.put((name, fd))

    def _run(self) -> None:
        while True:
            queries = [self._queries.get()]
            with suppress(Empty):
                while True:
                    queries.append(self._queries.get_nowait())
            fds = dict(query for query in queries if query is not None)
            if None in queries:  # closed: the remaining results are not needed
                return
            owners = owners_of(fds.values())
            self._on_owners({name: owners[fd] for name, fd in fds.items()})

    def close(self) -> None:
        if self._thread is not None:
            self._queries.put(None)
            self._thread.join(timeout=2)


class ProcessWatch:
    """Watch for the end of processes."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._pidfds: dict[int, int] = {}
        """Process descriptors by the caller's number."""

    def begin(self, number: int, owner: Owner, ended: Callable[[], None]) -> bool:
        """Call `ended` once when the process ends. Return False, without a call, if it is already gone."""
        self.end(number)
        if not owner[0]:
            return True
        try:
            pidfd = open_process(*owner)
        except OSError:  # the process is alive but cannot be watched, because there are no descriptors left
            return True
        if pidfd is None:
            return False

        def readable() -> None:
            if has_exited(pidfd):
                self.end(number)
                ended()

        self._pidfds[number] = pidfd
        self._loop.register(pidfd, readable)
        return True

    def end(self, number: int) -> None:
        pidfd = self._pidfds.pop(number, None)
        if pidfd is not None:
            self._loop.unregister(pidfd)
            os.close(pidfd)

    def close(self) -> None:
        for number in list(self._pidfds):
            self.end(number)
