"""A data plane process from its supervisor's view: started by it or adopted, its end, and the memory that it sends."""

from __future__ import annotations

import asyncio
import ctypes
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from struct import calcsize, unpack

from app.supervisor.fd_store import FdReceiver, FdStore

SEND_BUFFER_BYTES = 1 << 20
ANSWER_POLL_S = 0.002
KILLED_S = 10.0
"""Longest wait in seconds for a killed process to end. It takes longer only if the process hangs in a driver."""
_PR_SET_PDEATHSIG = 1
_SO_PEERPIDFD = 77
_CREDENTIALS = "iII"


class NodeProcess:
    """A data plane process. `receiver` is the connection over which it sends its memory."""

    def __init__(
        self, pid: int, receiver: FdReceiver, process: asyncio.subprocess.Process | None, pidfd: int = -1
    ) -> None:
        self.pid = pid
        self.receiver = receiver
        self._process = process
        self._pidfd = pidfd
        """pidfd of a process that asyncio does not wait for, otherwise -1."""

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    def end(self, grace_s: float) -> None:
        """Ask an early data plane to end, wait, and kill it after `grace_s` seconds. Does nothing if it is closed."""
        if self._pidfd < 0:
            return
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILLED_S)):
            self.signal(number)
            if self._has_exited(wait_s):
                break
        _reap(self._pidfd)
        self.close()

    def exit_code(self, timeout_s: float) -> int | None:
        """Return the exit code of an early data plane that has closed its connection; None if it has not ended in time.

        `wait` still returns the code afterwards.
        """
        if self.receiver.read() or not self._has_exited(timeout_s):
            return None
        return _reap(self._pidfd, os.WNOWAIT)

    def _has_exited(self, timeout_s: float) -> bool:
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    async def wait(self) -> int | None:
        """Wait for its end and return the exit code; None if it is not a child of this process."""
        if self._process is not None:
            return await self._process.wait()
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        loop.add_reader(self._pidfd, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._pidfd)
        return _reap(self._pidfd)

    def signal(self, number: int) -> None:
        """Send a signal. Does nothing if the process has ended or is closed."""
        with suppress(ProcessLookupError):
            if self._process is not None:
                self._process.send_signal(number)
            elif self._pidfd >= 0:
                signal.pidfd_send_signal(self._pidfd, number)

    def take_pidfd(self) -> int:
        """Return the pidfd of an adopted process and give up its ownership."""
        pidfd, self._pidfd = self._pidfd, -1
        return pidfd

    def close(self) -> None:
        self.receiver.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


async def start(
    command: tuple[str, ...], environ: Mapping[str, str], store: FdStore, *, survives: bool
) -> NodeProcess:
    """Start a process that waits until it is given its memory (see `send_memory`). Raise OSError."""
    ours, theirs = _connection()
    with theirs:
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
    return NodeProcess(process.pid, FdReceiver(ours, store), process)


def start_early(command: tuple[str, ...], environ: Mapping[str, str], *, survives: bool) -> NodeProcess:
    """Start a data plane without an event loop and without memory of a supervisor. Raise OSError.

    It takes over the memory of a keeper. `Supervisor.begin_with` supervises it. Its exit code says it if it has ended
    before it received anything.
    """
    ours, theirs = _connection()
    with theirs:
        try:
            process = subprocess.Popen(
                [*command, "--supervisor-fd", str(theirs.fileno())],
                env=dict(environ),
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
                preexec_fn=None if survives else _die_with(os.getpid()),
            )
            pidfd = os.pidfd_open(process.pid)
        except BaseException:
            ours.close()
            raise
    process.returncode = 0  # the pidfd reaps it
    store = FdStore()
    with suppress(BrokenPipeError, ConnectionResetError):
        for data, fds in store.messages():
            socket.send_fds(ours, [data], fds, socket.MSG_NOSIGNAL)
    return NodeProcess(process.pid, FdReceiver(ours, store), None, pidfd)


def _connection() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for each in (ours, theirs):
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return ours, theirs


def serves(child: NodeProcess, timeout_s: float) -> bool:
    """Wait until an early data plane serves. Return False if it has ended, or on the timeout."""
    deadline = time.monotonic() + timeout_s
    while child.receiver.read() and not child.receiver.serves and time.monotonic() < deadline:
        time.sleep(ANSWER_POLL_S)
    return child.receiver.serves


async def send_memory(child: NodeProcess, store: FdStore) -> None:
    """Send all kept memory to a waiting process, which then begins to serve. Ignores the end of the process."""
    connection = child.receiver.connection
    with suppress(BrokenPipeError, ConnectionResetError):
        for data, fds in list(store.messages()):
            while True:
                try:
                    socket.send_fds(connection, [data], fds, socket.MSG_NOSIGNAL)
                    break
                except BlockingIOError:
                    await asyncio.sleep(0.001)


async def has_answered(child: NodeProcess, received_before: int, timeout_s: float) -> bool:
    """Return whether a process that was given its memory answers, or ends, in time.

    `received_before` is the value of the receiver's counter before that.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while child.receiver.read() and child.receiver.messages_received == received_before:
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(ANSWER_POLL_S)
    return True


def adopt(path: str, store: FdStore) -> NodeProcess | None:
    """Connect to the data plane on an engine socket and ask it for its memory. Return None if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    connection.setblocking(False)
    receiver = FdReceiver(connection, store)
    try:
        connection.connect(path)
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, calcsize(_CREDENTIALS))
        pid: int = unpack(_CREDENTIALS, raw)[0]
        pidfd = _pidfd_of(connection, pid)
        receiver.ask()
    except OSError:
        receiver.close()
        return None
    return NodeProcess(pid, receiver, None, pidfd)


def _reap(pidfd: int, options: int = 0) -> int | None:
    """Return the exit code of an ended child; None if it is not a child of this process.

    `larder restart` keeps the process id, and thus the children.
    """
    try:
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | options)
    except ChildProcessError:
        return None
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _pidfd_of(connection: socket.socket, pid: int) -> int:
    try:
        pidfd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        return os.pidfd_open(pid)
    os.set_inheritable(pidfd, False)
    return pidfd


def _die_with(parent: int) -> Callable[[], None]:
    """Return a function to run between fork and exec that makes the child end with this process."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the prctl call
            os._exit(1)

    return prepare
