"""Requests to the holder of a state directory."""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dataplane.holding.folder import SOCKET_NAME
from dataplane.holding.messages import (
    MAX_REASON_CHARACTERS,
    BadMessage,
    Message,
    close_all,
    receive,
    receive_memory,
    send,
    uid_of,
)

ANSWER_TIMEOUT_S = 5.0
KILLED_S = 5.0
"""Time for the kernel to end a killed holder."""
PROGRAM, MODULE = str(Path(__file__).with_name("holder.py")), "dataplane.holding.holder"


class HolderFailed(Exception):
    """A holder does not serve a request; the message says why."""


class HolderSilent(HolderFailed):
    """The holder did not answer; it may do so later."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a holder holds."""

    pid: int
    files: int
    blocks: int
    """READY blocks, as the data plane counted them at its stop, or recorded them before a kill."""
    bytes: int
    connected: bool
    """Whether a data plane is connected, which serves this memory or is about to."""
    seconds_left: float | None
    """Seconds until the memory is released; None if nothing is held, or a data plane is connected."""

    @classmethod
    def of(cls, message: Any) -> Held:
        """Read a description. Raises HolderFailed."""
        try:
            return cls(*(message[name] for name in cls.__slots__))
        except (KeyError, TypeError):
            raise HolderFailed("the holder sent an unexpected answer") from None


def describe(folder: Path) -> Held | None:
    """Return what the holder of a state directory holds; None if there is no holder. Raises HolderFailed."""
    answer = _request(folder, {"do": "describe"})
    return None if answer is None else Held.of(answer.get("holding"))


def release(folder: Path, reason: str) -> Held | None:
    """Make the holder of a state directory release its memory, and return what that was; None if there is no holder.
    Raises HolderFailed."""
    answer = _request(folder, {"do": "release", "reason": reason[:MAX_REASON_CHARACTERS], "on_purpose": True})
    return None if answer is None else Held.of(answer.get("released"))


def peek(folder: Path) -> list[tuple[str, int, int]]:
    """Return duplicates of all descriptors (kind, number, fd) that the holder of a state directory has; the caller owns
    them. Raises HolderFailed."""
    connection = connect(folder)
    if connection is None:
        return []
    with connection:
        try:
            answer_to(connection, {"do": "peek"})
            return receive_memory(connection)
        except (OSError, BadMessage) as error:
            raise HolderSilent(f"the holder of the memory does not answer: {error}") from None


def _request(folder: Path, message: Message) -> Message | None:
    try:
        connection = connect(folder)
    except OSError as error:
        raise HolderFailed(f"the holder of the memory cannot be asked: {error.strerror}") from None
    if connection is None:
        return None
    with connection:
        return answer_to(connection, message)


def answer_to(connection: socket.socket, message: Message, fd: int = -1) -> Message:
    """Send a request, with a descriptor if there is one, and return the answer. Raises HolderFailed, HolderSilent."""
    try:
        send(connection, message, [fd] if fd >= 0 else None)
        answer, fds = receive(connection)
    except (OSError, BadMessage) as error:
        raise HolderSilent(f"the holder of the memory does not answer: {error}") from None
    close_all(fds)
    if answer is None:
        raise HolderSilent("the holder of the memory closed the connection")
    if "refused" in answer:
        raise HolderFailed(str(answer["refused"]))
    return answer


def connect(folder: Path) -> socket.socket | None:
    """Return a connection to the holder of a state directory; None if there is none. Raises HolderFailed, HolderSilent;
    OSError if this process may not open more descriptors."""
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreachable(error) from None
    try:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    except OSError:
        os.close(directory)
        raise
    connection.settimeout(ANSWER_TIMEOUT_S)  # also for a holder that accepts nothing
    try:
        # A state directory's path may be longer than the address of a socket.
        connection.connect(f"/proc/self/fd/{directory}/{SOCKET_NAME}")
    except (BlockingIOError, TimeoutError):
        connection.close()
        raise HolderSilent("the holder of the memory accepts no connection") from None
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except OSError as error:
        connection.close()
        raise _unreachable(error) from None
    finally:
        os.close(directory)
    uid = uid_of(connection)
    if uid not in (os.geteuid(), 0):
        connection.close()
        raise HolderFailed(f"the holder of the memory runs as uid {uid}, expected {os.geteuid()} or 0")
    return connection


def _unreachable(error: OSError) -> Exception:
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        return error
    return HolderFailed(f"the holder of the memory cannot be reached: {error.strerror}")


def signal_holders(folder: Path, number: int) -> list[int]:
    """Send a signal to the holders of a state directory, and wait for their ends if it is SIGKILL. Return the ids of
    their processes. Those of another pid namespace are not found, and none if descriptors are short."""
    pids: list[int] = []
    expected = str(folder.absolute())
    try:
        entries = list(Path("/proc").iterdir())
    except OSError:  # this process may not open more descriptors
        return pids
    for entry in entries:
        if not entry.name.isdecimal():
            continue
        with suppress(OSError, ValueError):
            pidfd = os.pidfd_open(int(entry.name))
            try:
                arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if expected in arguments and (PROGRAM in arguments or MODULE in arguments):
                    signal.pidfd_send_signal(pidfd, number)
                    if number == signal.SIGKILL:
                        select.select([pidfd], [], [], KILLED_S)
                    pids.append(int(entry.name))
            finally:
                os.close(pidfd)
    return pids
