"""Data planes that follow each other, with the test as supervisor: what is handed over can be changed in between."""

from __future__ import annotations

import json
import mmap
import os
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from app.supervisor.fd_store import FdReceiver, FdStore
from tests.dataplane.plane import START_TIMEOUT_S, Plane, wait_for
from tests.forked import Forked


@dataclass
class Relay(Plane):
    """`start`, `kill`, `start` again: the second goes on with the memory of the first."""

    kept: FdStore = field(default_factory=FdStore)
    module: str = "dataplane"
    """What the process runs."""
    holder: FdReceiver | None = None

    def start(self) -> Relay:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, (self.folder / "log").open("ab") as log:
            self.process = Forked(
                self.module,
                "--supervisor-fd",
                str(theirs.fileno()),
                env=self.environ,
                pass_fds=(theirs.fileno(),),
                stdout=log,
                stderr=log,
            )
        for data, fds in self.kept.messages():
            socket.send_fds(ours, [data], fds)
        holder = self.holder = FdReceiver(ours, self.kept)

        def serves() -> bool:
            return not holder.read() or holder.complete

        wait_for(serves, "the data plane serves", START_TIMEOUT_S)
        assert holder.complete, self.log()
        return self

    def kill(self) -> None:
        super().kill()
        if self.holder is not None:
            while self.holder.read():
                pass
            self.holder.close()
            self.holder = None

    def words(self, kind: str, number: int = 0) -> npt.NDArray[np.uint64]:
        """Kept memory as words that can be changed."""
        fd = self.kept.fd((kind, number))
        return np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size), np.uint64)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """Log lines of an event."""
        found = []
        for line in self.log().splitlines():
            with suppress(ValueError):
                entry = json.loads(line)
                if entry.get("event") == event:
                    found.append(entry)
        return found

    def wait_logged(self, event: str) -> list[dict[str, Any]]:
        """As `logged`, once there is one: lines are written by a thread."""
        wait_for(lambda: self.logged(event), f"{event} is logged")
        return self.logged(event)

    def end(self) -> None:
        self.kill()
        self.kept.clear()


def relay(folder: Path, **settings: str) -> Relay:
    """One that has not been started."""
    return Relay(folder, settings)
