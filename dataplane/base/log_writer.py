"""A log file whose writes never block and never raise."""

import os
import queue
import threading


class LogWriter:
    """Writes lines to a descriptor on a thread; when the queue is full or the reader is gone, lines are dropped and
    counted.

    The reader of the log (a pipe, a stopped terminal) must not be able to block pushes, answers or a clean shutdown.
    """

    def __init__(self, descriptor: int) -> None:
        self.dropped = 0
        self._descriptor = descriptor
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
        while (text := self._lines.get()) is not None:
            data = text.encode(errors="replace")
            try:
                while data:
                    data = data[os.write(self._descriptor, data) :]
            except OSError:  # the reader of the log is gone
                self.dropped += 1
