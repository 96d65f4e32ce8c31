"""The cache outlives Larder's container: the commands of the compose file run in PID and mount namespaces of their own,
with a state directory and a /dev/shm that they share. No container engine runs here."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import yaml

from dataplane.client import Client, Space, attach
from dataplane.holding.requests import describe
from dataplane.protocol.keys import chain
from tests.dataplane.plane import wait_for
from tests.environ import clean_environ
from tests.free_port import free_port
from tests.lmcache.client import Client as LMCacheClient
from tests.lmcache.client import prompt
from tests.lmcache.planes import check as check_chunks
from tests.lmcache.planes import mapped
from tests.lmcache.planes import store as store_chunks
from tests.require import require

COMPOSE = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.yml").read_text(encoding="utf-8"))
LARDER = Path(sys.executable).with_name("larder")
KEYS, SPACE, BYTES = chain(list(range(64 * 256))), Space(model="m"), 4096
pytestmark = pytest.mark.timeout(300)


@contextmanager
def container(name: str, overrides: dict[str, str], log: Path) -> Iterator[Callable[[int], int]]:
    """Run a service's command as process 1 of namespaces. Yields a function that sends a signal to it and returns its
    exit code."""
    service = COMPOSE["services"][name]
    given = {each: str(value) for each, value in service["environment"].items() if each.startswith("LARDER_")}
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["unshare", "--pid", "--fork", "--mount-proc", str(LARDER), *service.get("command", ["up"])],
            env=clean_environ(**given | overrides),
            stdout=output,
            stderr=output,
        )

    def first() -> int:
        """Return the id, outside, of the namespace's process 1, which has replaced the fork of `unshare`."""
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            if b"unshare" not in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                return int(child)
        return 0

    def end(number: int) -> int:
        wait_for(lambda: first() or process.poll() is not None, f"the container {name} runs")
        os.kill(first(), number)
        return process.wait(60)

    try:
        yield end
    finally:
        if process.poll() is None:
            end(signal.SIGKILL)


def written(at: int) -> bytes:
    return at.to_bytes(4, "little") * (BYTES // 4)


def store(client: Client) -> int:
    with client.reserve(KEYS, BYTES) as room:
        for at in room.writable:
            room.view(at)[:] = written(at)
        return room.commit().blocks


def read(client: Client) -> None:
    with client.acquire(KEYS) as lease:
        assert [bytes(lease.view(at)) for at in range(len(lease))] == [written(at) for at in range(len(KEYS))]


def test_the_cache_outlives_kills_and_restarts_of_the_container(socket_dir: Path) -> None:
    require(shutil.which("unshare"), "unshare is not installed (util-linux)")
    require(os.geteuid() == 0, "PID namespaces need root")
    require(LARDER.exists(), "the larder command is not installed")
    log, socket, port = socket_dir / "log", socket_dir / "engine.sock", free_port()
    overrides = {
        "LARDER_STATE_DIR": str(socket_dir),
        "LARDER_ENGINE_SOCKET": str(socket),
        "LARDER_HTTP_HOST": "127.0.0.1",
        "LARDER_HTTP_PORT": str(free_port()),
        "LARDER_APP__ADMIN_TOKEN": "t" * 64,
        "LARDER_LMCACHE_PORT": str(port),
        "LARDER_DATAPLANE__LMCACHE_HOST": "127.0.0.1",
        "LARDER_DATAPLANE__LMCACHE_SHM_NAME": f"test-{os.getpid()}",
        "LARDER_POOL_BYTES": "16MiB",
        "LARDER_DATAPLANE__SEGMENT_BYTES": "2MiB",
    }
    tokens = prompt(4)

    def served(starts: int) -> bool:
        return log.read_text().count('"larder.serving"') == starts

    with container("holder", overrides, log) as end_holder:
        wait_for(lambda: describe(socket_dir), "the holder answers")
        for start, number in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGTERM), 1):
            with container("larder", overrides, log) as end:
                wait_for(partial(served, start), "Larder serves")
                with (
                    attach(str(socket), [SPACE], timeout_s=60) as client,
                    LMCacheClient(f"tcp://127.0.0.1:{port}") as engine,
                    mapped(engine.register()) as segment,
                ):
                    wait_for(partial(getattr, client, "connected"), "the engine is attached")
                    if start == 1:
                        assert store(client) == len(KEYS)
                        assert store_chunks(engine, segment, tokens, 1, "store")
                    read(client)
                    assert engine.lookup(tokens, "read") == 4
                    assert check_chunks(engine, segment, tokens, 1, "read")
                assert (end(number) == 0) == (number == signal.SIGTERM), log.read_text()
        memory = describe(socket_dir)
        assert memory is not None
        assert memory.seconds_left is not None
        assert end_holder(signal.SIGTERM) == 0
    assert not list(Path("/dev/shm").glob(f"*test-{os.getpid()}"))
