"""The metric of the recipe 'Add a metric' in CONTRIBUTING.md is in the next scrape."""

from importlib import import_module
from pathlib import Path

import pytest

from app.observe import node_metrics
from app.observe.page import NODE, metrics_of
from dataplane.protocol.stats.pool import PoolStats
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.recipes import code

pytestmark = pytest.mark.anyio
IMPORTS = """from typing import Annotated
import msgspec
from dataplane.protocol.stats.figures import gauge
"""


async def test_the_metric_of_the_recipe_is_scraped(
    plane: Plane, node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metric_recipe.py").write_text(IMPORTS + code("Add a metric"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(node_metrics, "POOL", metrics_of(import_module("metric_recipe").PoolStats, NODE))
    await plane.report(node, pool=PoolStats(capacity_bytes=9, max_blocks=7))
    text = (await plane.http.get("/metrics")).text
    assert "# HELP larder_pool_max_blocks Most blocks that the node can name.\n" in text
    assert f'larder_pool_max_blocks{{node="{node.stats.node}"}} 7.0' in text
