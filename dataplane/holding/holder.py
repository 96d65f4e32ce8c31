"""The holder: a process that has duplicates of the descriptors of a data plane's memory, so that the memory outlives
every other process of Larder. It runs from the first byte of memory on.

`python -m dataplane.holding.holder FOLDER` is a holder that a service manager or a container runs, for the data planes
of one state directory, one after the other. A data plane that finds none starts one of its own (`--given`),
which ends when it holds nothing and no peer is connected.

The holder listens on `holder.sock` in the state directory. One connection at a time is the *writer*: a data plane that
sent `take` gets the memory that is held, sends all memory that it has, and then what it adds and frees. When the
connection ends, by a stop or by a kill, the holder keeps the memory for `keep_s` seconds for the next writer. When they
are over, or when an operator asks for it, the holder marks the memory as released, so that engines stop reading it.

A message is a JSON object in one datagram, with the descriptors that it lists. An answer names in `to` what it answers,
or says in `refused` what was expected.

| `do` | other fields | |
|---|---|---|
| `take` | `version`, `keep_s`, `adopt` | become the writer; the answer is `holding`, then the memory if `adopt` |
| `hold` | `memory` (kind, number, bytes), `last` | descriptors; `last` ends the list, which replaces what was held |
| `keep` | `memory` (kind, number, device, inode) | as `hold`, for memory that is held already: without descriptors |
| `drop` | `memory` (kind, number) | memory that was freed |
| `adopting` | | the memory was received, and its adoption begins |
| `serving` | `named_paths` | the start succeeded |
| `failed`, `leave` | | the start failed because of the memory, or for another reason |
| `stop` | `keep_s`, `blocks`, `bytes` | the data plane stops; the answer is `holding` |
| `release` | `reason`, `on_purpose` | release the memory; the answer is `released`; also from an operator |
| `describe`, `peek` | | from anybody; the answer is `holding`, and the memory for `peek` |

With `take` comes the descriptor with which the data plane locks the state directory. No other data plane can have it,
so a writer that is still connected is displaced.

This module imports only the standard library: a holder takes 13 MB.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import selectors
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from struct import Struct
from typing import Any

VERSION = 1
SOCKET_NAME = "holder.sock"
LOCK_NAME = "holder.lock"
DATA_PLANE_LOCK_NAME = "dataplane.lock"
RECORD_NAME = "cache.json"
MAX_DATAGRAM_BYTES = 1 << 16
MAX_FDS_PER_DATAGRAM = 64
MAX_REASON_CHARACTERS = 300
MAX_CONNECTIONS = 16
MAX_RECORD_BYTES = 4096
MESSAGES_PER_TURN = 32
"""Messages of one connection that are served before those of others."""
MAX_DRAINED = 1 << 20
"""Messages of a data plane that has ended which are served before the next one gets its memory."""
SEND_TIMEOUT_S = 5.0
"""Time in which a peer must have read the memory that it asked for."""
CHECK_S = 1.0
"""Seconds between checks of the socket's name."""
SOCKETS_S = 10.0
"""Seconds for which the connections of a gateway's clients are held after a kill: without a data plane, the clients
would wait for answers that do not come."""
WRITER_ENDS_S = 120.0
"""Time beyond the deadline for a data plane that is starting, or that has lost its connection."""
WARM_STARTS = 3
"""Number of starts in a row that may fail because of the memory: by an error, or by the death of the process between
`adopting` and the end of its list."""
DEFAULT_KEEP_S = 60.0
SOCKET_KINDS = ("listener", "connection")
_INDEX = ("index", 0)
_NAMED = ("named", 0)
CLOSED_OFFSET = 7 * 8
"""Byte offset of the word H_CLOSED in the header of the index (`dataplane.protocol.layout`)."""
CREDENTIALS = Struct("iII")

Key = tuple[str, int]
"""Kind and number of a piece of memory, or of a socket."""
Files = dict[Key, tuple[int, int]]
"""Descriptor and size in bytes."""
Message = dict[str, Any]


