"""The table of hit ratios is measured through replays, and written as JSON and as a plot."""

import json
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from benchmarks.expected_hits import CONVERSATION_BLOCKS, expected_hit_ratio
from benchmarks.harness.plot import Curve, line_plot
from tests.replay.reference import ExactLru
from tests.replay.traces import make_trace, write_trace

SVG = "{http://www.w3.org/2000/svg}"


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.eviction", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=270, check=False)


@pytest.mark.full
def test_a_small_table_has_the_hits_of_real_replays(tmp_path):
    trace = make_trace(60)
    path = write_trace(tmp_path / "small.jsonl", trace)
    written, plotted = tmp_path / "out.json", tmp_path / "out.svg"
    done = _run(path, "--policies", "lru,lru+admission", "--capacities", "10,50", "--json", written, "--svg", plotted)
    assert done.returncode == 0, done.stderr
    report = json.loads(written.read_text())
    assert report["machine"]["cores"] > 0
    runs = {(run["policy"], run["capacity_percent"]): run for run in report["runs"]}
    assert runs.keys() == {(name, percent) for name in ("lru", "lru+admission") for percent in (10.0, 50.0)}
    unique = len({block for ids in trace for block in ids})
    for percent in (10.0, 50.0):
        run = runs["lru", percent]
        reference = ExactLru(int(unique * percent / 100))
        for ids in trace:
            reference.serve(ids)
        assert run["capacity_blocks"] == reference.capacity
        assert run["hit_ratio"] == pytest.approx(reference.hits / sum(map(len, trace)), abs=1e-6)
        assert run["speed"] is None
        assert run["expected"] is None
    assert runs["lru+admission", 10.0]["speed"] == 200.0
    assert not runs["lru", 10.0]["late"], "it has no times to keep"
    assert len(ElementTree.parse(plotted).getroot().findall(f"{SVG}polyline")) == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--policies", "mru"], "lru+admission"),
        (["--capacities", "0"], "percentages"),
        (["--capacities", "x"], "numbers and commas"),
    ],
)
def test_what_cannot_be_measured_is_a_usage_error(tmp_path, arguments, complaint):
    done = _run(write_trace(tmp_path / "small.jsonl", [[1]]), *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr


def test_figures_of_a_simulation_are_known_for_the_public_traces_alone():
    assert expected_hit_ratio(CONVERSATION_BLOCKS, "lru", 5.0) == 0.1958
    assert expected_hit_ratio(CONVERSATION_BLOCKS, "lru", 7.0) is None
    assert expected_hit_ratio(CONVERSATION_BLOCKS, "noop", 5.0) is None
    assert expected_hit_ratio(1000, "lru", 5.0) is None


def test_a_plot_has_a_line_and_a_name_for_each_curve():
    curves = [Curve("one", [(1, 0.1), (10, 0.4)]), Curve("a<b", [(1, 0.0), (10, 0.2)])]
    root = ElementTree.fromstring(line_plot(curves, "size", "share"))
    lines = [line.get("points", "").split() for line in root.findall(f"{SVG}polyline")]
    assert [len(points) for points in lines] == [2, 2]
    ends = [float(points[-1].split(",")[1]) for points in lines]
    assert ends[0] < ends[1], "more is higher"
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert {"one", "a<b", "size", "share", "0", "0.4"} <= set(texts)
    with pytest.raises(ValueError, match="at least one point"):
        line_plot([], "x", "y")
