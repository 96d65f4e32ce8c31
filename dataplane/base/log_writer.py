"""A log file whose writes never block and never raise."""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

MORE_S = 1.0


class LogWriter:
    """Writes lines to a descriptor on a thread; when the queue is full or the reader is gone, lines are dropped and
    counted.

    The reader of the log (a pipe, a stopped terminal) must not be able to block pushes, answers or a clean shutdown.
    """

    def __init__(self, descriptor: int, extra_lines: Callable[[bool], Iterable[str]] | None = None) -> None:
        """Write to a descriptor. `extra_lines` returns additional lines; it is called about once a second with False,
        and with True before the writer closes."""
        self.dropped = 0
        self._descriptor = descriptor
        self._extra_lines = extra_lines
        self._lines: queue.Queue[str | None] = queue.Queue(maxsize=10_000)
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        try:
            self._lines.put_nowait(text)
        except queue.Full:
            self.dropped += 1
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread writes the lines."""

    def close(self) -> None:
        """Wait up to a second for the remaining lines to be written."""
        try:
            self._lines.put(None, timeout=0.5)
        except queue.Full:
            return
        self._thread.join(timeout=0.5)

    def _run(self) -> None:
        wait_s = None if self._extra_lines is None else MORE_S
        polled_at = time.monotonic()
        while True:
            text: str | None = ""
            with suppress(queue.Empty):
                text = self._lines.get(timeout=wait_s)
            if text is None:
                self._write_extra_lines(True)
                return
            self._write(text)
            if time.monotonic() - polled_at >= MORE_S:
                self._write_extra_lines(False)
                polled_at = time.monotonic()

    def _write_extra_lines(self, closing: bool) -> None:
        for text in () if self._extra_lines is None else self._extra_lines(closing):
            self._write(text)

    def _write(self, text: str) -> None:
        data = text.encode(errors="replace")
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:  # the reader of the log is gone
            self.dropped += 1
