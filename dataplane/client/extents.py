"""Open extents of GPU copies, and the thread that opens and closes them.

A separate thread is needed because the device may be slow, and because closing waits for all work that runs on it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from dataplane.devices.runtime import OpenedMemory


class OpenExtent:
    """An open extent with a count of its readers. It is closed when it is no longer needed and has no readers."""

    __slots__ = ("_opened", "address", "gone", "nbytes", "number", "plane", "users")

    def __init__(self, number: int, plane: int, opened: OpenedMemory, offset: int, nbytes: int) -> None:
        self.number = number
        self.plane = plane
        """Data plane that numbered the extent, as counted by the link."""
        self.address = opened.address + offset
        """Address in this process."""
        self.nbytes = nbytes
        self.users = 0
        self.gone = False
        """Whether to close it as soon as it has no readers."""
        self._opened = opened

    def close(self) -> None:
        """Close the extent. Raise DeviceError."""
        self._opened.close()


class Aside:
    """Runs work items one after another on a thread, which starts with the first item."""

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

    def join(self, timeout_s: float) -> bool:
        """Wait until all submitted work is done; return whether it is. Later work starts another thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            work, self._work = self._work, SimpleQueue()
        if thread is not None:
            work.put(None)
            thread.join(timeout_s)
            return not thread.is_alive()
        return True


def _run(waiting: SimpleQueue[Callable[[], None] | None]) -> None:
    while (work := waiting.get()) is not None:
        work()
        del work  # it refers to objects that may be collectable now
