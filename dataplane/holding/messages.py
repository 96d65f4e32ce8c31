"""The messages between a holder and its peers.

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
"""

from __future__ import annotations

import errno
import json
import os
import socket
from struct import Struct
from typing import Any

VERSION = 1
MAX_DATAGRAM_BYTES = 1 << 16
MAX_FDS_PER_DATAGRAM = 64
MAX_REASON_CHARACTERS = 300
CREDENTIALS = Struct("iII")

Key = tuple[str, int]
"""Kind and number of a piece of memory, or of a socket."""
Message = dict[str, Any]


class BadMessage(ValueError):
    """A message that the holder does not serve; the text says what was expected."""


class TooFewDescriptors(OSError):
    """The kernel discarded descriptors of a message, because this process may not open so many."""


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
            named = memory_entries(message, 3, fds)
            memory += [(kind, number, fd) for (kind, number, *_), fd in zip(named, fds, strict=True)]
            if len(fds) < MAX_FDS_PER_DATAGRAM:
                return memory
    except BaseException:
        close_all([fd for _, _, fd in memory])
        raise


def memory_entries(message: Message, length: int, fds: list[int] | None = None) -> list[list[Any]]:
    """Return the entries of the field `memory`. Closes the descriptors and raises BadMessage if they do not fit."""
    memory = message.get("memory")
    fits = (
        isinstance(memory, list)
        and (fds is None or len(fds) == len(memory))
        and all(
            isinstance(entry, list)
            and len(entry) == length
            and isinstance(entry[0], str)
            and all(type(number) is int and number >= 0 for number in entry[1:])
            for entry in memory
        )
    )
    if not fits:
        close_all(fds or [])
        raise BadMessage(f"memory: expected lists of {length} fields, and one descriptor for each")
    assert isinstance(memory, list)
    return memory


def paths_in(message: Message) -> list[str]:
    paths = message.get("named_paths")
    if not isinstance(paths, list) or not all(
        isinstance(path, str) and path.isprintable() and path.startswith("/") for path in paths
    ):
        raise BadMessage("named_paths: expected a list of paths")
    return paths


def number_in(message: Message, name: str) -> float:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
        raise BadMessage(f"{name}: expected a number of at least 0, got {value!r:.40}")
    return value


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def uid_of(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(raw)[1])
