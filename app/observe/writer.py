"""Where log lines go: a file that never makes its writer wait and never raises."""

import os
import queue
import threading


class LogWriter:
    """A thread writes the lines to a descriptor; a full queue or a reader that went away drops and counts them.

    Whoever reads the log (a pipe, a terminal that was stopped) must not be able to stop pushes, answers or a clean end.
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
        """Nothing to do: lines are on their way."""

    def close(self) -> None:
        """Give the last lines a moment to get out."""
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
            except OSError:  # nobody reads the log any more
                self.dropped += 1
