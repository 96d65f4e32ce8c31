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
    found = dict.fromkeys(fds, UNKNOWN)
    queries = {fd: ends for fd in found if (ends := _ends_of(fd)) is not None}
    inodes = _inodes(set(queries.values()))
    holders = _holders(set(inodes.values()))
    for fd, ends in queries.items():
        inode = inodes.get(ends)
        if inode is not None:
            found[fd] = holders.get(inode, UNKNOWN)
    return found


_Ends = tuple[int, str, str]
"""Family, peer address and local address of a connection, in the format of the kernel's tables."""


def _ends_of(fd: int) -> _Ends | None:
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


def _inodes(queries: set[_Ends]) -> dict[_Ends, int]:
    """Return the inodes of the peers' sockets."""
    found: dict[_Ends, int] = {}
    for family in {family for family, _, _ in queries}:
        with suppress(OSError, ValueError, IndexError), open(_TABLES[socket.AddressFamily(family)]) as table:
            next(table)
            for line in table:
                columns = line.split()
                ends = family, columns[1], columns[2]
                if ends in queries:
                    found[ends] = int(columns[9])
    return found


def _holders(inodes: set[int]) -> dict[int, Owner]:
    """Return the oldest process that has each socket open, by inode."""
    found: dict[int, Owner] = {}
    if not inodes:
        return found
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == own:
            continue
        open_inodes = _sockets_of(name) & inodes
        if not open_inodes:
            continue
        pid = int(name)
        owner = pid, started_at(pid)
        for inode in open_inodes:
            if inode not in found or owner[1] < found[inode][1]:
                found[inode] = owner
    return found


def _sockets_of(pid: str) -> set[int]:
    inodes: set[int] = set()
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # the process is gone, or access is denied
        return inodes
    for name in names:
        with suppress(OSError, ValueError):
            target = os.readlink(f"{folder}/{name}")
            if target.startswith(_PREFIX):
                inodes.add(int(target[len(_PREFIX) : -1]))
    return inodes


class PidResolver:
    """Find the owners of connections on a thread, because a scan of all processes takes milliseconds."""

    def __init__(self, found: Callable[[Mapping[bytes, Owner]], None]) -> None:
        """Create the resolver. `found` is called on its thread, with owners by connection name."""
        self._found = found
        self._queries: SimpleQueue[tuple[bytes, int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, name: bytes, fd: int) -> None:
        """Request a search for the owner of a connection."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lmcache-lookout", daemon=True)
            self._thread.start()
        self._queries.put((name, fd))

    def _run(self) -> None:
        while True:
            queries = [self._queries.get()]
            with suppress(Empty):
                while True:
                    queries.append(self._queries.get_nowait())
            fds = dict(each for each in queries if each is not None)
            if None in queries:  # closed: the remaining results are not needed
                return
            owners = owners_of(fds.values())
            self._found({name: owners[fd] for name, fd in fds.items()})

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
