"""The memory keeper: `python -m dataplane.recovery.keeper FD FOLDER`, started by a data plane that stops.

Holds the descriptors that it received on FD, listens in FOLDER (the state directory), and ends when a data plane has
taken the memory, on a request to release it, on SIGTERM, when its time is over, or when its socket no longer has its
name there: then no data plane can find it. It maps only one page of the index,
which has the word that tells engines that the memory was released.

While a data plane that is adopting the memory is connected, the keeper refuses release requests from others and waits
up to TAKER_MAX_S beyond its deadline. Once another data plane has signed the index, the keeper does not mark the memory
as released, because that would take away a cache that is being served.
"""

from __future__ import annotations

import mmap
import os
import selectors
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from struct import Struct

from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.engine import MAX_DATAGRAM_BYTES, MAX_FDS_PER_DATAGRAM, HeldMemory, MemoryHeld
from dataplane.protocol.keeper import (
    MAX_REASON_CHARACTERS,
    NEW_SOCKET_NAME,
    SOCKET_NAME,
    VERSION,
    DescribeMemory,
    Keep,
    KeeperRefused,
    Keeping,
    Released,
    Reply,
    Request,
    Take,
    Taken,
)
from dataplane.recovery import record

MAX_CONNECTIONS = 16
SEND_TIMEOUT_S = 5.0
CHECK_S = 1.0
"""Seconds between checks of the socket's name."""
TAKER_MAX_S = 120.0
"""Time beyond the deadline for a data plane that is adopting the memory."""
_PAGE = 4096
_WORD = Struct("<Q")
# Offsets in the index header, as `dataplane.protocol.layout` numbers its words; that module needs numpy, which
# this process does not import. `tests/restart/test_keeper.py` compares them.
PID_OFFSET, CLOSED_OFFSET = 6 * 8, 7 * 8
CREDENTIALS = Struct("iII")

_requests = decoder(Request)
_keep = decoder(Keep)
_held = decoder(MemoryHeld)


