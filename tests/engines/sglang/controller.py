"""SGLang's controllers of the hierarchical cache, with Larder's backend, in processes of their own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from benchmarks.peers.environment import QUIET, SGLANG, python

SCRIPT = Path(__file__).parent / "scripts" / "serve.py"
REPOSITORY = Path(__file__).parents[3]
START_S = 600.0
ANSWER_S = 120.0
PYTHON = python(SGLANG)
"""The Python interpreter of SGLang's environment; None if the environment is not built."""


class Process:
    """A process with controllers. `do` waits for its answers for a bounded time."""

    def __init__(self, log: Path) -> None:
        self.log = log
        own = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [str(PYTHON), str(SCRIPT)],
                env={**own, **QUIET, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(log.parent)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=log.parent,
            )
        self._pending = b""

    def ready(self) -> Self:
        """Wait until SGLang is imported."""
        assert self.answer(START_S) == {"ready": True}
        return self

    def do(self, what: str, **fields: Any) -> Any:
        """Send a request and return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": what, **fields}).encode() + b"\n")
        self.process.stdin.flush()
        return self.answer(ANSWER_S)

    def answer(self, timeout_s: float) -> Any:
        """Return the next answer."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            assert left > 0, f"no answer in {timeout_s} s:\n{self.text()}"
            if select.select([self.process.stdout], [], [], left)[0]:
                part = os.read(self.process.stdout.fileno(), 1 << 20)
                assert part, f"the process ended:\n{self.text()}"
                self._pending += part
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)

    def text(self) -> str:
        """Return the end of the process's log."""
        return self.log.read_text(errors="replace")[-6000:]

    def close(self) -> None:
        """End the process, by a signal only if it does not end by itself."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)
        self.process.stdout.close()


class Controller:
    """A controller and its host pool in a process."""

    def __init__(
        self,
        process: Process,
        name: str,
        socket: str,
        *,
        layout: str = "page_first",
        kind: str = "mha",
        rank: int = 0,
        ranks: int = 1,
        **settings: Any,
    ) -> None:
        """Open the controller. `settings`: keys of the extra config, with `larder_x` for `larder.x`."""
        extra = {
            "backend_name": "larder",
            "module_path": "dataplane.engines.sglang.backend",
            "class_name": "LarderBackend",
            "interface_v1": 1,
            "larder.socket": socket,
            "larder.timeout_s": 5.0,
            **{key.replace("larder_", "larder.", 1): value for key, value in settings.items()},
        }
        self._process, self._name = process, name
        self.opened = self.do("open", extra=extra, layout=layout, kind=kind, rank=rank, ranks=ranks)

    def do(self, what: str, **fields: Any) -> Any:
        """Send a request and return its answer."""
        answer = self._process.do(what, on=self._name, **fields)
        assert "failed" not in answer, answer["failed"]
        return answer

    def close(self) -> None:
        """Detach the backend."""
        if "error" not in self.opened:
            assert self.do("close") == {"closed": True}
