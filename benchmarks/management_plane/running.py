"""`larder up` of our own, with its data plane, in a folder that goes away, for benchmarks of the management plane."""

import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks.harness.instructions import InstructionCounter

READY_S = 60.0
LOOK_S = 0.02


_SETTINGS_TOKEN = "the-token-that-the-settings-of-a-benchmark-give"


class Running:
    """A server that answers only with a token."""

    token = ""
    """An operator's, as `larder tokens create` makes it."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
        self.environ = {
            **inherited,
            "LARDER_STATE_DIR": str(folder / "state"),
            "LARDER_DATAPLANE__KEEP_MEMORY_S": "0",
            "LARDER_LMCACHE_PORT": "0",
            "LARDER_HTTP_PORT": str(self.port),
            "LARDER_POOL_BYTES": "64MiB",
            "LARDER_APP__DATA_PLANE_SURVIVES": "false",
            "LARDER_APP__AUTH": "required",
            "LARDER_APP__ADMIN_TOKEN": _SETTINGS_TOKEN,
            "LARDER_APP__LOG_LEVEL": "warning",
            **settings,
        }
        with (folder / "log").open("wb") as log:
            command = [sys.executable, "-m", "app", "up"]
            self.process = subprocess.Popen(command, env=self.environ, stdout=log, stderr=log)
        self._instructions = InstructionCounter.of(self.process.pid)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", trust_env=False, timeout=READY_S)

    def until_ready(self) -> None:
        """RuntimeError when it never is."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.http.get("/healthz/fleet").is_success:
                    self._log_in()
                    return
            except httpx.TransportError:
                pass
            time.sleep(LOOK_S)
        raise RuntimeError("larder up did not become ready")

    def _log_in(self) -> None:
        self.token = self.new_token("bench")
        self.http.headers["Authorization"] = f"Bearer {self.token}"

    def new_token(self, name: str) -> str:
        """An operator's."""
        response = self.http.post(
            "/api/v1/tokens",
            json={"name": name, "role": "operator"},
            headers={"Authorization": f"Bearer {_SETTINGS_TOKEN}"},
        )
        return str(response.raise_for_status().json()["token"])

    def data_plane_pid(self) -> int:
        return int(self.http.get("/api/v1/nodes").json()["items"][0]["pid"])

    def memory_bytes(self, pid: int = 0) -> int:
        """Memory of the management plane's process, or of the one with this pid, without what it shares."""
        text = Path(f"/proc/{pid or self.process.pid}/smaps_rollup").read_text()
        return 1024 * sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("Private_"))

    def cpu_s(self, *, data_plane: bool = False) -> float:
        """Processor time that the process of the management plane, or the one of its data plane, has used."""
        pid = self.data_plane_pid() if data_plane else self.process.pid
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def instructions(self) -> float:
        """Return the instructions of both planes since the start; nan where they cannot be counted."""
        return float(self._instructions.read()) if self._instructions else math.nan

    def stop(self) -> None:
        self.http.close()
        if self._instructions:
            self._instructions.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)


@contextmanager
def running(**settings: str) -> Iterator[Running]:
    """Started with these variables, ready, and stopped at the end."""
    with tempfile.TemporaryDirectory(prefix="larder-bench-", dir="/tmp") as folder:
        server = Running(Path(folder), settings)
        try:
            server.until_ready()
            yield server
        finally:
            server.stop()
