"""Which local process is at the other end of a TCP connection, and when it ends.

The kernel's table of connections names the inode of the peer's socket, and whoever has that inode open is the peer. A
socket that was inherited has several holders: the oldest one counts. A peer on another machine, in another pid
namespace or of a user whose descriptors this process may not list has no pid: then only its connection says that it
lives.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue

from dataplane.transport.loop import Loop
from dataplane.transport.peers import has_exited, open_process, started_at

Owner = tuple[int, int]
"""pid and start of a process (clock ticks since boot)."""
UNKNOWN: Owner = (0, 0)
_TABLES = {socket.AF_INET: "/proc/net/tcp", socket.AF_INET6: "/proc/net/tcp6"}
_PREFIX = "socket:["


def owners_of(fds: Iterable[int]) -> dict[int, Owner]:
    """The peers of connected sockets, by descriptor; UNKNOWN for those that cannot be found. Raises nothing."""
    found = dict.fromkeys(fds, UNKNOWN)
    wanted = {fd: ends for fd in found if (ends := _ends_of(fd)) is not None}
    inodes = _inodes(set(wanted.values()))
    holders = _holders(set(inodes.values()))
    for fd, ends in wanted.items():
        inode = inodes.get(ends)
        if inode is not None:
            found[fd] = holders.get(inode, UNKNOWN)
    return found


_Ends = tuple[int, str, str]
"""Family, the peer's end and this end of a connection, as the kernel's tables write them."""


def _ends_of(fd: int) -> _Ends | None:
    try:
        connection = socket.socket(fileno=os.dup(fd))
    except OSError:  # closed meanwhile
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
    """An address as the kernel's tables have it: words of the host's byte order, in hex."""
    packed = ipaddress.ip_address(address[0].partition("%")[0]).packed
    words = [packed[at : at + 4][::-1].hex().upper() for at in range(0, len(packed), 4)]
    return f"{''.join(words)}:{address[1]:04X}"


def _inodes(wanted: set[_Ends]) -> dict[_Ends, int]:
    """Inodes of the peers' sockets."""
    found: dict[_Ends, int] = {}
    for family in {family for family, _, _ in wanted}:
        with suppress(OSError, ValueError, IndexError), open(_TABLES[socket.AddressFamily(family)]) as table:
            next(table)
            for line in table:
                columns = line.split()
                ends = family, columns[1], columns[2]
                if ends in wanted:
                    found[ends] = int(columns[9])
    return found


def _holders(inodes: set[int]) -> dict[int, Owner]:
    """Who has sockets open, the oldest process of each."""
    found: dict[int, Owner] = {}
    if not inodes:
        return found
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == own:
            continue
        held = _sockets_of(name) & inodes
        if not held:
            continue
        pid = int(name)
        owner = pid, started_at(pid)
        for inode in held:
            if inode not in found or owner[1] < found[inode][1]:
                found[inode] = owner
    return found


def _sockets_of(pid: str) -> set[int]:
    inodes: set[int] = set()
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # gone, or not ours to look at
        return inodes
    for name in names:
        with suppress(OSError, ValueError):
            target = os.readlink(f"{folder}/{name}")
            if target.startswith(_PREFIX):
                inodes.add(int(target[len(_PREFIX) : -1]))
    return inodes


class Lookout:
    """Finds the owners of connections on a thread: a look at all processes takes milliseconds."""

    def __init__(self, found: Callable[[Mapping[bytes, Owner]], None]) -> None:
        """`found` is called on the thread, with owners by the names of connections."""
        self._found = found
        self._wanted: SimpleQueue[tuple[bytes, int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(self, name: bytes, fd: int) -> None:
        """Look for the owner of a connection soon."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lmcache-lookout", daemon=True)
            self._thread.start()
        self._wanted.put((name, fd))

    def _run(self) -> None:
        while True:
            wanted = [self._wanted.get()]
            with suppress(Empty):
                while True:
                    wanted.append(self._wanted.get_nowait())
            fds = dict(each for each in wanted if each is not None)
            if None in wanted:  # nobody waits for the rest
                return
            owners = owners_of(fds.values())
            self._found({name: owners[fd] for name, fd in fds.items()})

    def close(self) -> None:
        if self._thread is not None:
            self._wanted.put(None)
            self._thread.join(timeout=2)


class Watch:
    """Hears when processes end."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._pidfds: dict[int, int] = {}
        """By the number that the watcher gave."""

    def begin(self, number: int, owner: Owner, ended: Callable[[], None]) -> bool:
        """Call `ended` once when the process ends. False: it is gone already, and `ended` is not called."""
        self.end(number)
        if not owner[0]:
            return True
        try:
            pidfd = open_process(*owner)
        except OSError:  # it lives, but cannot be watched: out of descriptors
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
