"""The holder: a process that has duplicates of the descriptors of a data plane's memory, so that the memory outlives
every other process of Larder. It runs from the first byte of memory on.

`python -m dataplane.holding.holder FOLDER` is a holder that a service manager or a container runs, for the data planes
of one state directory, one after the other. A data plane that finds none starts one of its own (`--connection FD`),
which ends when it holds nothing and nobody is connected.

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
| `drop` | `memory` (kind, number) | memory that was freed |
| `serving` | `named_paths` | the start succeeded |
| `failed`, `leave` | | the start failed because of the memory, or for another reason |
| `stop` | `keep_s`, `blocks`, `bytes` | the data plane stops; the answer is `holding` |
| `release` | `reason`, `on_purpose` | release the memory; the answer is `released`; also from an operator |
| `describe`, `peek` | | from anybody; the answer is `holding`, and the memory for `peek` |

This module imports only the standard library: a holder takes 13 MB.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import resource
import selectors
import signal
import socket
import sys
import time
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
SEND_TIMEOUT_S = 5.0
CHECK_S = 1.0
"""Seconds between checks of the socket's name."""
SOCKETS_S = 10.0
"""Seconds for which the connections of a gateway's clients are held after a kill: without a data plane, the clients
would wait for answers that do not come."""
WRITER_ENDS_S = 120.0
"""Time beyond the deadline for a data plane that is starting, or that has lost its connection."""
WARM_STARTS = 3
"""Number of starts in a row that may fail because of the memory."""
DEFAULT_KEEP_S = 60.0
SOCKET_KINDS = ("listener", "connection")
_INDEX = ("index", 0)
_NAMED = ("named", 0)
_PAGE = 4096
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


# ---- messages


def send(connection: socket.socket, message: Message, fds: list[int] | None = None, flags: int = 0) -> None:
    """Send one message. Raises OSError."""
    data = json.dumps(message, separators=(",", ":")).encode()
    if fds:
        socket.send_fds(connection, [data], fds, flags | socket.MSG_NOSIGNAL)
    else:
        connection.send(data, flags | socket.MSG_NOSIGNAL)


