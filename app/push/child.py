"""One data plane process as its supervisor sees it: started by us, or met alive; its end, and the memory it shows."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from struct import calcsize, unpack

from app.push.holder import Holder, Kept

SEND_BUFFER_BYTES = 1 << 20
ANSWER_POLL_S = 0.002
_PR_SET_PDEATHSIG = 1
_SO_PEERPIDFD = 77
_CREDENTIALS = "iII"


class Child:
    """A data plane process. `holder` is the connection that brings its memory."""

    def __init__(
        self, pid: int, holder: Holder, process: asyncio.subprocess.Process | None, pidfd: int = -1
    ) -> None:
        self.pid = pid
        self.holder = holder
        self._process = process
        self._pidfd = pidfd
        """Of a process that is not our child."""

    @property
    def ours(self) -> bool:
        """We started it."""
        return self._process is not None

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    async def wait(self) -> int | None:
        """Its exit code, once it has ended; None when it was not our child."""
        if self._process is not None:
            return await self._process.wait()
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._pidfd)
        return None

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens when it has ended."""
        with suppress(ProcessLookupError):
            if self._process is not None:
                self._process.send_signal(number)
            else:
                signal.pidfd_send_signal(self._pidfd, number)

    def take_pidfd(self) -> int:
        """The pidfd of one that was met; the caller's from here on."""
        pidfd, self._pidfd = self._pidfd, -1
        return pidfd

    def close(self) -> None:
        self.holder.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


async def start(command: tuple[str, ...], environ: Mapping[str, str], kept: Kept, *, survives: bool) -> Child:
    """Start a process that waits to be told what memory there is (see `give`). Raises OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        for each in (ours, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                "--supervisor-fd",
                str(theirs.fileno()),
                env=environ,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
                preexec_fn=None if survives else _die_with(os.getpid()),
            )
        except BaseException:
            ours.close()
            raise
    return Child(process.pid, Holder(ours, kept), process)


async def give(child: Child, kept: Kept) -> None:
    """Hand all kept memory to a process that waits, which begins to serve with it. Its end shows elsewhere."""
    connection = child.holder.connection
    with suppress(BrokenPipeError, ConnectionResetError):
        for data, fds in list(kept.messages()):
            while True:
                try:
                    socket.send_fds(connection, [data], fds, socket.MSG_NOSIGNAL)
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.001)


async def answers(child: Child, heard: int, timeout_s: float) -> bool:
    """Whether a process that was given its memory says so, or ends, in that time; `heard` as it was before."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while child.holder.read() and child.holder.heard == heard:
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(ANSWER_POLL_S)
    return True


def meet(path: str, kept: Kept) -> Child | None:
    """The data plane that serves an engine socket, asked to show its memory; None when nobody does."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    connection.setblocking(False)
    holder = Holder(connection, kept)
    try:
        connection.connect(path)
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, calcsize(_CREDENTIALS))
        pid: int = unpack(_CREDENTIALS, raw)[0]
        pidfd = _pidfd_of(connection, pid)
        holder.ask()
    except OSError:
        holder.close()
        return None
    return Child(pid, holder, None, pidfd)


def _pidfd_of(connection: socket.socket, pid: int) -> int:
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return os.pidfd_open(pid)
    os.set_inheritable(pidfd, False)
    return pidfd


def _die_with(parent: int) -> Callable[[], None]:
    """What the child does between fork and exec: end when we do, also when we are killed."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    return prepare