class MemoryKeeper:
    """The descriptors, the socket, and the deadline."""

    def __init__(self, keep: Keep, memory: list[tuple[HeldMemory, int]], folder: Path) -> None:
        self._keep = keep
        self._memory = memory
        # The folder itself, also after it was renamed. Its path may be too long for the address of a socket.
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._folder = Path(f"/proc/self/fd/{directory}")
        self._deadline = time.monotonic() + keep.seconds
        self._selector = selectors.DefaultSelector()
        self._connections: dict[socket.socket, bool] = {}
        """Each connection, and whether it is a data plane that is adopting the memory."""
        self._listener = _listen(self._folder)
        self._inode = self._named_inode()
        self._ended = False
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def description(self) -> Keeping:
        keep = self._keep
        left = max(0.0, self._deadline - time.monotonic())
        return Keeping(VERSION, keep.blocks, keep.bytes, left, os.getpid(), keep.memory)

    def run(self) -> None:
        """Serve until the memory is taken or released."""
        while not self.is_over():
            for key, _ in self._selector.select(
                min(CHECK_S, max(0.0, self._release_at() - time.monotonic()))
            ):
                if self.is_over():
                    return
                if key.fileobj is self._listener:
                    self._accept()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._read(key.fileobj)
            if time.monotonic() >= self._release_at():
                reason = (
                    f"no data plane started within {self._keep.seconds:g} s after the stop (keep_memory_s)"
                )
                self.release(reason, on_purpose=False)
            elif self._named_inode() != self._inode and not any(self._connections.values()):
                self.release(
                    "the state directory or the memory keeper's socket was deleted", on_purpose=False
                )

    def is_over(self) -> bool:
        """Return whether the memory was taken or released."""
        return self._ended

    def _release_at(self) -> float:
        """Return the time of the release: the deadline, or later while a data plane adopts the memory."""
        return self._deadline + (TAKER_MAX_S if any(self._connections.values()) else 0.0)

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._listener.accept()
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
            uid = CREDENTIALS.unpack(raw)[1]
            if uid not in (os.geteuid(), 0):
                connection.close()
                return
            if (
                len(self._connections) >= MAX_CONNECTIONS
            ):  # the oldest one is closed, unless it is taking the memory
                idle = next((each for each, taking in self._connections.items() if not taking), None)
                if idle is None:
                    connection.close()
                    return
                self._close(idle)
            connection.settimeout(SEND_TIMEOUT_S)
            self._connections[connection] = False
            self._selector.register(connection, selectors.EVENT_READ)

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        del self._connections[connection]
        connection.close()

    def _read(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(MAX_DATAGRAM_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        try:
            self._answer(connection, decode(_requests, data))
        except ProtocolError as error:
            with suppress(OSError):
                connection.send(encode(KeeperRefused(error.message)), socket.MSG_NOSIGNAL)
        except OSError:
            self._close(connection)

    def _answer(self, connection: socket.socket, request: Request) -> None:
        reply: Reply
        if isinstance(request, DescribeMemory):
            reply = self.description
        elif isinstance(request, Take):
            if request.version != VERSION:
                reply = KeeperRefused(f"the keeper speaks version {VERSION}, got {request.version}")
            else:
                self._connections[connection] = True
                connection.send(encode(self.description), socket.MSG_NOSIGNAL)
                for data, fds in _datagrams(self._memory):
                    socket.send_fds(connection, [data], fds, socket.MSG_NOSIGNAL)
                return
        elif isinstance(request, Taken):
            if request.memory == self._keep.memory:
                self._end()
                return
            reply = KeeperRefused("the keeper holds other memory")
        elif any(taking for each, taking in self._connections.items() if each is not connection):
            reply = KeeperRefused("a data plane is taking the memory over")
        else:
            self.release(request.reason[:MAX_REASON_CHARACTERS], on_purpose=request.on_purpose)
            reply = Released(self._keep.blocks, self._keep.bytes)
        connection.send(encode(reply), socket.MSG_NOSIGNAL)

    # ---- the end

    def release(self, reason: str, *, on_purpose: bool) -> None:
        """Mark the memory as released, remove the name of the named segment, and end."""
        if self.is_over():
            return
        if self._is_ours():
            _write_word(self._fd("index"), CLOSED_OFFSET, 1)
            self._remove_names()
            held = record.load(self._folder) or record.CacheRecord()
            held.blocks, held.bytes = self._keep.blocks, self._keep.bytes
            held.at, held.boot = time.time(), record.boot_id()
            held.reason, held.on_purpose = reason, on_purpose
            with suppress(OSError):  # on a full disk, the next start reports less
                record.save(self._folder, held)
        self._end()

    def _is_ours(self) -> bool:
        """Return whether no other process has the memory: no other keeper has the socket's name, and the last process
        that signed the index is the data plane that stopped, or one that adopted the memory and died before it reported
        that."""
        if self._named_inode() not in (self._inode, 0):
            return False
        try:
            signer = _word(self._fd("index"), PID_OFFSET)
        except (LookupError, OSError, ValueError):
            return False
        return signer == self._keep.pid or not _is_alive(signer)

    def stop(self) -> None:
        """End early: now, or when the data plane that is taking the memory is done."""
        if any(self._connections.values()):
            self._deadline = time.monotonic()
        else:
            self.release("the memory keeper was stopped by SIGTERM", on_purpose=False)

    def _fd(self, kind: str) -> int:
        return next(fd for each, fd in self._memory if each.kind == kind)

    def _remove_names(self) -> None:
        for path in self._keep.named_paths:
            with suppress(OSError, StopIteration):
                if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(self._fd("named"))):
                    os.unlink(path)

    def _end(self) -> None:
        """Remove the socket's name, unless it already belongs to another keeper."""
        self._ended = True
        if self._named_inode() == self._inode:
            with suppress(OSError):
                (self._folder / SOCKET_NAME).unlink()

    def _named_inode(self) -> int:
        """Return the inode of the socket that has the name; 0 if there is none."""
        try:
            return os.stat(self._folder / SOCKET_NAME).st_ino
        except FileNotFoundError:
            return 0
        except OSError:  # the folder cannot be searched now
            return self._inode


def _datagrams(memory: list[tuple[HeldMemory, int]]) -> list[tuple[bytes, list[int]]]:
    """Return the datagrams for all descriptors; one with fewer than MAX_FDS_PER_DATAGRAM ends the list."""
    found = []
    for first in range(0, len(memory) + 1, MAX_FDS_PER_DATAGRAM):
        part = memory[first : first + MAX_FDS_PER_DATAGRAM]
        found.append((encode(MemoryHeld(0, 0, [each for each, _ in part])), [fd for _, fd in part]))
    return found


def receive(connection: socket.socket) -> list[tuple[HeldMemory, int]]:
    """Receive the descriptors of `_datagrams`; the caller owns them. Raises OSError, ProtocolError."""
    memory: list[tuple[HeldMemory, int]] = []
    try:
        while True:
            data, fds, _, _ = socket.recv_fds(
                connection, MAX_DATAGRAM_BYTES, MAX_FDS_PER_DATAGRAM, socket.MSG_CMSG_CLOEXEC
            )
            if not data:
                _close_all(fds)
                raise ConnectionResetError("the peer ended before it had sent all memory")
            try:
                held = decode(_held, data)
                if len(held.memory) != len(fds):
                    raise ConnectionResetError(
                        f"the peer named {len(held.memory)} descriptors and sent {len(fds)}"
                    )
            except BaseException:
                _close_all(fds)
                raise
            memory += zip(held.memory, fds, strict=True)
            if len(fds) < MAX_FDS_PER_DATAGRAM:
                return memory
    except BaseException:
        _close_all([fd for _, fd in memory])
        raise


def send(connection: socket.socket, memory: list[tuple[HeldMemory, int]]) -> None:
    """Send descriptors, which the caller still owns. Raises OSError."""
    for data, fds in _datagrams(memory):
        socket.send_fds(connection, [data], fds, socket.MSG_NOSIGNAL)


def _is_alive(pid: int) -> bool:
    """Return whether a process with this id runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def _close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _word(fd: int, offset: int) -> int:
    with mmap.mmap(fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ) as page:
        return int(_WORD.unpack_from(page, offset)[0])


def _write_word(fd: int, offset: int, value: int) -> None:
    with mmap.mmap(fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as page:
        view = memoryview(page).cast("Q")
        view[offset // 8] = value  # one aligned store: engines read it without a lock
        view.release()


def _listen(folder: Path) -> socket.socket:
    """Return a listening socket in the folder. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    making = folder / NEW_SOCKET_NAME
    before = os.umask(0o177)
    try:
        making.unlink(missing_ok=True)
        listener.bind(str(making))
        listener.listen(MAX_CONNECTIONS)
        listener.setblocking(False)
        making.rename(folder / SOCKET_NAME)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(before)
    return listener


def main(arguments: list[str]) -> int:
    """Receive the memory, confirm that, and serve. Return 1 as the exit code if the memory cannot be held."""
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)
    connection.settimeout(SEND_TIMEOUT_S)
    for number in (signal.SIGINT, signal.SIGHUP):  # from the terminal in which the data plane ran
        signal.signal(number, signal.SIG_IGN)
    try:
        keep = decode(_keep, connection.recv(MAX_DATAGRAM_BYTES))
        keeper = MemoryKeeper(keep, receive(connection), Path(arguments[1]).absolute())
        signal.signal(signal.SIGTERM, partial(_stop, keeper))  # from now on, the memory is released first
        with suppress(OSError):  # the data plane was killed meanwhile, but the memory is here
            connection.send(encode(keeper.description), socket.MSG_NOSIGNAL)
    except (OSError, ProtocolError) as error:
        with suppress(OSError):
            connection.send(encode(KeeperRefused(str(error))), socket.MSG_NOSIGNAL)
        return 1
    finally:
        connection.close()
    os.chdir("/")
    keeper.run()
    return 0


def _stop(keeper: MemoryKeeper, *_: object) -> None:
    keeper.stop()
    if keeper.is_over():
        sys.exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
