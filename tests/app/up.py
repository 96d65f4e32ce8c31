"""A `larder up` as people start it, for the tests of the management plane."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx

from tests.app.command import run
from tests.app.migrated import migrated_folder
from tests.environ import clean_environ
from tests.forked import AnyProcess, Forked
from tests.free_port import free_port


class Up:
    """A `larder up` in a process of its own."""

    def __init__(self, folder: Path, stdout: int | None = None, /, **environ: str) -> None:
        self.environ = clean_environ() | {
            "LARDER_STATE_DIR": str(folder),
            "LARDER_DATAPLANE__KEEP_MEMORY_S": "0",
            "LARDER_APP__STANDBY": "false",
            "LARDER_LMCACHE_PORT": "0",
            "LARDER_HTTP_PORT": str(free_port()),
            "LARDER_POOL_BYTES": "16MiB",
            **environ,
        }
        if "LARDER_DATABASE_URL" not in environ:
            migrated_folder(Path(self.environ["LARDER_STATE_DIR"]))
        self.url = f"http://127.0.0.1:{self.environ['LARDER_HTTP_PORT']}"
        self.process = self._start({"env": self.environ, "stdout": stdout, "stderr": subprocess.PIPE, "text": True})

    def _start(self, options: dict[str, Any]) -> AnyProcess:
        return Forked("app", "up", **options)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, trust_env=False, verify=False, timeout=60)

    def until_ready(self, timeout_s: float = 90.0) -> None:
        until(lambda: self._answers("/healthz/fleet"), timeout_s)

    def until_serving(self) -> None:
        """Wait for a management plane, which may have no node."""
        until(lambda: self._answers("/healthz"), 90.0)

    def _answers(self, path: str) -> bool:
        try:
            return self.get(path).status_code == 200
        except httpx.TransportError:
            assert self.process.poll() is None, "larder up ended"
            return False

    def node(self) -> dict:
        return self.get("/api/v1/nodes").json()["items"][0]

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, env=self.environ, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    def end(self) -> str:
        """Stop it, and what a `kill -9` has left of it; what it wrote to its standard error."""
        if self.process.poll() is None:
            self.process.terminate()
        if self.process.wait(timeout=60) == -signal.SIGKILL:
            _end_data_planes(self.environ["LARDER_STATE_DIR"])
        _, errors = self.process.communicate(timeout=60)
        sys.stderr.write(errors)  # shown when the test fails
        return errors


def _end_data_planes(state_dir: str) -> None:
    """Kill what a killed Larder left serving in a folder of ours."""
    variable = f"LARDER_STATE_DIR={state_dir}".encode()
    for folder in Path("/proc").iterdir():
        try:
            ours = folder.name.isdigit() and variable in (folder / "environ").read_bytes().split(b"\0")
            if ours and b"dataplane" in (folder / "cmdline").read_bytes():
                os.kill(int(folder.name), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue


def until(holds: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
