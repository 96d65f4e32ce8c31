"""Larder and vLLM servers as child processes, which end with the example."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.peers.environment import CONNECTOR, QUIET, python

REPOSITORY = Path(__file__).parents[2]
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
START_S = 300.0
STOP_S = 20.0
VLLM_ON_CPU = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class ExampleError(Exception):
    """Raised when the example cannot continue. The message says why."""


@dataclass
class Server:
    """A process with an HTTP interface."""

    name: str
    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def wait_for(self, path: str) -> None:
        """Wait until a request for the path succeeds. Raise ExampleError after five minutes, or if the process ends."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(httpx.TransportError):
                if httpx.get(self.url + path, trust_env=False).is_success:
                    return
            time.sleep(0.2)
        last = "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
        raise ExampleError(f"{self.name} did not start (exit code {self.process.poll()}):\n{last}")


@contextmanager
def larder(folder: Path) -> Iterator[Server]:
    """Run `larder up` with its state in a new folder."""
    folder.mkdir()
    port = _free_port()
    settings = {
        "LARDER_STATE_DIR": str(folder),
        "LARDER_HTTP_PORT": str(port),
        "LARDER_LMCACHE_PORT": "0",
        "LARDER_POOL_BYTES": "256MiB",
        # The cache ends with the example.
        "LARDER_DATAPLANE__KEEP_MEMORY_S": "0",
        "LARDER_APP__DATA_PLANE_SURVIVES": "false",
    }
    with _running([sys.executable, "-m", "app", "up"], settings, folder) as process:
        yield Server("Larder", process, f"http://127.0.0.1:{port}", folder / "log")


@contextmanager
def vllm(
    name: str, folder: Path, model: Path, transfer: dict[str, Any] | None, options: Sequence[str] = (), **environ: str
) -> Iterator[Server]:
    """Run vLLM's OpenAI server in a new folder. `transfer`: its `--kv-transfer-config`. `options`: further options."""
    folder.mkdir()
    port = _free_port()
    command = [
        str(python(CONNECTOR)), "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port),
        "--model", str(model), "--served-model-name", "tiny", "--load-format", "dummy", "--enforce-eager",
        "--enable-prompt-tokens-details", "--enable-per-request-metrics", *options,
    ]  # fmt: skip
    if transfer is not None:
        command += ["--kv-transfer-config", json.dumps(transfer)]
    fixed = {**QUIET, **VLLM_ON_CPU, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(folder)}
    with _running(command, {**fixed, **environ}, folder) as process:
        yield Server(f"vLLM {name}", process, f"http://127.0.0.1:{port}", folder / "log")


@contextmanager
def _running(command: list[str], environ: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in a process group of its own, which does not receive Ctrl-C, and end the group at the end."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("LARDER_", "VLLM_"))}
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # no signal comes between the start and the `try`
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            command, env={**inherited, **environ}, cwd=REPOSITORY, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, preexec_fn=_unblock,
        )  # fmt: skip
    try:
        _unblock()
        yield process
    finally:
        process.terminate()
        deadline = time.monotonic() + STOP_S
        while _lives(process) and time.monotonic() < deadline:
            time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_S)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def _lives(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process of the group is alive."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return False
    return True


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
