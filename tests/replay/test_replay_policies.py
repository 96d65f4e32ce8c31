"""A policy that a replay names is in force in the data plane it starts, and is the one of the simulations."""

import json
import os
import subprocess

import pytest

from dataplane.policies.registry import POLICIES
from dataplane.protocol.control.records import POLICY_IN_FORCE, PolicySpec
from dataplane.replay.chains import DerivedChains
from dataplane.replay.control import ControlLink
from dataplane.replay.plane import own
from tests.eviction.simulator import Simulator
from tests.forked import run
from tests.replay.traces import make_trace, write_trace


def _replay(*arguments: object) -> subprocess.CompletedProcess[str]:
    return run("dataplane.replay", *map(str, arguments), "--json", env=dict(os.environ), timeout=120)


@pytest.fixture(scope="module")
def trace() -> list[list[int]]:
    return make_trace(300, seed=4)


@pytest.fixture(scope="module")
def trace_path(trace, tmp_path_factory):
    return write_trace(tmp_path_factory.mktemp("trace") / "trace.jsonl", trace)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "s3fifo" else pytest.mark.full)
        for name in POLICIES
        if name != "age_class"
    ],
)
def test_a_data_plane_has_the_hits_of_its_policy(trace, trace_path, name):
    expected = Simulator(POLICIES[name](), 60)
    chains = DerivedChains()
    for now, ids in enumerate(trace):
        words = chains.keys("", ids)
        expected.serve([int(word) for word in words[:, 0]], float(now))
    done = _replay(trace_path, "--pool-blocks", 60, "--policy", name)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["blocks_hit"] == expected.hits
    assert result["verify_errors"] == 0
    assert sum(result["blocks_refused"].values()) == expected.refused
    assert result["accounting"]["pool_bytes_equal"]


@pytest.mark.full
def test_ages_are_those_of_the_clock_and_not_of_the_trace(trace, trace_path):
    done = _replay(trace_path, "--pool-blocks", 60, "--policy", "age_class", "--speed", 2)
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
    arguments = (trace_path, "--pool-blocks", 30, "--speed", 2)
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
