"""`larder series`: names, figures with a small chart, marks, and the answer of the API for programs."""

import json
import time

import pytest

from app.cli.commands.views.series import chart
from app.ingest.sampler import STEP_S, Sampler
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pool import PoolStats, Totals
from tests.app.command import larder, output, refused
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio


async def test_series_show_figures_and_marks(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sampler, "is_due", lambda self, now: False)  # the node is not sampled
    sampler = plane.app.parts.ingest.sampler
    sampler.points.clear()
    for number in range(3):
        totals = Totals(requested_blocks=number * 100, hit_blocks=number * 75)
        stats = NodeStats(
            0.0, "a", "1", 0.0, True, PoolStats(100 << 20, (number + 1) << 20), totals, {}, [], None, [], [], {}
        )  # fmt: skip
        sampler.sample(time.time() - (2 - number) * STEP_S, [stats])
    await plane.put_quota("acme", 5, wait="")
    out = await output(plane, "series", "hit_ratio", "used_bytes", "--range", "1m")
    ratio = next(line for line in out.splitlines() if line.startswith("hit_ratio"))
    assert ratio.count("75.0 %") == 4
    used = next(line for line in out.splitlines() if line.startswith("used_bytes"))
    assert "3 MiB" in used
    assert "▃▆█" in used
    assert "change: create quota acme" in out
    code, out, _ = await larder(plane, "series", "nodes", "--range", "1m", "--node", "a", "-o", "json")
    answer = json.loads(out)
    assert (code, answer["step_s"], answer["series"][0]["node"]) == (0, 10, "a")
    assert 1 in answer["series"][0]["values"]
    code, out, _ = await larder(plane, "series")
    assert (code, "hit_ratio" in out, "fleet, node, tenant" in out) == (0, True, True)
    assert "expected one of hit_ratio, " in await refused(plane, 1, "series", "bogus")


def test_a_chart_has_a_bar_for_each_part_of_the_time_and_a_dot_where_nothing_was_measured() -> None:
    assert chart([0, 1, None, 2, 4], 5) == "▁▃.▅█"
    assert chart([1, 3, 4, 4], 2) == "▅█"
    assert chart([None, None]) == ".."
    assert chart([0.0]) == "▁"
    assert chart([]) == ""
