"""Look-ups find the pages that only tiers hold, and wait until they are in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dataplane.protocol.tiers import TierSpec
from tests.dataplane.plane import Plane
from tests.dataplane.tiering.chains import copied, in_service, push, tier
from tests.engines.sglang.pages import NAMES, load, store
from tests.tiers.redis_server import RedisServer


@pytest.fixture
def spec() -> Iterator[TierSpec]:
    server = RedisServer()
    try:
        server.start()
        yield TierSpec(name="fast", type="redis", budget_bytes=64 << 20, parameters={"servers": [server.address]})
    finally:
        server.stop()


@pytest.fixture
def other(spec: TierSpec, plane: Plane, socket_dir: Path) -> Iterator[Plane]:
    """A second node; both have the tier in service."""
    (folder := socket_dir / "other").mkdir()
    other = Plane(folder, {"dataplane__node": "other"}).start()
    try:
        for each in (plane, other):
            push(each, 1, spec)
            in_service(each)
        yield other
    finally:
        other.kill()


def test_pages_of_another_node_are_loaded_from_a_shared_tier(
    make_backend: Callable[..., Any], plane: Plane, other: Plane
) -> None:
    here, there = make_backend(), make_backend(socket=other.socket, tier_timeout_s=60.0, verify="always")
    expected = store(here)
    copied(plane, len(NAMES))
    assert make_backend(socket=other.socket, tier_timeout_s=0).batch_exists(NAMES) == 0
    assert there.batch_exists(NAMES) == len(NAMES)
    assert load(there) == ([True] * len(NAMES), expected)
    assert there.batch_exists(["f" * 64]) == 0, "no tier has it"
    stats = tier(other)
    assert stats is not None
    assert stats.loaded_blocks == len(NAMES)