class BadMessage(ValueError):
    """A message that the holder does not serve; the text says what was expected."""


class TooFewDescriptors(OSError):
    """The kernel discarded descriptors of a message, because this process may not open so many."""


# ---- messages


def send(connection: socket.socket, message: Message, fds: list[int] | None = None, flags: int = 0) -> None:
    """Send one message. Raises OSError."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if fds:
        socket.send_fds(connection, [data], fds, flags | socket.MSG_NOSIGNAL)
    else:
        connection.send(data, flags | socket.MSG_NOSIGNAL)


def _receive(connection: socket.socket) -> tuple[bytes, list[int], int, Any]:
    return socket.recv_fds(connection, MAX_DATAGRAM_BYTES, MAX_FDS_PER_DATAGRAM, socket.MSG_CMSG_CLOEXEC)


def receive(connection: socket.socket) -> tuple[Message | None, list[int]]:
    """Receive one message and its descriptors, which the caller owns; None if the other end closed the connection.
    Raises OSError (TooFewDescriptors), BadMessage."""
    try:
        data, fds, flags, _ = _receive(connection)
    except ConnectionResetError:  # reported once, before the last datagrams
        data, fds, flags, _ = _receive(connection)
    if flags & socket.MSG_CTRUNC:
        close_all(fds)
        raise TooFewDescriptors(errno.EMFILE, os.strerror(errno.EMFILE))
    if not data:
        close_all(fds)
        return None, []
    try:
        message = json.loads(data)
        if not isinstance(message, dict):
            raise BadMessage("expected a JSON object")
    except (ValueError, RecursionError) as error:
        close_all(fds)
        raise BadMessage(f"expected a JSON object: {error}") from None
    return message, fds


def receive_memory(connection: socket.socket) -> list[tuple[str, int, int]]:
    """Receive memory (kind, number, fd); the caller owns the descriptors. A message with fewer than
    MAX_FDS_PER_DATAGRAM ends the list. Raises OSError, BadMessage."""
    memory: list[tuple[str, int, int]] = []
    try:
        while True:
            message, fds = receive(connection)
            if message is None:
                raise ConnectionResetError("the holder ended before it had sent all memory")
            named = _keys(message, 3, fds)
            memory += [(kind, number, fd) for (kind, number, *_), fd in zip(named, fds, strict=True)]
            if len(fds) < MAX_FDS_PER_DATAGRAM:
                return memory
    except BaseException:
        close_all([fd for _, _, fd in memory])
        raise


def _keys(message: Message, length: int, fds: list[int] | None = None) -> list[list[Any]]:
    """Return the entries of the field `memory`. Closes the descriptors and raises BadMessage if they do not fit."""
    memory = message.get("memory")
    fits = (
        isinstance(memory, list)
        and (fds is None or len(fds) == len(memory))
        and all(
            isinstance(each, list)
            and len(each) == length
            and isinstance(each[0], str)
            and all(type(number) is int and number >= 0 for number in each[1:])
            for each in memory
        )
    )
    if not fits:
        close_all(fds or [])
        raise BadMessage(f"memory: expected lists of {length} fields, and one descriptor for each")
    assert isinstance(memory, list)
    return memory


def _paths(message: Message) -> list[str]:
    paths = message.get("named_paths")
    if not isinstance(paths, list) or not all(
        isinstance(path, str) and path.isprintable() and path.startswith("/") for path in paths
    ):
        raise BadMessage("named_paths: expected a list of paths")
    return paths


def _number(message: Message, name: str) -> float:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise BadMessage(f"{name}: expected a number of at least 0, got {value!r:.40}")
    return value


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Return whether a process holds a lock file, as it does until it ends. Raises OSError if the file exists and
    cannot be opened."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


# ---- the process


class Folder:
    """The lock of a state directory for its holder, and the socket in it. A data plane passes them to the process that
    it starts, which so has its name before it runs."""

    def __init__(self, path: str, lock: int = -1, listener: int = -1) -> None:
        """Lock the folder and listen in it, or take over descriptors. Raises OSError (BlockingIOError: it has a
        holder)."""
        # The folder itself, also after it was renamed. Its path may be too long for the address of a socket.
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self.lock = lock
        self._inode = 0
        try:
            if lock < 0:
                self.lock = os.open(self.path(LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.listener = self.listen()
            else:
                self.listener = socket.socket(fileno=listener)
                self.listener.setblocking(False)
        except OSError:
            self._close_locks()
            raise
        self._inode = self._named_inode()

    def path(self, name: str) -> str:
        return f"/proc/self/fd/{self._directory}/{name}"

    @property
    def is_deleted(self) -> bool:
        try:
            return os.fstat(self._directory).st_nlink == 0
        except OSError:  # of a file system that is away
            return False

    @property
    def has_name(self) -> bool:
        """Whether the socket in the folder is this one. True if the folder cannot be searched now."""
        return self._named_inode() == self._inode

    def listen(self) -> socket.socket:
        """Return a listening socket that gets its name when it is ready. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        making = self.path(f"{SOCKET_NAME}.new")
        try:
            with suppress(FileNotFoundError):
                os.unlink(making)
            listener.bind(making)
            os.chmod(making, 0o600)
            listener.listen(MAX_CONNECTIONS)
            listener.setblocking(False)
            os.rename(making, self.path(SOCKET_NAME))
        except OSError:
            listener.close()
            raise
        self._inode = self._named_inode()
        return listener

    def _named_inode(self) -> int:
        """Return the inode of the socket that has the name; 0 if there is none."""
        try:
            return os.stat(self.path(SOCKET_NAME)).st_ino
        except FileNotFoundError:
            return 0
        except OSError:
            return self._inode

    def remove_name(self) -> None:
        if self.has_name:
            with suppress(OSError):
                os.unlink(self.path(SOCKET_NAME))

    def _close_locks(self) -> None:
        os.close(self._directory)
        if self.lock >= 0:
            os.close(self.lock)

    def close(self) -> None:
        """Close all descriptors of this process; a holder to which they were passed keeps its own."""
        self.listener.close()
        self._close_locks()