def receive(connection: socket.socket) -> tuple[Message | None, list[int]]:
    """Receive one message and its descriptors, which the caller owns; None if the other end closed the connection.
    Raises OSError, BadMessage."""
    try:
        data, fds, _, _ = socket.recv_fds(
            connection, MAX_DATAGRAM_BYTES, MAX_FDS_PER_DATAGRAM, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:  # reported once, before the last datagrams
        data, fds, _, _ = socket.recv_fds(
            connection, MAX_DATAGRAM_BYTES, MAX_FDS_PER_DATAGRAM, socket.MSG_CMSG_CLOEXEC
        )
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


def send_memory(connection: socket.socket, files: Files) -> None:
    """Send all descriptors; a message with fewer than MAX_FDS_PER_DATAGRAM ends the list. Raises OSError."""
    items = list(files.items())
    for first in range(0, len(items) + 1, MAX_FDS_PER_DATAGRAM):
        part = items[first : first + MAX_FDS_PER_DATAGRAM]
        send(
            connection,
            {"memory": [[*key, nbytes] for key, (_, nbytes) in part]},
            [fd for _, (fd, _) in part],
        )


def receive_memory(connection: socket.socket) -> list[tuple[str, int, int]]:
    """Receive the descriptors of `send_memory` (kind, number, fd); the caller owns them. Raises OSError, BadMessage."""
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


def _number(message: Message, name: str) -> float:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise BadMessage(f"{name}: expected a number of at least 0, got {value!r:.40}")
    return value


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


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
        return os.fstat(self._directory).st_nlink == 0

    @property
    def has_name(self) -> bool:
        """Whether the socket in the folder is this one. True if the folder cannot be searched now."""
        return self._named_inode() == self._inode

    def listen(self) -> socket.socket:
        """Return a listening socket that gets its name when it is ready. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        making = self.path(f"{SOCKET_NAME}.new")
        before = os.umask(0o177)
        try:
            with suppress(FileNotFoundError):
                os.unlink(making)
            listener.bind(making)
            listener.listen(MAX_CONNECTIONS)
            listener.setblocking(False)
            os.rename(making, self.path(SOCKET_NAME))
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(before)
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
        self._settled = True
        """Whether the writer serves, or has said why its start ends."""
        self._failed_starts = 0
        self._keep_s = DEFAULT_KEEP_S
        self._named_paths: list[str] = []
        self._stopped: tuple[int, int] | None = None
        """Blocks and bytes of a data plane that stopped in good order."""
        self._gone_at = 0.0
        """Monotonic time at which the last writer's connection ended."""
        self._ended = False
        self._connections: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(folder.listener, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until nothing is held and nobody is connected, or for ever with `stay`."""
        while not self._is_over():
            for key, _ in self._selector.select(self._pause_s()):
                if key.fileobj is self._folder.listener:
                    self._accept()
                elif key.fileobj in self._connections:
                    assert isinstance(key.fileobj, socket.socket)
                    self._read(key.fileobj)
            self._check()
        self._folder.remove_name()

    def _is_over(self) -> bool:
        idle = not (self._stay or self._memory or self._connections)
        return self._ended or idle

    def _pause_s(self) -> float:
        if self._writer is not None or not self._memory:
            return CHECK_S
        return min(CHECK_S, max(0.0, self._deadline - time.monotonic()))

    @property
    def _deadline(self) -> float:
        return self._gone_at + self._keep_s

    def _check(self) -> None:
        """Do what has become due: release the memory, close a gateway's sockets, give the socket its name again."""
        now = time.monotonic()
        if self._folder.is_deleted:
            self._release("the state directory was deleted", on_purpose=False)
            self._ended = True
            return
        if not self._folder.has_name:
            with suppress(OSError):
                listener = self._folder.listen()
                self._selector.unregister(self._folder.listener)
                self._folder.listener.close()
                self._folder.listener = listener
                self._selector.register(listener, selectors.EVENT_READ)
        if self._writer is not None or not self._memory:
            return
        if now >= self._gone_at + SOCKETS_S:
            self._drop_sockets()
        if now >= self._deadline:
            if not self._data_plane_lives():
                why = "stop" if self._stopped else "end"
                self._release(
                    f"no data plane started within {self._keep_s:g} s after the {why} of the last one "
                    "(keep_memory_s)",
                    on_purpose=False,
                )
            elif now >= self._deadline + WRITER_ENDS_S:
                self._clear()

    def _data_plane_lives(self) -> bool:
        """Return whether a data plane uses the state directory. It may be about to connect, and may serve the memory:
        marking that as released would take away its cache."""
        try:
            fd = os.open(self._folder.path(DATA_PLANE_LOCK_NAME), os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    # ---- connections

    def _accept(self) -> None:
        with suppress(OSError):
            connection, _ = self._folder.listener.accept()
            if uid_of(connection) not in (os.geteuid(), 0):
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
            connection.close()
        if connection is self._writer:
            self._writer = None
            self._writer_gone()

    def _read(self, connection: socket.socket) -> None:
        """Serve all messages that are waiting."""
        while connection in self._connections:
            try:
                message, fds = receive(connection)
                if message is None:
                    self._close(connection)
                    return
                answer = self._serve(connection, message, fds)
            except BlockingIOError:
                return
            except BadMessage as error:
                answer = {"refused": str(error)}
            except OSError:
                self._close(connection)
                return
            if answer is not None:
                self._send(connection, answer)

    def _send(self, connection: socket.socket, answer: Message, files: Files | None = None) -> None:
        """Send an answer, and memory. A peer that does not read them within SEND_TIMEOUT_S loses the connection."""
        connection.settimeout(SEND_TIMEOUT_S)
        try:
            send(connection, answer)
            if files is not None:
                send_memory(connection, files)
            connection.setblocking(False)
        except (BrokenPipeError, ConnectionResetError):
            connection.setblocking(False)  # it has ended; what it sent before is still read
        except OSError:
            self._close(connection)

    def _serve(self, connection: socket.socket, message: Message, fds: list[int]) -> Message | None:
        """Serve one message, and return the answer, if it has one. Takes ownership of the descriptors. Raises
        BadMessage, OSError."""
        do = message.get("do")
        if do == "hold" and connection is self._writer:
            self._hold(message, fds)
            return None
        close_all(fds)
        if do == "take":
            self._take(connection, message)
            return None
        if do == "describe":
            return {"holding": self._description(), "to": do}
        if do == "peek":
            self._send(connection, {"holding": self._description(), "to": do}, self._memory)
            return None
        if do == "release":
            return self._asked_to_release(connection, message)
        if connection is not self._writer:
            raise BadMessage(f"do: expected take, describe, peek or release, got {do!r:.40}")
        return self._serve_writer(do, message)

    def _serve_writer(self, do: object, message: Message) -> Message | None:
        if do == "drop":
            for kind, number in _keys(message, 2):
                self._drop((kind, number), self._memory if self._listed else self._coming)
        elif do == "serving":
            paths = message.get("named_paths")
            if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
                raise BadMessage("named_paths: expected a list of paths")
            self._named_paths = paths
            self._settled, self._failed_starts = True, 0
        elif do == "failed":
            self._failed_starts += 1
            self._settled = True
        elif do == "leave":
            self._settled = True
        elif do == "stop":
            self._keep_s = _number(message, "keep_s")
            self._stopped = int(_number(message, "blocks")), int(_number(message, "bytes"))
            self._settled = True
            self._drop_sockets()
            return {"holding": self._description(), "to": do}
        else:
            raise BadMessage(
                f"do: expected hold, drop, serving, failed, leave, stop or release, got {do!r:.40}"
            )
        return None

    # ---- the writer

    def _take(self, connection: socket.socket, message: Message) -> None:
        if message.get("version") != VERSION:
            raise BadMessage(f"version: expected {VERSION}, got {message.get('version')!r:.40}")
        keep_s = _number(message, "keep_s")
        before = self._writer
        if before is not None and before is not connection:
            self._read(before)  # it may have ended, with messages that are waiting
        if self._writer is not None:
            raise BadMessage("another data plane is connected")
        self._writer, self._listed, self._settled = connection, False, False
        self._stopped = None
        self._keep_s = keep_s
        answer = {"holding": self._description(), "to": "take"}
        self._send(connection, answer, self._memory if message.get("adopt") else None)

    def _hold(self, message: Message, fds: list[int]) -> None:
        into = self._memory if self._listed else self._coming
        for (kind, number, nbytes), fd in zip(_keys(message, 3, fds), fds, strict=True):
            self._drop((kind, number), into)
            into[kind, number] = fd, nbytes
        if message.get("last") and not self._listed:
            self._listed = True
            self._replaced()
            self._memory, self._coming = self._coming, {}

    def _writer_gone(self) -> None:
        """Keep the memory of a data plane that stopped or was killed, perhaps before its list was complete."""
        self._gone_at = time.monotonic()
        if not self._settled and not self._listed:
            self._failed_starts += 1
        if self._coming:
            if not self._same_memory():
                self._replaced()
            for key, file in self._coming.items():
                self._drop(key, self._memory)
                self._memory[key] = file
            self._coming = {}
        if self._failed_starts >= WARM_STARTS and self._memory:
            self._release(f"{self._failed_starts} starts with it failed", on_purpose=False)

    def _replaced(self) -> None:
        """Close what was held, because the writer's memory replaces it. If it is not the same memory, engines that read
        it are told."""
        index = self._memory.get(_INDEX)
        if index is not None and not self._same_memory():
            with suppress(OSError, ValueError):
                _mark_closed(index[0])
        self._clear()

    def _same_memory(self) -> bool:
        held, coming = self._memory.get(_INDEX), self._coming.get(_INDEX)
        return held is None or coming is None or os.path.samestat(os.fstat(held[0]), os.fstat(coming[0]))

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

    def _asked_to_release(self, connection: socket.socket, message: Message) -> Message:
        reason = message.get("reason")
        if not isinstance(reason, str):
            raise BadMessage(f"reason: expected text, got {reason!r:.40}")
        description = self._description()
        if connection is self._writer:  # it has marked its memory itself
            self._settled, self._listed = True, True
            self._clear()
        elif self._writer is not None:
            return {"refused": "a data plane has the memory, or is taking it over"}
        else:
            self._release(reason[:MAX_REASON_CHARACTERS], on_purpose=bool(message.get("on_purpose")))
        return {"released": description, "to": "release"}

    def _release(self, reason: str, *, on_purpose: bool) -> None:
        """Mark the memory as released, remove the names of the named segment, and record why."""
        if not self._memory:
            return
        description = self._description()
        index = self._memory.get(_INDEX)
        if index is not None and self._writer is None:
            with suppress(OSError, ValueError):
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

    def _remove_names(self) -> None:
        named = self._memory.get(_NAMED)
        for path in self._named_paths if named is not None else ():
            with suppress(OSError):
                assert named is not None
                if os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(named[0])):
                    os.unlink(path)

    def stop(self, *_: object) -> None:
        """Handle SIGTERM: release memory that no data plane serves, and end."""
        if self._writer is None:
            self._release("the holder of the memory was stopped by SIGTERM", on_purpose=False)
        self._folder.remove_name()
        sys.exit(0)


def _mark_closed(fd: int) -> None:
    with mmap.mmap(fd, _PAGE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE) as page:
        view = memoryview(page).cast("Q")
        view[CLOSED_OFFSET // 8] = 1  # one aligned store: engines read it without a lock
        view.release()


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
