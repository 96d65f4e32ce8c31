"""Fake systemd for a real data plane: receives its messages, stores descriptors by name, and passes them on."""

from __future__ import annotations

import os
import select
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from dataplane.recovery.service_manager import RETRY_S
from tests.dataplane.plane import START_TIMEOUT_S, WAIT_S, Plane, wait_for
from tests.forked import Forked

QUIET_S = 4 * RETRY_S


@dataclass
class Serviced(Plane):
    """A data plane that a service manager starts."""

    environment: dict[str, str] = field(default_factory=dict)
    """Overrides of variables that the service manager sets."""
    stored: dict[str, int] = field(default_factory=dict)
    """The descriptor store."""
    said: list[str] = field(default_factory=list)
    """Assignments of all other messages."""
    slow: bool = False
    """`fill` was called, and nothing was read since."""

    def __post_init__(self) -> None:
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(str(self.folder / "notify"))
        self.notify.setblocking(False)

    def read(self) -> None:
        """Take all messages that are waiting."""
        self.slow = False
        while True:
            try:
                data, fds, flags, _ = socket.recv_fds(self.notify, 4096, 8)
            except BlockingIOError:
                return
            assert not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
            lines = data.decode().splitlines()
            name = next((each.partition("=")[2] for each in lines if each.startswith("FDNAME=")), "stored")
            if "FDSTORE=1" in lines:
                assert "FDPOLL=0" in lines
                (fd,) = fds
                before = self.stored.get(name)
                if before is not None:
                    # systemd keeps both of two different files with one name; here that is an error.
                    assert os.path.samestat(os.fstat(before), os.fstat(fd)), name
                    os.close(fd)
                else:
                    self.stored[name] = fd
            elif "FDSTOREREMOVE=1" in lines:
                if name in self.stored:
                    os.close(self.stored.pop(name))
            else:
                self.said += lines

    def fill(self) -> None:
        """Fill the queue of messages, so that none of the data plane fits until `read`."""
        sent = True
        while sent:  # one socket alone may have fewer messages under way than fit
            sent = False
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other, suppress(BlockingIOError):
                other.setblocking(False)
                while True:
                    other.sendto(b"X=1", str(self.folder / "notify"))
                    sent = True
        self.slow = True

    def read_all(self) -> None:
        """Take messages until none comes for several of the data plane's attempts: some kernels queue ten only."""
        while select.select([self.notify], [], [], QUIET_S)[0]:
            self.read()

    def is_said(self, assignment: str) -> bool:
        self.read()
        return assignment in self.said

    def launch(self, passed: Sequence[tuple[str, int]] | None = None) -> None:
        """Start the process with descriptors, by default those of the store."""
        given = list(self.stored.items()) if passed is None else list(passed)
        environ = {**self.environ, "NOTIFY_SOCKET": str(self.folder / "notify"), "FDSTORE": "64"}
        if given:
            environ |= {
                "LISTEN_FDS": str(len(given)),
                "LISTEN_FDNAMES": ":".join(name for name, _ in given),
            }
        with (self.folder / "log").open("ab") as log:
            self.process = Forked(
                "tests.restart.support.serviced",
                ",".join(str(fd) for _, fd in given),
                pass_fds=[fd for _, fd in given],
                env=environ | self.environment,
                stdout=log,
                stderr=log,
            )

    def begin(self, passed: Sequence[tuple[str, int]] | None = None) -> Serviced:
        """`launch`, and wait until it reports that it serves."""
        self.said.clear()
        self.launch(passed)
        wait_for(lambda: self.is_said("READY=1") or not self.alive, "it serves", START_TIMEOUT_S)
        assert self.alive, self.log()
        return self

    def end(self) -> int:
        """SIGTERM, and take what it sends meanwhile; the exit code."""
        self.signal(signal.SIGTERM)
        wait_for(lambda: self._ended(), "it ends", WAIT_S)
        self.read()
        assert self.process is not None
        return self.process.wait(timeout=WAIT_S)

    def _ended(self) -> bool:
        if not self.slow:
            self.read()
        return not self.alive

    def die(self) -> None:
        """SIGKILL, and take what it sent before."""
        if not self.slow:
            self.read_all()
        self.kill()
        self.read()

    def close(self) -> None:
        self.kill()
        self.notify.close()
        for fd in self.stored.values():
            os.close(fd)
        self.stored.clear()
