"""The data plane's side of the memory keeper: hand memory over at a stop, take it back at a start."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dataplane.base.child_command import module_command
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import ProtocolError
from dataplane.protocol.engine import HeldMemory
from dataplane.protocol.keeper import (
    MAX_REASON_CHARACTERS,
    SOCKET_NAME,
    VERSION,
    Keep,
    Keeping,
    Release,
    Reply,
    Take,
    Taken,
)
from dataplane.recovery.keeper import CREDENTIALS, receive, send

MODULE = "dataplane.recovery.keeper"
START_TIMEOUT_S = 10.0
"""Time within which the keeper's interpreter must start, on a busy machine."""
ANSWER_TIMEOUT_S = 5.0
KILLED_S = 5.0
"""Time for the kernel to end a killed keeper."""

_replies = decoder(Reply)

File = tuple[str, int, int, int]
"""Kind, number, descriptor, and size in bytes."""


class KeeperFailed(Exception):
    """The memory cannot be handed over or taken; the message says why."""


def hand_over(folder: Path, keep: Keep, files: Iterable[File]) -> int:
    """Start a keeper that holds these files, and return its pid. The caller keeps its own descriptors. Raises
    KeeperFailed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.settimeout(START_TIMEOUT_S)
        with theirs:
            try:
                process = subprocess.Popen(
                    module_command(MODULE, str(theirs.fileno()), str(folder.absolute())),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError as error:
                raise KeeperFailed(f"the memory keeper cannot be started: {error}") from None
        try:
            ours.send(encode(keep), socket.MSG_NOSIGNAL)
            send(ours, [(HeldMemory(kind, number, nbytes), fd) for kind, number, fd, nbytes in files])
            answer = decode(_replies, ours.recv(4096))
        except (OSError, ProtocolError) as error:
            process.kill()
            process.wait(10)
            raise KeeperFailed(f"the memory keeper does not take the memory: {error}") from None
        if not isinstance(answer, Keeping):
            process.kill()
            process.wait(10)
            raise KeeperFailed(f"the memory keeper refused: {getattr(answer, 'message', answer)}")
        return process.pid


class KeeperSilent(KeeperFailed):
    """The keeper did not answer; it may do so later."""


class KeptMemory:
    """Memory that a keeper holds and that this process is about to adopt. Without `taken` or `release`, `close` leaves
    it to the keeper."""

    def __init__(
        self, connection: socket.socket, keeping: Keeping, memory: list[tuple[HeldMemory, int]]
    ) -> None:
        self._connection = connection
        self.keeping = keeping
        self._memory = memory

    @classmethod
    def find(cls, folder: Path) -> KeptMemory | None:
        """Take the memory that the keeper of a state directory holds; None if there is no keeper. Raises
        KeeperFailed, KeeperSilent."""
        connection = connect(folder)
        if connection is None:
            return None
        try:
            connection.send(encode(Take(VERSION)), socket.MSG_NOSIGNAL)
            answer = decode(_replies, connection.recv(4096))
            if not isinstance(answer, Keeping):
                raise KeeperFailed(getattr(answer, "message", "the memory keeper gave another answer"))
            return cls(connection, answer, receive(connection))
        except OSError as error:
            connection.close()
            raise KeeperSilent(f"the memory keeper does not answer: {error}") from None
        except ProtocolError as error:
            connection.close()
            raise KeeperFailed(f"the memory keeper does not hand the memory over: {error}") from None
        except KeeperFailed:
            connection.close()
            raise

    def files(self) -> list[tuple[str, int, int]]:
        """Return (kind, number, descriptor) of each file; the caller owns the descriptors from then on."""
        files = [(each.kind, each.number, fd) for each, fd in self._memory]
        self._memory = []
        return files

    def taken(self) -> None:
        """Tell the keeper that this process serves the memory now; the keeper ends."""
        self._say(Taken(self.keeping.memory))

    def release(self, reason: str, *, on_purpose: bool = False) -> None:
        """Make the keeper release the memory and end, because the memory cannot be adopted."""
        self._say(Release(reason[:MAX_REASON_CHARACTERS], on_purpose))

    def _say(self, message: Taken | Release) -> None:
        with suppress(OSError):
            self._connection.send(encode(message), socket.MSG_NOSIGNAL)
            self._connection.recv(4096)  # wait for the keeper's end: then its socket and record are final
        self.close()

    def close(self) -> None:
        self._connection.close()
        for _, fd in self._memory:
            os.close(fd)
        self._memory = []


def connect(folder: Path) -> socket.socket | None:
    """Return a connection to the keeper of a state directory; None if there is none. Raises KeeperFailed,
    KeeperSilent."""
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    connection.settimeout(ANSWER_TIMEOUT_S)  # also for a keeper that accepts nothing
    try:
        # A state directory's path may be longer than the address of a socket.
        connection.connect(f"/proc/self/fd/{directory}/{SOCKET_NAME}")
    except (BlockingIOError, TimeoutError):
        connection.close()
        raise KeeperSilent("the memory keeper accepts no connection") from None
    except OSError:
        connection.close()
        return None
    finally:
        os.close(directory)
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    uid = CREDENTIALS.unpack(raw)[1]
    if uid not in (os.geteuid(), 0):
        connection.close()
        raise KeeperFailed(f"the memory keeper runs as uid {uid}, expected {os.geteuid()} or 0")
    return connection


def signal_keepers(folder: Path, number: int) -> list[int]:
    """Send a signal to the keepers of a state directory, and wait for their ends if it is SIGKILL. Return the ids of
    their processes."""
    found = []
    wanted = str(folder.absolute())
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        with suppress(OSError, ValueError):
            pidfd = os.pidfd_open(int(entry.name))
            try:
                arguments = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if MODULE in arguments and wanted in arguments:
                    signal.pidfd_send_signal(pidfd, number)
                    if number == signal.SIGKILL:
                        select.select([pidfd], [], [], KILLED_S)
                    found.append(int(entry.name))
            finally:
                os.close(pidfd)
    return found
