"""Take a segment's pages from the machine ahead of its first use.

First touch costs about ten times a copy: the kernel finds and zeroes a page at each fault. A worker thread allocates
the pages piece by piece, so that no reservation waits for it and engines find most of the memory ready.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from dataplane.tiers.memory import SharedFile

PIECE_BYTES = 4 << 20
MAX_WAITING = 64
"""Segments beyond these are left to first touch: prefaulting is a favour, not a debt."""


class Prefault:
    """One background thread. `submit` and `cancel` never wait and never raise; `stop` ends it after the piece in hand.

    A cancelled segment holds no page afterwards: what the thread allocated while it was cancelled is given back.
    """

    def __init__(self, on_failure: Callable[[str, OSError], None]) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[int, SharedFile] = {}
        self._current = 0
        """The segment whose pages are being taken; 0 for none."""
        self._stopping = False
        self._on_failure = on_failure
        self._thread = threading.Thread(target=self._run, name="prefault", daemon=True)
        self._thread.start()

    def submit(self, segment: int, file: SharedFile) -> None:
        """Allocate a segment's pages soon. Say `cancel` before the file is closed."""
        with self._changed:
            if len(self._waiting) < MAX_WAITING:
                self._waiting[segment] = file
                self._changed.notify_all()

    def cancel(self, segment: int) -> None:
        """Forget a segment; when this returns the thread does not touch it any more (at most one piece later)."""
        with self._changed:
            self._waiting.pop(segment, None)
            if self._current == segment:
                self._current = 0
                self._changed.wait_for(lambda: not self._busy or self._stopping, timeout=1)

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout=2)

    _busy = False
    """A piece is being allocated; under the lock."""

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._stopping)
                if self._stopping:
                    return
                segment = next(iter(self._waiting))
                file = self._waiting.pop(segment)
                self._current = segment
            self._allocate(segment, file)

    def _allocate(self, segment: int, file: SharedFile) -> None:
        for offset in range(0, file.nbytes, PIECE_BYTES):
            with self._changed:
                if self._current != segment or self._stopping:
                    return
                self._busy = True
            try:
                os.posix_fallocate(file.fd, offset, min(PIECE_BYTES, file.nbytes - offset))
            except OSError as error:
                self._on_failure(file.name, error)
                return
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()
