"""LMCache's own server and Larder, each as a process of its own in a folder that goes away."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks.peers import environment

READY_S = 120.0
STOP_S = 20.0
LOOK_S = 0.05
LOG_LINES = 20


class Server(msgspec.Struct):
    """A server that answers."""

    name: str
    rpc_port: int
    http_port: int
    process: subprocess.Popen[bytes]
    folder: Path
    """Its log is `log` in there."""

    @property
    def rpc_url(self) -> str:
        return f"tcp://127.0.0.1:{self.rpc_port}"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


def free_port() -> int:
    """A TCP port of the loopback address that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def lmcache(pool_bytes: int, mode: str = "auto") -> Iterator[Server]:
    """LMCache's server with the pool named in shared memory, as its engine-driven clients need it. `mode` is
    `engine_driven`, `lmcache_driven` or `auto`. RuntimeError when it is not built or does not start."""
    python = environment.python(environment.LMCACHE)
    if python is None:
        raise RuntimeError("LMCache is not built: run `make peers`")
    rpc, http, prometheus = free_port(), free_port(), free_port()
    command = [
        *(str(python.with_name("lmcache")), "server", "--eviction-policy", "LRU", "--no-l1-use-lazy"),
        *("--host", "127.0.0.1", "--port", str(rpc), "--http-host", "127.0.0.1", "--http-port", str(http)),
        *("--prometheus-port", str(prometheus), "--l1-size-gb", str(pool_bytes / (1 << 30))),
        *("--supported-transfer-mode", mode, "--shm-name", f"peer{rpc}"),
    ]
    with _started("lmcache", command, os.environ | environment.QUIET, rpc, http, "/healthcheck") as server:
        yield server


@contextmanager
def larder(pool_bytes: int, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """`larder up` with its gateway on. RuntimeError when it does not start."""
    rpc, http = free_port(), free_port()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
    environ |= {
        "LARDER_HTTP_PORT": str(http),
        "LARDER_POOL_BYTES": str(pool_bytes),
        "LARDER_LMCACHE_PORT": str(rpc),
        "LARDER_DATAPLANE__LMCACHE_SHM_NAME": f"peer{rpc}",
        "LARDER_APP__DATA_PLANE_SURVIVES": "false",
        **(settings or {}),
    }
    with _started("larder", [sys.executable, "-m", "app", "up"], environ, rpc, http, "/healthz/fleet") as server:
        yield server


@contextmanager
def _started(
    name: str, command: list[str], environ: Mapping[str, str], rpc: int, http: int, ready: str
) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="larder-peer-", dir="/tmp") as name_of_folder:
        folder = Path(name_of_folder)
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env={**environ, **(_larder_settings(folder) if name == "larder" else {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        server = Server(name, rpc, http, process, folder)
        try:
            _until(lambda: process.poll() is not None or _answers(server.http_url + ready), f"{name} did not answer")
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended with {process.returncode}:\n{_tail(server)}")
            yield server
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, and SIGKILL when that does not help in time; the exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _tail(server: Server) -> str:
    return "\n".join(server.log().splitlines()[-LOG_LINES:])


def _until(event: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + READY_S
    while not event():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{otherwise} within {READY_S:.0f} s")
        time.sleep(LOOK_S)


def _larder_settings(folder: Path) -> dict[str, str]:
    return {"LARDER_STATE_DIR": str(folder), "LARDER_DATAPLANE__KEEP_MEMORY_S": "0"}
