"""Whole replays: real engine processes, a real data plane, every byte checked."""

import json
import os
import select
import signal
import time
from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path
from subprocess import PIPE, CompletedProcess
from typing import Any

import pytest

from dataplane.client import attach
from dataplane.policies.registry import POLICIES
from dataplane.protocol.control.records import POLICY_IN_FORCE, PolicySpec
from dataplane.replay import worker
from dataplane.replay.chains import DerivedChains
from dataplane.replay.control import ControlLink
from dataplane.replay.plane import Plane, own, running
from dataplane.replay.worker import space_of
from tests.dataplane.plane import WAIT_S
from tests.eviction.simulator import Simulator
from tests.forked import Forked, run
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


def simulated(trace: list[list[int]], blocks: int, policy: str = "lru") -> Simulator:
    """The hits of a pool with room for so many blocks."""
    simulator, chains = Simulator(POLICIES[policy](), blocks), DerivedChains()
    for now, ids in enumerate(trace):
        simulator.serve([int(word) for word in chains.keys("", ids)[:, 0]], float(now))
    return simulator


def test_blocks_that_a_disk_tier_holds_are_hits_with_their_bytes(trace, trace_path):
    without, ceiling = simulated(trace, 60), simulated(trace, 1 << 20)
    result = _result(_replay(trace_path, "--pool-blocks", 60, "--disk-tier", "64MiB", "--json"))
    assert without.hits < result["blocks_hit"] <= ceiling.hits
    assert result["blocks_loaded"] > 0
    _assert_every_block_is_counted_once(result)
    _assert_bytes_are_right(result)


@pytest.mark.parametrize(
    ("policy", "pool_blocks"),
    [
        ("lru", 7),
        ("s3fifo", 60),
        pytest.param("lru", 150, marks=pytest.mark.full),
        *(pytest.param(name, 60, marks=pytest.mark.full) for name in POLICIES if name not in ("s3fifo", "age_class")),
    ],
)
def test_one_engine_has_the_hits_of_its_policy(trace, trace_path, policy, pool_blocks):
    simulator = simulated(trace, pool_blocks, policy)
    result = _result(_replay(trace_path, "--pool-blocks", pool_blocks, "--policy", policy, "--json"))
    assert result["blocks_hit"] == simulator.hits
    assert sum(result["blocks_refused"].values()) == simulator.refused
    assert result["requests"] == len(trace)
    assert result["blocks_requested"] == sum(map(len, trace))
    assert result["hit_ratio"] == pytest.approx(simulator.hits / result["blocks_requested"], abs=1e-6)
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
    simulator = simulated(trace[:150], 100)
    result = _result(_replay(trace_path, "--limit", 150, "--pool-blocks", 100, "--block-bytes", "64KiB", "--json"))
    assert result["blocks_hit"] == simulator.hits
    _assert_bytes_are_right(result)


@pytest.mark.full
def test_tenants_share_no_blocks(trace, trace_path):
    alone = _result(_replay(trace_path, "--pool", "64MiB", "--json"))
    shared = _result(_replay(trace_path, "--pool", "64MiB", "--tenants", "a=0.5,b=0.3,_default=0.2", "--json"))
    assert alone["blocks_stored"] == len({block for ids in trace for block in ids})
    assert shared["blocks_stored"] > alone["blocks_stored"]
    assert shared["blocks_hit"] < alone["blocks_hit"]
    _assert_bytes_are_right(shared)


@pytest.mark.full
def test_ages_are_those_of_the_clock_and_not_of_the_trace(trace, trace_path):
    done = _replay(trace_path, "--pool-blocks", 60, "--policy", "age_class", "--speed", 2, "--json")
    assert done.returncode == 0, done.stderr
    lru, fifo = Simulator(POLICIES["lru"](), 60), Simulator(POLICIES["fifo"](), 60)
    for now, ids in enumerate(trace):
        lru.serve(ids, now / 200)
        fifo.serve(ids, now / 200)
    hits = json.loads(done.stdout)["blocks_hit"]
    assert fifo.hits < hits
    assert hits != lru.hits


@pytest.mark.full
def test_under_pressure_only_second_sightings_are_stored(trace, trace_path):
    arguments = (trace_path, "--pool-blocks", 30, "--speed", 2, "--json")
    always = json.loads(_replay(*arguments).stdout)
    gated = json.loads(_replay(*arguments, "--admission").stdout)
    assert always["blocks_refused"].get("not_admitted", 0) == 0
    assert gated["blocks_refused"]["not_admitted"] > 0
    assert gated["blocks_stored"] < always["blocks_stored"]
    roomy = json.loads(_replay(*arguments, "--admission", "--admission-idle", 0.001).stdout)
    assert roomy["blocks_refused"].get("not_admitted", 0) == 0, "what goes was idle for longer than that"


def test_an_own_data_plane_starts_under_the_configured_policy():
    with own(1 << 20, policy=PolicySpec(POLICY_IN_FORCE, "arc", admission=True)) as plane:
        assert plane.control_url is not None
        with ControlLink(plane.control_url) as link:
            policy = link.describe(5.0).stats.policy
    assert (policy.algorithm, policy.admission, policy.admission_idle_s) == ("arc", True, 240.0)


def test_a_policy_that_the_data_plane_refuses_is_shown_with_its_reason(trace_path):
    done = _replay(trace_path, "--admission", "--admission-idle", 1e12, "--speed", 2)
    assert done.returncode == 1
    assert "admission_idle_s" in done.stderr
    assert done.stdout == ""


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
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


def test_a_speed_keeps_the_times_of_the_trace(trace, tmp_path, plane: Plane):
    path = write_trace(tmp_path / "slow.jsonl", trace[:5], every_ms=1_000)
    done = _replay(path, "--attach", plane.engine_socket, "--speed", 10, "--json")
    assert _result(done)["seconds"] >= 0.4


@pytest.mark.parametrize("wait_s", [1e9, float("inf")])
def test_an_engine_can_wait_for_years_and_ends_with_its_replay(wait_s):
    parent, child = Pipe()
    parent.close()
    with pytest.raises(EOFError):
        worker._wait_until(time.perf_counter() + wait_s, child)


def test_without_json_a_table_is_shown(trace_path, plane: Plane):
    done = _replay(trace_path, "--attach", plane.engine_socket, "--limit", 20)
    assert done.returncode == 0
    assert "hit ratio" in done.stdout
    assert done.stderr == ""


def test_wrong_bytes_are_reported_by_the_exit_code(tmp_path, plane: Plane):
    trace = make_trace(1, start_id=1 << 20)
    path = write_trace(tmp_path / "wrong.jsonl", trace)
    keys = DerivedChains().keys("", trace[0])
    client = attach(plane.engine_socket, [space_of(BLOCK_BYTES)], group="liar", engine="liar", timeout_s=30)
    with client.reserve(keys, BLOCK_BYTES) as reservation:
        for position in reservation.writable:
            reservation.view(position)[:] = bytes(BLOCK_BYTES)
        assert reservation.commit().blocks == len(keys)
    client.close()
    result = _result(_replay(path, "--attach", plane.engine_socket, "--json"), code=1)
    assert result["verify_errors"] == len(keys)
    unchecked = _result(_replay(path, "--attach", plane.engine_socket, "--json", "--no-verify"))
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
