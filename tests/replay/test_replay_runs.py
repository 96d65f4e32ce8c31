"""Whole replays: real engine processes, a real data plane, every byte checked."""

import json
import os
import select
import signal
import time
from pathlib import Path
from subprocess import PIPE, CompletedProcess
from typing import Any

import pytest

from dataplane.client import attach
from dataplane.replay.chains import DerivedChains
from dataplane.replay.control import ControlLink
from dataplane.replay.plane import Plane, own, running
from dataplane.replay.worker import space_of
from tests.dataplane.plane import WAIT_S
from tests.forked import Forked, run
from tests.replay.reference import ExactLru
from tests.replay.traces import make_trace, write_trace

BLOCK_BYTES = 4096
NAMES = {
    "requests", "blocks_requested", "blocks_hit", "hit_ratio", "blocks_stored", "blocks_refused", "blocks_verified",
    "verify_errors", "stored_bytes", "read_bytes", "gbps_in", "gbps_out", "lookup_us", "seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def trace() -> list[list[int]]:
    return make_trace(250)


@pytest.fixture(scope="module")
def trace_path(trace, tmp_path_factory) -> Path:
    return write_trace(tmp_path_factory.mktemp("trace") / "trace.jsonl", trace)


def _replay(*arguments: object) -> CompletedProcess[str]:
    return run("dataplane.replay", *map(str, arguments), env=dict(os.environ), timeout=120)


def _result(done: CompletedProcess[str], code: int = 0) -> dict[str, Any]:
    assert done.returncode == code, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert result.keys() >= NAMES
    assert result["lookup_us"].keys() == {"p50", "p99"}
    assert len(done.stdout.splitlines()) == 1
    return result


def _assert_every_block_is_counted_once(result: dict[str, Any]) -> None:
    answered = sum(result[name] for name in ("blocks_hit", "blocks_stored", "blocks_present", "blocks_busy"))
    assert result["blocks_requested"] == answered + sum(result["blocks_refused"].values())


def _assert_bytes_are_right(result: dict[str, Any]) -> None:
    assert result["verify_errors"] == 0
    assert result["blocks_verified"] == result["blocks_hit"]
    assert result["stored_bytes"] == result["blocks_stored"] * result["block_bytes"]
    assert result["read_bytes"] == result["blocks_hit"] * result["block_bytes"]


def served(reference: ExactLru, trace: list[list[int]]) -> ExactLru:
    for ids in trace:
        reference.serve(ids)
    return reference


def test_blocks_that_a_disk_tier_holds_are_hits_with_their_bytes(trace, trace_path):
    without, ceiling = served(ExactLru(60), trace), served(ExactLru(1 << 20), trace)
    result = _result(_replay(trace_path, "--pool-blocks", 60, "--disk-tier", "64MiB", "--json"))
    assert without.hits < result["blocks_hit"] <= ceiling.hits
    assert result["blocks_loaded"] > 0
    _assert_every_block_is_counted_once(result)
    _assert_bytes_are_right(result)


@pytest.mark.parametrize("pool_blocks", [7, *(pytest.param(count, marks=pytest.mark.full) for count in (60, 150))])
def test_one_engine_has_the_hits_of_an_exact_lru(trace, trace_path, pool_blocks):
    reference = served(ExactLru(pool_blocks), trace)
    result = _result(_replay(trace_path, "--pool-blocks", pool_blocks, "--json"))
    assert result["blocks_hit"] == reference.hits
    assert sum(result["blocks_refused"].values()) == reference.refused
    assert result["requests"] == len(trace)
    assert result["blocks_requested"] == sum(map(len, trace))
    assert result["hit_ratio"] == pytest.approx(reference.hits / result["blocks_requested"], abs=1e-6)
    _assert_every_block_is_counted_once(result)
    _assert_bytes_are_right(result)
    assert result["accounting"]["pool_bytes_equal"]
    assert result["accounting"]["used_bytes"] <= pool_blocks * BLOCK_BYTES


@pytest.mark.full
def test_four_engines_share_one_pool_and_its_accounts_add_up(trace_path):
    result = _result(_replay(trace_path, "--engines", 4, "--pool-blocks", 150, "--json"))
    assert result["engines"] == 4
    assert result["blocks_hit"] > 0
    _assert_every_block_is_counted_once(result)
    _assert_bytes_are_right(result)
    accounting = result["accounting"]
    assert accounting["pool_bytes_equal"]
    assert accounting["used_bytes"] == accounting["tenant_bytes"] == 150 * BLOCK_BYTES
    assert accounting["reserved_bytes"] == accounting["quarantined_bytes"] == 0


@pytest.mark.full
def test_larger_blocks_are_exact_too(trace, trace_path):
    reference = served(ExactLru(100), trace[:150])
    result = _result(_replay(trace_path, "--limit", 150, "--pool-blocks", 100, "--block-bytes", "64KiB", "--json"))
    assert result["blocks_hit"] == reference.hits
    _assert_bytes_are_right(result)


@pytest.mark.full
def test_tenants_share_no_blocks(trace, trace_path):
    alone = _result(_replay(trace_path, "--pool", "64MiB", "--json"))
    shared = _result(_replay(trace_path, "--pool", "64MiB", "--tenants", "a=0.5,b=0.3,_default=0.2", "--json"))
    assert alone["blocks_stored"] == len({block for ids in trace for block in ids})
    assert shared["blocks_stored"] > alone["blocks_stored"]
    assert shared["blocks_hit"] < alone["blocks_hit"]
    _assert_bytes_are_right(shared)


def test_a_speed_keeps_the_times_of_the_trace(trace, tmp_path):
    path = write_trace(tmp_path / "slow.jsonl", trace[:5], every_ms=1_000)
    assert _result(_replay(path, "--speed", 10, "--json"))["seconds"] >= 0.4


def test_without_json_a_table_is_shown(trace_path):
    done = _replay(trace_path, "--limit", 20)
    assert done.returncode == 0
    assert "hit ratio" in done.stdout
    assert done.stderr == ""


@pytest.fixture
def plane():
    with own(64 << 20) as running_plane:
        yield running_plane


def test_a_running_data_plane_is_driven_and_keeps_its_blocks(trace, trace_path, plane: Plane):
    first = _result(_replay(trace_path, "--attach", plane.engine_socket, "--json"))
    again = _result(_replay(trace_path, "--attach", plane.engine_socket, "--json"))
    assert first["blocks_stored"] == len({block for ids in trace for block in ids})
    assert again["hit_ratio"] == 1.0
    assert again["blocks_stored"] == 0
    _assert_bytes_are_right(again)
    assert again["accounting"]["pool_bytes_equal"]


def test_wrong_bytes_are_reported_by_the_exit_code(trace, trace_path, plane: Plane):
    keys = DerivedChains().keys("", trace[0])
    client = attach(plane.engine_socket, [space_of(BLOCK_BYTES)], group="liar", engine="liar", timeout_s=30)
    with client.reserve(keys, BLOCK_BYTES) as reservation:
        for position in reservation.writable:
            reservation.view(position)[:] = bytes(BLOCK_BYTES)
        assert reservation.commit().blocks == len(keys)
    client.close()
    result = _result(_replay(trace_path, "--limit", 1, "--attach", plane.engine_socket, "--json"), code=1)
    assert result["verify_errors"] == len(keys)
    unchecked = _result(_replay(trace_path, "--limit", 1, "--attach", plane.engine_socket, "--json", "--no-verify"))
    assert unchecked["blocks_verified"] == 0


def test_a_control_socket_of_another_data_plane_is_not_used(plane: Plane, socket_dir):
    assert plane.control_url is not None
    elsewhere = socket_dir / "engine.sock"
    (socket_dir / "control.sock").symlink_to(plane.control_url.removeprefix("ipc://"))
    assert running(plane.engine_socket).control_url == plane.control_url
    assert running(str(elsewhere)).control_url is None


def test_a_replay_with_a_killed_engine_reports_it_and_stops_everything(trace, tmp_path, socket_dir):
    path = write_trace(tmp_path / "slow.jsonl", trace, every_ms=1_000)
    environ = {**os.environ, "TMPDIR": str(socket_dir)}
    options = ["--speed", "1", "--engines", "2", "--json"]
    with Forked("dataplane.replay", str(path), *options, env=environ, stdout=PIPE, stderr=PIPE) as process:
        plane, *engines = _pids_with_engines(socket_dir, engines=2)
        os.kill(engines[0], signal.SIGKILL)
        printed, complaint = process.communicate(timeout=60)
    assert process.returncode == 1
    assert printed == b""
    assert b"was ended by SIGKILL" in complaint
    assert not Path(f"/proc/{plane}").exists()
    assert not Path(f"/proc/{engines[1]}").exists()


def test_a_data_plane_of_its_own_ends_with_a_killed_replay(trace, tmp_path, socket_dir):
    path = write_trace(tmp_path / "slow.jsonl", trace, every_ms=1_000)
    environ = {**os.environ, "TMPDIR": str(socket_dir)}
    with Forked("dataplane.replay", str(path), "--speed", "1", env=environ) as process:
        left = [os.pidfd_open(pid) for pid in _pids_with_engines(socket_dir, engines=1)]
        process.kill()
    for pidfd in left:
        assert select.select([pidfd], [], [], WAIT_S)[0], "a process outlives its replay"
        os.close(pidfd)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_an_interrupted_replay_leaves_no_process_behind(trace, tmp_path, socket_dir, signal_number):
    path = write_trace(tmp_path / "slow.jsonl", trace, every_ms=1_000)
    environ = {**os.environ, "TMPDIR": str(socket_dir)}
    options = ["--speed", "1", "--engines", "2", "--json"]
    with Forked("dataplane.replay", str(path), *options, env=environ, stdout=PIPE) as process:
        children = _pids_with_engines(socket_dir, engines=2)
        os.kill(process.pid, signal_number)
        assert process.wait(60) == 128 + signal_number
        assert process.communicate(timeout=60)[0] == b""
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]
    assert not list(socket_dir.glob("larder-*"))


def _pids_with_engines(folder: Path, engines: int) -> list[int]:
    """The data plane below `folder` and its engines, once that many attached."""
    while not (sockets := list(folder.glob("larder-*/control.sock"))):
        time.sleep(0.01)
    with ControlLink(f"ipc://{sockets[0]}") as link:
        while len(attached := link.describe(WAIT_S).stats.engines) < engines:
            time.sleep(0.01)
        return [link.hello(WAIT_S).pid, *(engine.pid for engine in attached)]
