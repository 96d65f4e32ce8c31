"""A process that answers lines: a JSON request on its standard input, a JSON response on its standard output."""

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

END_S = 60.0


class LineProcess:
    """A process whose standard error goes to a file. Errors of the process are RuntimeErrors with the end of it."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path, answer_s: float) -> None:
        """Start the process in the folder of `log`. `answer_s`: longest wait for a response, in seconds."""
        self.log = log
        self._answer_s = answer_s
        self._pending = b""
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd=log.parent
            )

    def do(self, operation: str, **fields: Any) -> Any:
        """Send a request and return its response. Raise RuntimeError if none arrives in time."""
        self.send(operation, **fields)
        return self.answer()

    def send(self, operation: str, **fields: Any) -> None:
        """Send a request. If the process has ended, `answer` raises."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": operation, **fields}).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def answer(self, timeout_s: float | None = None) -> Any:
        """Return the next response. Raise RuntimeError if none arrives in time."""
        timeout_s = self._answer_s if timeout_s is None else timeout_s
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            part = b""
            if select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                part = os.read(descriptor, 1 << 20)
            if not part:
                raise RuntimeError(f"no response of vLLM: {self.complaint()}")
            self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)

    def complaint(self) -> str:
        """Return the last line of the log that names an error, or else its end."""
        lines = self.log.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if "Error" in line), "; ".join(lines[-3:]))

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.wait(END_S)

    def close(self) -> None:
        """End the process: close its standard input, and kill it if it does not end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self.process.stdout.close()
