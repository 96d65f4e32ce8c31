"""A data plane process from its supervisor's view: started by it, or found running."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from dataplane.base.parent_death import ending_with
from dataplane.ipc.processes import has_exited, peer_of
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import VERSION, EngineReply, Ping, Refused, Serving
from dataplane.protocol.supervision import BEGIN, BEGUN, FAILED, MAX_BYTES, READY, SERVING

ANSWER_POLL_S = 0.002
KILLED_S = 10.0
"""Longest wait in seconds for a killed process to end. It takes longer only if the process hangs in a driver."""
_MAX_ANSWER_BYTES = 1 << 16

_decoder = decoder(EngineReply)


class NodeProcess:
    """A data plane process, and the connection on which it reports. It waits until `begin`, unless it was found
    running."""

    def __init__(self, pid: int, pidfd: int, connection: socket.socket) -> None:
        """Take ownership of the pidfd and of the connection."""
        connection.setblocking(False)
        self.pid = pid
        self.connection = connection
        self._pidfd = pidfd
        self.ready = False
        """Whether it has imported all its modules."""
        self.begun = False
        """Whether it has received `begin`."""
        self.serves = False
        self.refusal = ""
        """Why it ended before it served, in its own words."""
        self.other_version = False
        """Whether it is of a release that speaks another version of the engine protocol."""

    def read(self) -> bool:
        """Process all messages that are waiting. Return False if the other end is closed."""
        while True:
            try:
                data = self.connection.recv(_MAX_ANSWER_BYTES)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not data:
                return False
            self._on_message(data)

    def _on_message(self, data: bytes) -> None:
        if data == READY:
            self.ready = True
        elif data == BEGUN:
            self.begun = True
        elif data == SERVING:
            self.serves = True
        elif data.startswith(FAILED):
            self.refusal = data.removeprefix(FAILED)[:MAX_BYTES].decode(errors="replace")
        else:
            self._on_answer(data)

    def _on_answer(self, data: bytes) -> None:
        """Process the answer of a running data plane to `Ping` on its engine socket."""
        try:
            reply = decode(_decoder, data)
        except ProtocolError:
            reply = None
        self.serves = isinstance(reply, Serving)
        if isinstance(reply, Refused):
            self.other_version = reply.code in (Code.VERSION_MISMATCH, Code.MALFORMED)
            self.refusal = reply.message

    def begin(self) -> None:
        """Make it take the memory from the holder, and serve. Ignores that it has ended."""
        with suppress(OSError):
            self.connection.send(BEGIN, socket.MSG_NOSIGNAL)

    # ---- the process

    @property
    def ended(self) -> bool:
        return self._pidfd < 0 or has_exited(self._pidfd)

    def end(self, grace_s: float) -> None:
        """Ask it to end, wait, and kill it after `grace_s` seconds. Does nothing if it is closed."""
        if self._pidfd < 0:
            return
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILLED_S)):
            self.signal(number)
            if has_exited(self._pidfd, wait_s):
                break
        _reap(self._pidfd)
        self.close()

    def exit_code(self, timeout_s: float) -> int | None:
        """Return the exit code of a process that has closed its connection; None if it has not ended in time.

        `wait` still returns the code afterwards.
        """
        if self.read() or not has_exited(self._pidfd, timeout_s):
            return None
        return _reap(self._pidfd, os.WNOWAIT)

    async def wait(self) -> int | None:
        """Wait for its end and return the exit code; None if it is not a child of this process."""
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
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def close(self) -> None:
        self.connection.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


def start(
    command: tuple[str, ...],
    environ: Mapping[str, str],
    *,
    survives: bool,
    popen: Callable[..., Any] = subprocess.Popen,
) -> NodeProcess:
    """Start a process that waits for `begin`; `popen` takes what `subprocess.Popen` does. Raises OSError."""
    own_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with child_end:
        try:
            process = popen(
                [*command, "--supervisor-fd", str(child_end.fileno())],
                env=dict(environ),
                start_new_session=True,
                pass_fds=(child_end.fileno(),),
                preexec_fn=None if survives else ending_with(os.getpid(), signal.SIGKILL),
            )
            pidfd = os.pidfd_open(process.pid)
        except BaseException:
            own_end.close()
            raise
    process.returncode = 0  # the pidfd reaps it
    return NodeProcess(process.pid, pidfd, own_end)


def serves(child: NodeProcess, timeout_s: float) -> bool:
    """Wait until a data plane serves. Return False if it has ended, or on the timeout."""
    deadline = time.monotonic() + timeout_s
    while child.read() and not child.serves and time.monotonic() < deadline:
        time.sleep(ANSWER_POLL_S)
    return child.serves


async def has_begun(child: NodeProcess, timeout_s: float) -> bool:
    """Return whether a process that was sent `begin` answers, or ends, in time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while child.read() and not child.begun:
        if loop.time() >= deadline:
            return False
        await asyncio.sleep(ANSWER_POLL_S)
    return True


def find_running(path: str) -> NodeProcess | None:
    """Connect to the data plane on an engine socket, and ping it. Return None if there is none."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    connection.setblocking(False)
    try:
        connection.connect(path)
        connection.send(encode(Ping(1, VERSION)))
        peer = peer_of(connection)
    except OSError:
        connection.close()
        return None
    return NodeProcess(peer.pid, peer.pidfd, connection)


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
