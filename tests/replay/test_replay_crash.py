"""The data plane is killed in the middle of a replay and comes back: misses in between, and no wrong byte."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dataplane.replay.control import ControlLink
from tests.dataplane.plane import wait_for
from tests.environ import clean_environ
from tests.forked import Forked
from tests.replay.traces import make_trace, write_trace

BLOCK_BYTES = 4096


@contextmanager
def _data_plane(folder: Path) -> Iterator[ControlLink]:
    """A data plane on a folder, queried over its control socket; killed without a shutdown."""
    environ = clean_environ(
        LARDER_STATE_DIR=str(folder),
        LARDER_DATAPLANE__KEEP_MEMORY_S="0",
        LARDER_POOL_BYTES="16MiB",
        LARDER_LMCACHE_PORT="0",
    )
    with (
        (folder / "log").open("ab") as log,
        Forked("dataplane", env=environ, stdout=log, stderr=log) as process,
        ControlLink(f"ipc://{folder}/control.sock") as link,
    ):
        try:
            link.hello(90.0, lambda: process.poll() is None)
            yield link
        finally:
            process.kill()


def _wait_for_stored_blocks(link: ControlLink, blocks: int, engines: int) -> None:
    """Wait until so many blocks are stored, and all engines are attached."""

    def there() -> bool:
        stats = link.describe(60.0).stats
        return stats.totals.stored_blocks >= blocks and len(stats.engines) == engines

    wait_for(there, "engines store blocks")


@pytest.mark.full
def test_a_killed_data_plane_costs_misses_and_nothing_else(socket_dir, tmp_path):
    trace = make_trace(200)
    path = write_trace(tmp_path / "trace.jsonl", trace, every_ms=100)  # outlasts the start of a data plane
    arguments = ["--attach", socket_dir / "engine.sock", "--engines", 2, "--speed", 1, "--json"]
    command = [sys.executable, "-m", "dataplane.replay", str(path), *map(str, arguments)]
    with _data_plane(socket_dir) as link:
        replay = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        _wait_for_stored_blocks(link, 20, engines=2)
    with _data_plane(socket_dir):
        printed, _ = replay.communicate(timeout=120)
    assert replay.returncode == 0
    result = json.loads(printed)
    assert result["requests"] == len(trace)
    assert result["verify_errors"] == 0
    assert result["blocks_verified"] == result["blocks_hit"] > 0
    assert result["reconnects"] >= 2
    assert result["accounting"]["pool_bytes_equal"]
