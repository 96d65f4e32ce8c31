"""Open extents of replicas, and the thread on which they are opened and closed: the device may take its time for that,
and closing waits for all that runs on it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from dataplane.devices.runtime import Opened


class Extent:
    """An open extent. Who reads from it is counted; it is closed when it is of no use and nobody does."""

    __slots__ = ("_opened", "address", "gone", "nbytes", "number", "plane", "users")

    def __init__(self, number: int, plane: int, opened: Opened, offset: int, nbytes: int) -> None:
        self.number = number
        self.plane = plane
        """Which data plane's number it is, as the link counts them."""
        self.address = opened.address + offset
        """In this process."""
        self.nbytes = nbytes
        self.users = 0
        self.gone = False
        """It is closed as soon as nobody reads from it."""
        self._opened = opened

    def close(self) -> None:
        """Raises DeviceError."""
        self._opened.close()


class Aside:
    """Does one thing after the other on a thread, which begins with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._work.put(work)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=_run, args=(self._work,), name=self._name, daemon=True)
                self._thread.start()

    def join(self) -> None:
        """Wait until all that was submitted is done. The thread ends; what is submitted later begins another."""
        with self._lock:
            thread, self._thread = self._thread, None
            work, self._work = self._work, SimpleQueue()
        if thread is not None:
            work.put(None)
            thread.join()


def _run(waiting: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := waiting.get()) is not None:
        work()
        del work  # it refers to what may be let go meanwhile