class Holder:
    """The descriptors, the connections, and the deadline."""

    def __init__(self, folder: Folder, *, stay: bool) -> None:
        self._folder = folder
        self._stay = stay
        self._memory: Files = {}
        """Memory of the data plane that runs now, or ran last."""
        self._coming: Files = {}
        """Memory that arrived before the list was complete."""
        self._writer: socket.socket | None = None
        self._listed = False
        """Whether the writer has sent the list of all its memory."""
        self._adopting = False
        """Whether the writer adopts the memory: if it dies before its list is complete, the memory may be the cause."""
        self._failed_starts = 0
        self._keep_s = DEFAULT_KEEP_S
        self._named_paths: list[str] = []
        self._stopped: tuple[int, int] | None = None
        """Blocks and bytes of a data plane that stopped in good order."""
        self._gone_at = 0.0
        """Monotonic time at which the last writer's connection ended."""
        self._ended = self._stopping = False
        self._connections: set[socket.socket] = set()
        self._sending: dict[socket.socket, tuple[deque[Key], float]] = {}
        """Memory that a peer has not read yet, and since when."""
        self._accepts_at = 0.0
        """Monotonic time from which connections are accepted again; 0 if they are accepted."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(folder.listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until nothing is held and no peer is connected, or for ever with `stay`."""
        while not self._is_over():
            for key, events in self._selector.select(self._pause_s()):
                assert isinstance(key.fileobj, socket.socket)
                if key.fileobj is self._folder.listener:
                    self._accept()
                elif key.fileobj in self._connections and events & selectors.EVENT_WRITE:
                    self._send_part(key.fileobj)
                elif key.fileobj in self._connections:
                    self._read(key.fileobj)
            self._check()
        self._folder.remove_name()

    def _is_over(self) -> bool:
        idle = not (self._stay or self._memory or self._connections)
        return self._ended or idle

    def _pause_s(self) -> float:
        left = self._deadline - time.monotonic()
        return CHECK_S if self._writer is not None or not self._memory or left <= 0 else min(CHECK_S, left)

    @property
    def _deadline(self) -> float:
        return self._gone_at + self._keep_s

    def _check(self) -> None:
        """Do what has become due: release the memory, close a gateway's sockets, give the socket its name again."""
        now = time.monotonic()
        if self._stopping or self._folder.is_deleted:
            if self._writer is None:
                stopped = "the holder of the memory was stopped by SIGTERM"
                self._release(stopped if self._stopping else "the state directory was deleted", on_purpose=False)
            self._ended = True
            return
        for connection, (_, since) in list(self._sending.items()):
            if now >= since + SEND_TIMEOUT_S:
                self._close(connection)
        if self._accepts_at and now >= self._accepts_at:
            self._accepts_at = 0.0
            self._selector.register(self._folder.listener, selectors.EVENT_READ)
        if not self._folder.has_name:
            with suppress(OSError):
                listener = self._folder.listen()
                if not self._accepts_at:
                    self._selector.unregister(self._folder.listener)
                self._accepts_at = 0.0
                self._folder.listener.close()
                self._folder.listener = listener
                self._selector.register(listener, selectors.EVENT_READ)
        if self._writer is not None or not self._memory:
            return
        if now >= self._gone_at + SOCKETS_S:
            self._drop_sockets()
        if now >= self._deadline:
            end = "stop" if self._stopped else "end"
            why = f"no data plane started within {self._keep_s:g} s after the {end} of the last one (keep_memory_s)"
            if not self._release(why, on_purpose=False) and now >= self._deadline + WRITER_ENDS_S:
                self._clear()

    def _data_plane_lives(self) -> bool:
        """Return whether a data plane uses the state directory. It may be about to connect, and may serve the memory:
        marking that as released would take away its cache."""
        try:
            return is_locked(self._folder.path(DATA_PLANE_LOCK_NAME))
        except OSError:  # the process is gone
            return True

    # ---- connections

    def _accept(self) -> None:
        try:
            connection, _ = self._folder.listener.accept()
        except BlockingIOError:  # the peer is already gone
            return
        except OSError:  # out of descriptors: the listener stays readable
            self._selector.unregister(self._folder.listener)
            self._accepts_at = time.monotonic() + CHECK_S
            return
        try:
            allowed = uid_of(connection) in (os.geteuid(), 0)
        except OSError:
            allowed = False
        if not allowed:
            connection.close()
            return
        if len(self._connections) >= MAX_CONNECTIONS:  # the writer stays
            self._close(next(each for each in self._connections if each is not self._writer))
        self.serve(connection)

    def serve(self, connection: socket.socket) -> None:
        """Answer the requests of a connection."""
        connection.setblocking(False)
        self._connections.add(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _close(self, connection: socket.socket) -> None:
        if connection in self._connections:
            self._selector.unregister(connection)
            self._connections.discard(connection)
            self._sending.pop(connection, None)
            connection.close()
        if connection is self._writer:
            self._writer = None
            self._writer_gone()

    def _read(self, connection: socket.socket) -> bool:
        """Serve waiting messages, a bounded number. Return whether more may be waiting."""
        for _ in range(MESSAGES_PER_TURN):
            if connection not in self._connections or connection in self._sending:
                return False
            try:
                message, fds = receive(connection)
                if message is None:
                    self._close(connection)
                    return False
                answer = self._serve(connection, message, fds)
            except BlockingIOError:
                return False
            except BadMessage as error:
                self._send(connection, {"refused": str(error)})
                if connection is self._writer:  # what follows may rest on what was refused
                    self._close(connection)
            except OSError:
                self._close(connection)
                return False
            else:
                if answer is not None:
                    self._send(connection, answer)
        return True

    def _send(self, connection: socket.socket, answer: Message) -> None:
        """Send an answer. A peer that does not read its answers loses the connection."""
        try:
            send(connection, answer)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended; what it sent before is still read
        except OSError:
            self._close(connection)

    def _send_memory(self, connection: socket.socket) -> None:
        """Begin to send all memory; nothing is read from the peer meanwhile."""
        if connection in self._connections:
            self._sending[connection] = deque(self._memory), time.monotonic()
            self._selector.modify(connection, selectors.EVENT_WRITE)

    def _send_part(self, connection: socket.socket) -> None:
        """Send as much memory as the peer accepts now. A message with fewer than MAX_FDS_PER_DATAGRAM ends the list."""
        keys, _ = self._sending[connection]
        while True:
            part: list[Key] = []
            count = 0
            for key in keys:
                if len(part) == MAX_FDS_PER_DATAGRAM:
                    break
                count += 1
                if key in self._memory:  # it was not freed meanwhile
                    part.append(key)
            entries = [[*key, self._memory[key][1]] for key in part]
            try:
                send(connection, {"memory": entries}, [self._memory[key][0] for key in part])
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                break
            except OSError:
                self._close(connection)
                return
            for _ in range(count):
                keys.popleft()
            if len(part) < MAX_FDS_PER_DATAGRAM:
                break
        del self._sending[connection]
        self._selector.modify(connection, selectors.EVENT_READ)

    def _serve(self, connection: socket.socket, message: Message, fds: list[int]) -> Message | None:
        """Serve one message, and return the answer, if it has one. Takes ownership of the descriptors. Raises
        BadMessage, OSError."""
        do = message.get("do")
        if do == "hold" and connection is self._writer:
            self._hold(message, fds)
            return None
        if do == "take":
            self._take(connection, message, fds)
            return None
        close_all(fds)
        if do == "describe":
            return {"holding": self._description(), "to": do}
        if do == "peek":
            self._send(connection, {"holding": self._description(), "to": do})
            self._send_memory(connection)
            return None
        if do == "release":
            return self._release_request(connection, message)
        if connection is not self._writer:
            raise BadMessage(f"do: expected take, describe, peek or release, got {do!r:.40}")
        return self._serve_writer(do, message)

    def _serve_writer(self, do: object, message: Message) -> Message | None:
        if do == "drop":
            for kind, number in _keys(message, 2):
                self._drop((kind, number), self._memory if self._listed else self._coming)
        elif do == "keep":
            self._keep(message)
        elif do == "adopting":
            self._adopting = True
        elif do == "serving":
            self._named_paths = _paths(message)
            self._adopting, self._failed_starts = False, 0
        elif do == "failed":
            self._failed_starts += 1
            self._adopting = False
        elif do == "leave":
            self._adopting = False
        elif do == "stop":
            self._keep_s = _number(message, "keep_s")
            self._stopped = int(_number(message, "blocks")), int(_number(message, "bytes"))
            self._adopting = False
            self._drop_sockets()
            return {"holding": self._description(), "to": do}
        else:
            raise BadMessage(
                f"do: expected hold, keep, drop, adopting, serving, failed, leave, stop or release, got {do!r:.40}"
            )
        return None

    # ---- the writer

    def _take(self, connection: socket.socket, message: Message, fds: list[int]) -> None:
        owns = self._owns_folder(fds)
        if message.get("version") != VERSION:
            raise BadMessage(f"version: expected {VERSION}, got {message.get('version')!r:.40}")
        keep_s = _number(message, "keep_s")
        before = self._writer
        if before is not None and before is not connection:
            drained = 0
            while drained < MAX_DRAINED and self._read(before):  # it may have ended, with messages that are waiting
                drained += MESSAGES_PER_TURN
            if self._writer is not None and owns:
                self._close(before)
        if self._writer is not None and self._writer is not connection:
            raise BadMessage("another data plane is connected")
        adopt = bool(message.get("adopt"))
        if adopt and self._failed_starts >= WARM_STARTS:
            self._release(f"{self._failed_starts} starts with it failed", on_purpose=False, certain=owns)
        self._writer, self._listed, self._adopting = connection, False, False
        self._stopped = None
        self._keep_s = keep_s
        self._send(connection, {"holding": self._description(), "to": "take"})
        if adopt:
            self._send_memory(connection)

    def _owns_folder(self, fds: list[int]) -> bool:
        """Return whether a data plane has sent the descriptor with which it locks the state directory: then it
        displaces any other writer. Takes ownership of the descriptors."""
        try:
            locked = os.stat(self._folder.path(DATA_PLANE_LOCK_NAME))
            for fd in fds[:1]:
                if os.path.samestat(os.fstat(fd), locked):
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return True
        except OSError:
            pass
        finally:
            close_all(fds)
        return False

    def _hold(self, message: Message, fds: list[int]) -> None:
        into = self._memory if self._listed else self._coming
        for (kind, number, nbytes), fd in zip(_keys(message, 3, fds), fds, strict=True):
            self._drop((kind, number), into)
            into[kind, number] = fd, nbytes
        if message.get("last") and not self._listed:
            self._listed = True
            self._replaced()
            self._memory, self._coming = self._coming, {}

    def _keep(self, message: Message) -> None:
        """List memory that is held already, by its device and inode, to avoid a second descriptor of it."""
        for kind, number, device, inode in _keys(message, 4):
            known = self._memory.get((kind, number))
            status = None if known is None or self._listed else os.fstat(known[0])
            if status is None or (status.st_dev, status.st_ino) != (device, inode):
                raise BadMessage(f"memory: {kind} {number} is not held")
            self._drop((kind, number), self._coming)
            self._coming[kind, number] = self._memory.pop((kind, number))

    def _writer_gone(self) -> None:
        """Keep the memory of a data plane that stopped or was killed, perhaps before its list was complete."""
        self._gone_at = time.monotonic()
        self._failed_starts += self._adopting and not self._listed
        self._adopting = False
        if self._coming:
            if not self._same_memory():
                self._replaced()
            for key, file in self._coming.items():
                self._drop(key, self._memory)
                self._memory[key] = file
            self._coming = {}

    def _replaced(self) -> None:
        """Close what was held, because the writer's memory replaces it. If it is not the same memory, engines that read
        it are notified."""
        index = self._memory.get(_INDEX)
        if index is not None and not self._same_memory():
            _mark_closed(index[0])
        self._clear()

    def _same_memory(self) -> bool:
        known, coming = self._memory.get(_INDEX), self._coming.get(_INDEX)
        return known is None or coming is None or os.path.samestat(os.fstat(known[0]), os.fstat(coming[0]))

    def _drop(self, key: Key, files: Files) -> None:
        found = files.pop(key, None)
        if found is not None:
            os.close(found[0])

    def _drop_sockets(self) -> None:
        for key in [key for key in self._memory if key[0] in SOCKET_KINDS]:
            self._drop(key, self._memory)

    def _clear(self) -> None:
        for key in list(self._memory):
            self._drop(key, self._memory)

    # ---- the end of the memory

    def _description(self) -> Message:
        blocks, nbytes = self._stopped or (0, 0)
        if self._memory and self._stopped is None:
            record = load_record(self._folder.path(""))
            blocks, nbytes = int(record.get("blocks", 0)), int(record.get("bytes", 0))
        left = None if self._writer is not None else max(0.0, self._deadline - time.monotonic())
        return {
            "version": VERSION,
            "pid": os.getpid(),
            "files": len(self._memory),
            "blocks": blocks,
            "bytes": nbytes,
            "connected": self._writer is not None,
            "seconds_left": left if self._memory else None,
        }

    def _release_request(self, connection: socket.socket, message: Message) -> Message:
        reason = message.get("reason")
        if not isinstance(reason, str):
            raise BadMessage(f"reason: expected text, got {reason!r:.40}")
        description = self._description()
        if connection is self._writer:  # it has marked its memory itself
            self._adopting, self._listed = False, True
            self._clear()
            self._memory, self._coming = self._coming, {}
            self._clear()
        elif self._writer is not None:
            return {"refused": "a data plane has the memory, or is taking it over"}
        elif not self._release(reason[:MAX_REASON_CHARACTERS], on_purpose=bool(message.get("on_purpose"))):
            return {"refused": "a data plane uses the state directory"}
        return {"released": description, "to": "release"}

    def _release(self, reason: str, *, on_purpose: bool, certain: bool = False) -> bool:
        """Mark the memory as released, remove the names of the named segment, and record why. Return False if a data
        plane uses the state directory, which may serve the memory; `certain`: it does not."""
        if not self._memory:
            return True
        if not certain and self._data_plane_lives():
            return False
        description = self._description()
        index = self._memory.get(_INDEX)
        if index is not None:
            _mark_closed(index[0])
            self._remove_names()
            record = {
                "blocks": description["blocks"],
                "bytes": description["bytes"],
                "at": time.time(),
                "boot": boot_id(),
                "reason": reason,
                "on_purpose": on_purpose,
            }
            with suppress(OSError):  # on a full disk, the next start reports less
                save_record(self._folder.path(""), record)
        self._failed_starts = 0
        self._clear()
        return True

    def _remove_names(self) -> None:
        named = self._memory.get(_NAMED)
        for path in self._named_paths if named is not None else ():
            with suppress(OSError, ValueError):
                assert named is not None
                if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(named[0])):
                    os.unlink(path)

    def stop(self, *_: object) -> None:
        """Handle SIGTERM: soon release memory that no data plane serves, and end."""
        self._stopping = True


