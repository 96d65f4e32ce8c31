"""A planned restart keeps the cache, a stop keeps it for a while, and `larder down` releases it and says how much."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dataplane.client import Client
from dataplane.protocol.keys import chain
from tests.app.command import run
from tests.e2e.larder import BLOCK_BYTES, MODEL, START_S, Larder, environ_of, keys, store, until
from tests.forked import Forked
from tests.free_port import free_port
from tests.threads import join

STOP_S = 60
FOREIGN = "192.0.2.1"
"""An address that no machine has (RFC 5737)."""
pytestmark = pytest.mark.timeout(300)
"""Each test starts several interpreters one after the other."""


class Restarted(Larder):
    """A Larder whose settings are in a file that a test may change, and which may be started again."""

    settings: dict[str, str]
    serving: int

    @property
    def config(self) -> Path:
        return self.folder / "larder.toml"

    def configure(self, text: str = "") -> None:
        """Write the file; without a gateway unless the text has its port."""
        self.config.write_text(text if "lmcache_port" in text else f"lmcache_port = 0\n{text}")

    @property
    def environ(self) -> dict[str, str]:
        more = {"LARDER_CONFIG": str(self.config), "LARDER_URL": self.url}
        environ = environ_of(self.folder, self.port, LARDER_DATAPLANE__KEEP_MEMORY_S="600", **more)
        return {name: value for name, value in environ.items() if name != "LARDER_LMCACHE_PORT"}

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, env=self.environ, timeout=120)

    def up(self, *options: str, stdout: Any = subprocess.DEVNULL) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = Forked("app", "up", *options, env=self.environ, stdout=stdout, stderr=log)
        until(self.ready, "ready", timeout_s=START_S)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        assert self.process.wait(STOP_S) == 0

    def log_lines(self, event: str) -> list[dict[str, Any]]:
        lines = (self.folder / "log").read_text(errors="replace").splitlines()
        return [json.loads(line) for line in lines if f'"event": "{event}"' in line]

    def start_of_cache(self) -> Any:
        return until(lambda: (self.node()["stats"] or {}).get("start"), "the node tells how it began")

    def pid(self) -> int:
        return int(self.node()["pid"])


@pytest.fixture
def larder(socket_dir: Path) -> Iterator[Restarted]:
    port = free_port()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as api:
        running = Restarted(socket_dir, port, None, api)  # type: ignore[arg-type]
        running.configure()
        try:
            running.up()
            yield running
        finally:
            running.process.kill()
            running.process.wait(60)
            running.configure()  # a test may have left settings that are refused
            down = running.cli("down")
    assert down.returncode == 0, down.stderr


def read(client: Client, blocks: list[bytes], tenant: str = "") -> int:
    """Leading blocks, each with the right bytes."""
    with client.acquire(blocks, tenant=tenant) as lease:
        for at in range(len(lease)):
            assert bytes(lease.view(at)[:16]) == blocks[at][:1] * 16
        return len(lease)


def pinned(larder: Larder, name: str) -> tuple[int, int]:
    pin = larder.get(f"pins/{name}")
    return pin["resident"], pin["resolved"]


def test_a_stop_and_a_start_keep_blocks_and_pins_and_report_it(larder: Restarted) -> None:
    tokens = list(range(4))
    blocks = chain(tokens, cache_salt="acme", chunk_tokens=1)
    larder.put("pins/p", model=MODEL, tenant="acme", tokens=tokens, chunk_tokens=1, strength="guaranteed")
    with larder.engine() as client:
        assert store(client, blocks, "acme") == 4
        until(lambda: pinned(larder, "p") == (4, 4), "the pin holds its blocks")
        larder.stop(signal.SIGINT)
        (line,) = larder.log_lines("memory.kept")
        assert (line["blocks"], line["bytes"]) == (4, 4 * BLOCK_BYTES)
        assert read(client, blocks, "acme") == 4, "engines read on"
        larder.up()
        (adopted,) = until(lambda: larder.log_lines("memory.adopted"), "the adoption is logged")
        assert (adopted["blocks"], adopted["bytes"]) == (4, 4 * BLOCK_BYTES)
        until(lambda: len(larder.log_lines("larder.started")) == 2, "the second start is logged")
        started = larder.log_lines("larder.started")[-1]
        assert adopted["timestamp"] < started["timestamp"], "engines do not wait for the management plane"
        until(lambda: pinned(larder, "p") == (4, 4), "the pin holds its blocks")
        until(lambda: store(client, keys("after", 1)) == 1, "stores are served again")
        assert read(client, blocks, "acme") == 4


class Reader(threading.Thread):
    """Reads its blocks again and again, and counts what it did not find."""

    def __init__(self, client: Client, blocks: list[bytes]) -> None:
        super().__init__(daemon=True)
        self._client, self._blocks = client, blocks
        self._ended = threading.Event()
        self.rounds = self.misses = 0

    def run(self) -> None:
        while not self._ended.wait(0.001):  # the other processes need the core too
            self.rounds += 1
            self.misses += read(self._client, self._blocks) != len(self._blocks)

    def __enter__(self) -> Reader:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        join(self)


def test_a_restart_replaces_both_processes_and_no_read_fails_and_is_refused_if_it_cannot_work(
    larder: Restarted,
) -> None:
    blocks = keys("kept", 6)
    with larder.engine() as client:
        assert store(client, blocks) == 6
        before, instance = larder.pid(), larder.api.get("/healthz").json()["instance"]
        with Reader(client, blocks) as reader:
            completed = larder.cli("restart")
            assert completed.returncode == 0, completed.stderr
            assert "data plane: 6 blocks (384 KiB) kept; process" in completed.stdout
            assert "management plane: release" in completed.stdout
            until(lambda: store(client, keys("after", 1)) == 1, "stores are served again")
        assert reader.misses == 0
        assert reader.rounds > 0
        assert larder.process.poll() is None, "the process that was started is still there"
        assert larder.api.get("/healthz").json()["instance"] != instance
        assert larder.pid() != before
        assert larder.start_of_cache()["kind"] == "warm"
        (entry,) = [each for each in larder.get("audit")["items"] if each["action"] == "restart"]
        assert entry["kind"] == "plane"
        assert larder.get("events/history?name=dataplane.exited")["items"] == [], "a planned restart is no failure"
        settings_that_cannot_work_stop_nothing(larder)
        assert read(client, blocks) == 6
        the_loss_of_the_cache_is_refused_with_the_amount(larder, client)
    larder.stop()


def settings_that_cannot_work_stop_nothing(larder: Restarted) -> None:
    before = larder.pid()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for written, expected in (
            ("[dataplane]\ntick_s = 'soon'\n", "tick_s"),
            ("[app\n", "larder.toml"),
            ("engine_socket = '/tmp/other.sock'\n", "engine_socket changed since the start"),
            (
                f"lmcache_port = {port}\n",
                f"lmcache_port: tcp://127.0.0.1:{port} cannot be listened on: Address already",
            ),
            (f"lmcache_port = {port}\n[dataplane]\nlmcache_host = '{FOREIGN}'\n", "Cannot assign requested address"),
        ):
            larder.configure(written)
            refused = larder.cli("restart", *(("--fresh",) if "soon" in written else ()))
            assert refused.returncode == 1
            assert expected in refused.stderr
            assert "Traceback" not in refused.stderr
            assert larder.pid() == before
            assert larder.ready()


def the_loss_of_the_cache_is_refused_with_the_amount(larder: Restarted, client: Client) -> None:
    tokens = list(range(3))
    blocks = chain(tokens, chunk_tokens=1)
    larder.put("pins/precious", model=MODEL, tokens=tokens, chunk_tokens=1, strength="guaranteed")
    assert store(client, blocks) == 3
    until(lambda: pinned(larder, "precious") == (3, 3), "the pin holds its blocks")
    before = larder.pid()
    larder.configure("[dataplane]\nmax_blocks = 77\n")
    checked = larder.cli("restart", "--dry-run")
    assert (checked.returncode, checked.stdout.startswith("10 blocks (640 KiB) would be lost: ")) == (0, True)
    refused = larder.cli("restart")
    assert refused.returncode == 1
    assert "1024 block descriptors, the settings say 77" in refused.stderr
    assert "10 blocks (640 KiB) would be lost, among them what the pins 'precious' guarantee" in refused.stderr
    assert "Nothing was stopped" in refused.stderr
    assert larder.pid() == before
    assert read(client, blocks) == 3
    accepted = larder.cli("restart", "--fresh")
    assert accepted.returncode == 0, accepted.stderr
    assert "10 blocks (640 KiB) released" in accepted.stdout
    assert larder.pid() != before
    begun = larder.start_of_cache()
    assert (begun["kind"], begun["released"], begun["lost_blocks"]) == ("cold", True, 10)


@pytest.mark.full
def test_connections_that_come_during_a_restart_are_answered(larder: Restarted) -> None:
    failed: list[str] = []
    answered = 0
    restarting = threading.Thread(target=larder.cli, args=("restart",), daemon=True)
    restarting.start()
    deadline = time.monotonic() + 130
    while restarting.is_alive() and time.monotonic() < deadline:
        try:
            # A new connection each time: the socket outlives the process.
            httpx.get(f"{larder.url}/healthz", timeout=60, trust_env=False)
            answered += 1
        except httpx.ConnectError as error:
            failed.append(str(error))
        except httpx.TransportError:
            pass  # an open connection may be closed by the process that ends
        with (larder.folder / "up.lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
                failed.append("another Larder could start in this state directory")
            except BlockingIOError:
                pass
        time.sleep(0.005)
    join(restarting)
    assert failed == []
    assert answered


def test_a_start_that_fails_leaves_the_memory_and_no_data_plane(larder: Restarted) -> None:
    """The data plane starts first when memory is kept."""
    blocks = keys("kept", 3)
    with larder.engine() as client:
        assert store(client, blocks) == 3
        larder.stop()
        for written, expected in (
            ("[dataplane]\ntick_s = 'soon'\n", "tick_s"),
            ("[app]\njoin_url = 'tcp://somewhere'\n", "join_url"),
        ):
            larder.configure(written)
            with (larder.folder / "failed").open("w+") as output:  # the keeper of the memory would keep a pipe open
                with Forked("app", "up", env=larder.environ, stderr=output) as failed:
                    code = failed.wait(90)
                output.seek(0)
                text = output.read()
            assert (code, expected in text) == (2, True), text
            assert not locked(larder.folder / "dataplane.lock")
        larder.configure()
        nowhere = subprocess.DEVNULL
        stopped = Forked("app", "up", env=larder.environ, stdout=nowhere, stderr=nowhere)
        until(lambda: locked(larder.folder / "dataplane.lock"), "the data plane starts")
        stopped.send_signal(signal.SIGHUP)  # must not end it without the data plane
        stopped.terminate()
        stopped.wait(STOP_S)
        assert not locked(larder.folder / "dataplane.lock")
        larder.up()
        assert read(client, blocks) == 3
        assert larder.start_of_cache()["kind"] == "warm"


def locked(path: Path) -> bool:
    """Whether a process holds the lock. An attempt to take it could refuse it to a process that starts."""
    inode = f":{path.stat().st_ino} "
    locks = Path("/proc/locks").read_text().splitlines()
    return any(inode in line and "FLOCK" in line and "->" not in line for line in locks)


def test_down_and_a_fresh_start_release_the_memory_and_report_how_much(larder: Restarted) -> None:
    """Of a Larder that runs, of one that was stopped, and of one that was killed."""
    with larder.engine() as client:
        assert store(client, keys("lost", 5)) == 5
        completed = larder.cli("down")
        assert (completed.returncode, completed.stdout) == (0, "stopped; released 5 blocks (320 KiB)\n"), (
            completed.stderr
        )
        assert larder.process.wait(60) == 0
        until(lambda: client.lookup(keys("lost", 5)) == 0, "engines stop reading it")
    again = larder.cli("down")
    assert (again.returncode, again.stdout) == (
        0,
        f"no Larder runs with the state directory {larder.folder}, and no memory is kept\n",
    )
    larder.up()
    begun = larder.start_of_cache()
    assert (begun["kind"], begun["released"], begun["reason"]) == ("cold", True, "released by `larder down`")
    with larder.engine() as client:
        assert store(client, keys("left", 2)) == 2
    larder.stop()
    looked = larder.cli("doctor")
    assert "2 blocks (128 KiB) of a Larder that ended are kept for" in " ".join(looked.stdout.split()), looked.stdout
    with (larder.folder / "fresh").open("wb") as output:
        larder.up("--fresh", stdout=output)
    assert (larder.folder / "fresh").read_text() == "released 2 blocks (128 KiB) of the previous Larder\n"
    begun = larder.start_of_cache()
    assert (begun["kind"], begun["released"]) == ("cold", True)
    assert larder.node()["stats"]["pool"]["blocks"] == 0
    with larder.engine() as client:
        assert store(client, keys("old", 3)) == 3
    larder.stop()
    completed = larder.cli("down", "--json")
    released = {"stopped": False, "blocks": 3, "bytes": 3 * BLOCK_BYTES}
    assert json.loads(completed.stdout).items() >= released.items()
    larder.up()
    with larder.engine() as client:
        assert store(client, keys("orphan", 2)) == 2
    larder.process.kill()
    larder.process.wait(60)
    completed = larder.cli("down")
    assert (completed.returncode, completed.stdout) == (0, "released 2 blocks (128 KiB)\n"), completed.stderr


def successor(larder: Restarted) -> int | None:
    """Return the PID of a second data plane of this Larder, which waits until it takes over."""
    up = larder.process.pid
    for pid in map(int, Path(f"/proc/{up}/task/{up}/children").read_text().split()):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except FileNotFoundError:
            continue
        waits = b"dataplane" in arguments and b"--supervisor-fd" in arguments and b"--check-memory" not in arguments
        if waits and pid != larder.serving:
            return pid
    return None


@pytest.mark.full
def test_a_data_plane_that_dies_while_its_successor_starts_costs_no_block(larder: Restarted) -> None:
    blocks = keys("kept", 6)
    with larder.engine() as client:
        assert store(client, blocks) == 6
        larder.serving = larder.pid()
        restarts: list[subprocess.CompletedProcess[str]] = []
        restarting = threading.Thread(target=lambda: restarts.append(larder.cli("restart")), daemon=True)
        restarting.start()
        until(lambda: successor(larder), "the successor starts")
        os.kill(larder.serving, signal.SIGKILL)
        join(restarting)
        assert restarts[0].returncode == 0, restarts[0].stderr
        until(lambda: store(client, keys("after", 1)) == 1, "stores are served again")
        assert read(client, blocks) == 6
        again = larder.cli("restart")
        assert again.returncode == 0, again.stderr
        assert read(client, blocks) == 6
