"""Data planes that follow each other, with a holder whose memory the test may change in between."""

from __future__ import annotations

import mmap
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dataplane.holding import requests
from dataplane.holding.connection import HolderConnection
from dataplane.holding.messages import VERSION, close_all, receive_memory, send
from dataplane.holding.requests import answer_to
from tests.dataplane.plane import Plane, wait_for


@contextmanager
def writer(
    folder: Path, *, adopt: bool = False, leaves: bool = True
) -> Iterator[tuple[socket.socket, dict[tuple[str, int], int]]]:
    """A connection to the holder as the data plane's, with what it holds if `adopt`; it `leaves` without a fault, or
    dies."""
    connection = wait_for(lambda: requests.connect(folder), "the holder listens")
    files: dict[tuple[str, int], int] = {}
    try:
        answer_to(connection, {"do": "take", "version": VERSION, "keep_s": 60, "adopt": adopt})
        if adopt:
            files = {(kind, number): fd for kind, number, fd in receive_memory(connection)}
        yield connection, files
        if leaves:
            with suppress(OSError):
                send(connection, {"do": "leave"})
    finally:
        connection.close()
        close_all(list(files.values()))


@dataclass(frozen=True)
class MemoryFile:
    """A descriptor to give to a holder."""

    fd: int

    @property
    def nbytes(self) -> int:
        return os.fstat(self.fd).st_size


def hold(folder: Path, files: list[tuple[str, int, int]]) -> None:
    """Start a holder that has these files (kind, number, fd), as of a data plane that was killed."""
    connection = HolderConnection(folder, 60)
    assert connection.take() == ([], "")
    connection.list_all([(kind, number, MemoryFile(fd)) for kind, number, fd in files])
    connection.serving([])
    connection.end()


def peeked(folder: Path) -> list[tuple[str, int]]:
    """Return kind and number of all that the holder of a state directory has."""
    found = requests.peek(folder)
    close_all([fd for _, _, fd in found])
    return [(kind, number) for kind, number, _ in found]


@dataclass
class Relay(Plane):
    """`start`, `kill`, `start` again: the second goes on with the memory of the first."""

    fault: str = ""
    """Of the next one; a function of `tests.dataplane.recovery.support.faulty`."""

    @property
    def environ(self) -> dict[str, str]:
        return {**super().environ, "TEST_FAULT": self.fault}

    def start(self) -> Relay:
        self.module = "tests.dataplane.recovery.support.faulty" if self.fault else "dataplane"
        super().start()
        return self

    def kill(self) -> None:
        self.kill_process()

    def words(self, kind: str, number: int = 0) -> npt.NDArray[np.uint64]:
        """Held memory as words that can be changed."""
        memory = requests.peek(self.folder)
        try:
            fd = next(fd for each, at, fd in memory if (each, at) == (kind, number))
            return np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size), np.uint64)
        finally:
            close_all([fd for _, _, fd in memory])

    def forget(self, *keys: tuple[str, int]) -> None:
        """Make the holder of a data plane that was killed close some files, all of them by default."""
        with writer(self.folder, adopt=True) as (connection, files):
            rest = {key: (fd, os.fstat(fd).st_size) for key, fd in files.items() if keys and key not in keys}
            for key, (fd, nbytes) in rest.items():
                send(connection, {"do": "hold", "memory": [[*key, nbytes]]}, [fd])
            send(connection, {"do": "hold", "memory": [], "last": True})

    def holders(self) -> list[int]:
        """Process ids."""
        return requests.signal_holders(self.folder, 0)

    def peeked(self) -> list[tuple[str, int]]:
        return peeked(self.folder)

    def end(self) -> None:
        self.kill()
        with suppress(requests.HolderFailed):
            requests.release(self.folder, "the test is over")