def _mark_closed(fd: int) -> None:
    """Set the word that tells engines that the memory was released. Nothing is mapped: a file that its owner truncates
    would end this process."""
    with suppress(OSError):
        os.pwrite(fd, b"\1", CLOSED_OFFSET)  # the lowest byte of a word that is 0


def uid_of(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(raw)[1])


# ---- the record of what the cache held (`dataplane.recovery.record` says what it is for)


def load_record(folder: str) -> Message:
    """Return the record of a state directory; empty if none can be read."""
    with suppress(OSError, ValueError, RecursionError):
        fd = os.open(f"{folder}/{RECORD_NAME}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            record = json.loads(os.read(fd, MAX_RECORD_BYTES))
        finally:
            os.close(fd)
        if isinstance(record, dict) and all(
            type(record.get(name, 0)) is int and record.get(name, 0) >= 0 for name in ("blocks", "bytes")
        ):
            return record
    return {}


def save_record(folder: str, record: Message) -> None:
    """Replace the record. Raises OSError."""
    making = f"{folder}/{RECORD_NAME}.new"
    with suppress(FileNotFoundError):
        os.unlink(making)  # of whatever type
    fd = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(json.dumps(record, separators=(",", ":")).encode())
    os.replace(making, f"{folder}/{RECORD_NAME}")


def boot_id() -> str:
    """Return the identity of this boot of the machine; empty if the kernel does not provide it."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""


USAGE = "usage: python -m dataplane.holding.holder STATE_DIRECTORY\n"


def main(arguments: list[str]) -> int:
    """Hold the memory of one state directory. A data plane that starts a holder of its own appends `--given`, and the
    descriptors of the first connection, the lock and the listener."""
    given = [int(each) for each in arguments[2:]] if arguments[1:2] == ["--given"] else []
    if len(arguments) not in (1, 5) or arguments[0].startswith("-"):
        sys.stderr.write(USAGE)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    for number in (signal.SIGINT, signal.SIGHUP):  # of the terminal in which the data plane runs
        signal.signal(number, signal.SIG_IGN)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:  # one descriptor for each segment, engine and connection
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    folder = os.path.abspath(arguments[0])
    try:
        if not given:  # the data plane that starts a holder has the folder, unless it was deleted since
            os.makedirs(folder, mode=0o700, exist_ok=True)
        holder = Holder(Folder(folder, *given[1:]), stay=not given)
    except BlockingIOError:
        sys.stderr.write(f"larder holder: another holder serves {folder}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"larder holder: {folder}: {error.strerror}\n")
        return 1
    signal.signal(signal.SIGTERM, holder.stop)
    if given:
        for fd in given:
            os.set_inheritable(fd, False)
        holder.serve(socket.socket(fileno=given[0]))
    os.chdir("/")
    holder.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
