"""Ten thousand quotas and as many pins from one YAML file: from the command line to the database, and to the node.

Real processes: `larder up` with its data plane, and the `larder` command. Meanwhile another client asks for something
else again and again: how long the slowest of these answers takes is the price that others pay.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

from benchmarks.harness.result import Result, at_most
from benchmarks.harness.setting import QUICK, Setting

RECORDS = 10_000
KEYS_A_PIN = 4
LARDER = (sys.executable, "-m", "app")
READY_S = 60.0
LOOK_S = 0.01
IDLE_S = 5.0
"""How long others ask while nothing is applied: what the machine alone costs them."""
STOP_S = 2 * READY_S


def run(setting: Setting) -> list[Result]:
    """First with nothing there, then again with nothing to do."""
    count = RECORDS // 20 if setting.effort == QUICK else RECORDS
    with tempfile.TemporaryDirectory(prefix="larder-bench-", dir="/tmp") as folder, _up(Path(folder)) as up:
        file = Path(folder) / "larder.yaml"
        file.write_text(text(count))
        with Others(up) as before:
            time.sleep(IDLE_S)
        with Others(up) as others:
            first_s = up.apply(file)
        again_s = up.apply(file)
        up.post({"document": "apiVersion: larder/v1\nmanaged_by: bench", "prune": True})
        up.until_in_sync()
        server_s = up.post({"document": file.read_text()})
        pushed_s = up.until_in_sync()
    return [
        at_most("apply_first_run", first_s, "s", 10.0),
        at_most("apply_second_run", again_s, "s", first_s),
        at_most("apply_server_time", server_s, "s", None),
        at_most("apply_pushed_after_commit", pushed_s, "s", 1.0),
        at_most("apply_slowest_get_meanwhile", others.slowest_s * 1e3, "ms", 100.0, before.slowest_s * 1e3),
        at_most("apply_median_get_meanwhile", others.median_s * 1e3, "ms", None, before.median_s * 1e3),
    ]


def text(count: int) -> str:
    """The document."""
    lines = ["apiVersion: larder/v1", "managed_by: bench", "quotas:"]
    for number in range(count):
        lines += [f"  - tenant: tenant-{number:05}", "    limit_bytes: 4GiB", f"    weight: {1 + number % 9}"]
        lines += [f"    note: made for the benchmark, number {number}"]
    lines.append("pins:")
    for number in range(count):
        lines += [f"  - name: pin-{number:05}", "    model: bench", f"    tenant: tenant-{number:05}"]
        lines += ["    strength: soft", "    keys:"]
        lines += [f"      - '{sha256(f'{number}.{key}'.encode()).hexdigest()}'" for key in range(KEYS_A_PIN)]
    return "\n".join(lines) + "\n"


class Up:
    """A running Larder of our own."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = int(probe.getsockname()[1])
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
        self.url = f"http://127.0.0.1:{port}"
        self.environ = {
            **inherited,
            "LARDER_STATE_DIR": str(folder / "state"),
            "LARDER_DATAPLANE__KEEP_MEMORY_S": "0",
            "LARDER_LMCACHE_PORT": "0",
            "LARDER_HTTP_PORT": str(port),
            "LARDER_POOL_BYTES": "64MiB",
            "LARDER_URL": self.url,
            "LARDER_APP__DATA_PLANE_SURVIVES": "false",
        }
        self._log = (folder / "log").open("wb")
        self.process = subprocess.Popen([*LARDER, "up"], env=self.environ, stderr=self._log, stdout=self._log)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, trust_env=False, timeout=READY_S)

    def until_ready(self) -> None:
        """RuntimeError when it never is."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self.get("/healthz/fleet").is_success:
                    return
            except httpx.TransportError:
                pass
            time.sleep(LOOK_S)
        raise RuntimeError("larder up did not become ready")

    def apply(self, file: Path) -> float:
        """Seconds of `larder apply`, its start included; it does not wait for nodes."""
        started = time.perf_counter()
        command = [*LARDER, "apply", "-f", str(file), "--yes", "--wait", "0s"]
        ended = subprocess.run(command, env=self.environ, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"larder apply: {ended.stderr.strip()[:500]}")
        return time.perf_counter() - started

    def post(self, body: dict[str, Any]) -> float:
        """Seconds that the server took to answer an apply."""
        started = time.perf_counter()
        answer = httpx.post(self.url + "/api/v1/apply", json=body, trust_env=False, timeout=READY_S)
        if not answer.is_success:
            raise RuntimeError(f"apply: {answer.text[:500]}")
        return time.perf_counter() - started

    def until_in_sync(self) -> float:
        """Seconds until the node has applied the newest generation of everything."""
        started = time.perf_counter()
        expected = self.get("/api/v1/export?type=policies").json()["generations"]
        while time.perf_counter() < started + READY_S:
            for node in self.get("/api/v1/nodes").json()["items"]:
                observed = {kind: report["generation"] for kind, report in node["observed"].items()}
                if all(observed.get(kind, 0) >= number for kind, number in expected.items()):
                    return time.perf_counter() - started
            time.sleep(LOOK_S)
        raise RuntimeError("the node did not apply what was wanted")

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=READY_S)
        self._log.close()


@contextmanager
def _up(folder: Path) -> Iterator[Up]:
    up = Up(folder)
    try:
        up.until_ready()
        yield up
    finally:
        up.end()


class Others:
    """Asks for the policies a hundred times a second, until the block ends."""

    def __init__(self, up: Up) -> None:
        self._up = up
        self._over = threading.Event()
        self._taken_s: list[float] = []
        self._thread = threading.Thread(target=self._poll)

    def __enter__(self) -> "Others":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            raise RuntimeError(f"the requests beside the measurement did not end in {STOP_S:g} s")

    def _poll(self) -> None:
        with httpx.Client(base_url=self._up.url, trust_env=False, timeout=READY_S) as client:
            client.get("/api/v1/policies")
            while not self._over.wait(LOOK_S):
                started = time.perf_counter()
                client.get("/api/v1/policies").raise_for_status()
                self._taken_s.append(time.perf_counter() - started)

    @property
    def slowest_s(self) -> float:
        return max(self._taken_s)

    @property
    def median_s(self) -> float:
        return sorted(self._taken_s)[len(self._taken_s) // 2]
