"""The benchmarks run, and write what scripts expect. No time is asserted: figures belong to machines."""

import json
import re
import subprocess
import sys

import pytest

from benchmarks.harness.result import at_least, at_most
from benchmarks.suite import BENCHMARKS

OF_BOTH_PLANES = {
    "fresh_pool": "store_fresh_pool_ratio",
    "apply": "apply_first_run",
    "rest": "rest_get_record_per_core",
    "uptime": "uptime_memory_grown",
}
"""Those that start a whole Larder, and one of their figures."""


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.parametrize("name", OF_BOTH_PLANES)
def test_a_quick_run_of_what_needs_a_whole_larder_measures_it(name, tmp_path):
    done = _run("--quick", "--output", tmp_path, name)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(next(tmp_path.iterdir()).read_text())
    assert OF_BOTH_PLANES[name] in [result["name"] for result in report["results"]]


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
    assert {"lookup_64_known_p50", "reserve_commit_16_p50", "store_2MiB_ratio", "view_32MiB_copied"} <= set(
        names
    )
    for result in report["results"]:
        assert result.keys() == {"name", "value", "unit", "target", "direction", "met", "baseline"}
        assert result["direction"] in ("min", "max")
        assert (result["met"] is None) == (result["target"] is None)
    (view,) = (result for result in report["results"] if result["name"] == "view_32MiB_copied")
    assert view["value"] == 0


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
