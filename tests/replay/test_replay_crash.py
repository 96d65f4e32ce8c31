"""The data plane is killed in the middle of a replay and comes back: misses in between, and no wrong byte."""

import json
import subprocess
import sys

import pytest

from tests.dataplane.plane import Plane
from tests.replay.traces import make_trace, write_trace


@pytest.mark.full
def test_a_killed_data_plane_costs_misses_and_nothing_else(socket_dir, tmp_path):
    trace = make_trace(200)
    path = write_trace(tmp_path / "trace.jsonl", trace, every_ms=100)  # outlasts the start of a data plane
    plane = Plane(socket_dir)
    arguments = ["--attach", plane.socket, "--engines", "2", "--speed", "1", "--json"]
    command = [sys.executable, "-m", "dataplane.replay", str(path), *arguments]
    try:
        plane.start()
        replay = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        plane.wait_stats(
            lambda stats: stats.totals.stored_blocks >= 20 and len(stats.engines) == 2, "blocks are stored"
        )
        plane.kill()
        plane.start()
        printed, _ = replay.communicate(timeout=120)
    finally:
        plane.kill()
    assert replay.returncode == 0
    result = json.loads(printed)
    assert result["requests"] == len(trace)
    assert result["verify_errors"] == 0
    assert result["blocks_verified"] == result["blocks_hit"] > 0
    assert result["reconnects"] >= 2
    assert result["accounting"]["pool_bytes_equal"]
