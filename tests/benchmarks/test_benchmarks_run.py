"""The benchmarks run, and write what scripts expect. No time is asserted: figures belong to machines."""

import json
import os
import re
import subprocess
from importlib.util import find_spec

import pytest

from benchmarks.harness.result import at_least, at_most
from benchmarks.suite import BENCHMARKS, BY_NAME
from tests.forked import run
from tests.tiers.redis_server import redis_binary

LIMIT_S = 900
"""What takes a minute takes several on a busy machine."""
pytestmark = pytest.mark.timeout(LIMIT_S + 60)
OF_BOTH_PLANES = {
    "fresh_pool": "store_fresh_pool_ratio",
    "apply": "apply_first_run",
    "rest": "rest_get_record_per_core",
    "scrape": "scrape_size",
    "observability": "observed_cpu_extra",
    "uptime": "uptime_memory_grown",
    "soak": "soak_data_plane_memory",
}
"""Those that start a whole Larder, and one of their figures."""


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    environ = dict(os.environ)
    return run("benchmarks", *map(str, arguments), env=environ, timeout=LIMIT_S)


@pytest.mark.parametrize("module", [*BENCHMARKS.values(), *BY_NAME.values()])
def test_a_benchmark_has_a_module(module: str) -> None:
    assert find_spec(f"benchmarks.{module}")


@pytest.mark.full
@pytest.mark.parametrize("name", OF_BOTH_PLANES)
def test_a_quick_run_of_what_needs_a_whole_larder_measures_it(name, tmp_path):
    done = _run("--quick", "--output", tmp_path, name)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(next(tmp_path.iterdir()).read_text())
    assert OF_BOTH_PLANES[name] in [result["name"] for result in report["results"]]


@pytest.mark.full
def test_a_quick_run_of_all_others_writes_a_result_file(tmp_path):
    done = _run("--quick", "--output", tmp_path, *(set(BENCHMARKS) - set(OF_BOTH_PLANES)))
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-[A-Za-z0-9.-]+\.json", path.name)
    report = json.loads(path.read_text())
    assert report.keys() == {"machine", "memcpy_gbps", "results"}
    assert report["memcpy_gbps"] > 0
    names = [result["name"] for result in report["results"]]
    assert len(names) == len(set(names))
    assert {"lookup_64_known_p50", "reserve_commit_16_p50", "store_2MiB_ratio", "view_32MiB_copied"} <= set(names)
    for result in report["results"]:
        assert result.keys() == {"name", "value", "unit", "target", "direction", "met", "baseline"}
        assert result["direction"] in ("min", "max")
        assert (result["met"] is None) == (result["target"] is None)
    (view,) = (result for result in report["results"] if result["name"] == "view_32MiB_copied")
    assert view["value"] == 0


@pytest.mark.full
@pytest.mark.parametrize("name", ["redis", "s3"])
def test_a_quick_run_of_a_shared_tier_measures_it_beside_a_bare_client(name, tmp_path):
    if name == "redis":
        redis_binary()
    done = _run("--quick", "--output", tmp_path, name)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.iterdir()
    assert path.name.endswith("-shared-tiers.json")
    figures = {result["name"]: result for result in json.loads(path.read_text())["results"]}
    assert {f"{name}_2MiB_store_ratio", f"{name}_2MiB_load_ratio"} <= figures.keys()
    assert all(result["baseline"] > 0 for result in figures.values())


def test_an_unknown_benchmark_is_refused_with_the_known_names():
    done = _run("nonsense")
    assert done.returncode == 2
    for name in BENCHMARKS:
        assert name in done.stderr


@pytest.mark.parametrize(
    ("result", "met"),
    [
        (at_most("a", 40.0, "us", 40.0), True),
        (at_most("a", 40.1, "us", 40.0), False),
        (at_most("a", 40.1, "us", None), None),
        (at_least("a", 0.9, "of memcpy", 0.9), True),
        (at_least("a", 0.89, "of memcpy", 0.9), False),
    ],
)
def test_a_target_is_met_at_the_bound_and_missed_beyond_it(result, met):
    assert result.met is met
