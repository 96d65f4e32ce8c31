"""Take a segment's pages from the machine ahead of its first use.

First touch costs about ten times a copy: the kernel finds and zeroes a page at each fault. A worker thread allocates
the pages piece by piece, so that no reservation waits for it and engines find most of the memory ready.
"""

import os
import queue
import threading
from collections.abc import Callable

from dataplane.tiers.memory import SharedFile

PIECE_BYTES = 4 << 20


class Prefault:
    """One background thread. `submit` never waits; `stop` ends it after the piece in hand."""

    def __init__(self, on_failure: Callable[[str, OSError], None]) -> None:
        self._queue: queue.SimpleQueue[tuple[int, int, str] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name="prefault", daemon=True)
        self._thread.start()

    def submit(self, file: SharedFile) -> None:
        """Allocate a file's pages soon. Holds an fd of its own: the segment may be retired meanwhile."""
        self._queue.put((os.dup(file.fd), file.nbytes, file.name))

    def stop(self) -> None:
        self._stopping.set()
        self._queue.put(None)
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while (work := self._queue.get()) is not None:
            fd, nbytes, name = work
            try:
                for offset in range(0, nbytes, PIECE_BYTES):
                    if self._stopping.is_set():
                        break
                    os.posix_fallocate(fd, offset, min(PIECE_BYTES, nbytes - offset))
            except OSError as error:
                self._on_failure(name, error)
            finally:
                os.close(fd)
