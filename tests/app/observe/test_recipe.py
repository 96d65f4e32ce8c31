"""The metric of the recipe 'Add a metric' in CONTRIBUTING.md is in the next scrape."""

from typing import Annotated, Any

import msgspec
import pytest

from app.observe import node_metrics
from app.observe.page import NODE, metrics_of
from dataplane.protocol.stats.figures import gauge
from dataplane.protocol.stats.pool import PoolStats
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.recipes import code

pytestmark = pytest.mark.anyio


async def test_the_metric_of_the_recipe_is_scraped(
    plane: Plane, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"Annotated": Annotated, "gauge": gauge, "msgspec": msgspec}
    exec(code("Add a metric"), names)
    monkeypatch.setattr(node_metrics, "POOL", metrics_of(names["PoolStats"], NODE))
    await plane.report(node, pool=PoolStats(capacity_bytes=9, max_blocks=7))
    text = (await plane.http.get("/metrics")).text
    assert f'larder_pool_max_blocks{{node="{node.stats.node}"}} 7.0' in text
