"""A dry run says what nodes would say, and leaves everything as it is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.plane import PIN, Plane
from tests.dataplane.plane import Plane as DataPlane

pytestmark = pytest.mark.anyio


async def dry_run(plane: Plane, status: int = 200, **body: Any) -> Any:
    response = await plane.http.post("/api/v1/actions/dry-run", json=body)
    assert response.status_code == status, response.text
    return response.json()


async def test_records_that_nodes_accept_pass_a_dry_run_and_nothing_is_stored(
    governed: Plane, data_plane: DataPlane
) -> None:
    await governed.put_quota("acme", 1 << 20)
    await governed.put_pin("kept")
    before = data_plane.describe().observed
    answer = await dry_run(
        governed,
        quotas={"acme": {"limit_bytes": 1}, "new": {"floor_bytes": "1MiB"}},
        pins={"p": PIN, "kept": {**PIN, "strength": "soft"}},
        policies={"default": {"algorithm": "arc"}},
    )
    name = (await governed.node())["name"]
    assert answer["accepted"] is True
    assert answer["items"] == [
        {"node": name, "type": kind, "selected": True, "accepted": True, "faults": [], "error": None, "evictions": []}
        for kind in ("pins", "policies", "quotas")
    ]
    stats = data_plane.describe()
    assert stats.observed == before
    assert (stats.policy.algorithm, [pin.name for pin in stats.pins]) == ("lru", ["kept"])
    assert (await governed.get("/api/v1/quotas"))["total"] == 1
    assert (await governed.get("/api/v1/pins"))["total"] == 1


async def test_faults_that_only_a_node_can_find_are_reported_by_the_node(governed: Plane) -> None:
    tokens = list(range(4096))
    pins = {
        f"p{number}": {"model": "m", "tenant": f"t{number}", "tokens": tokens, "chunk_tokens": 1}
        for number in range(66)
    }
    answer = await dry_run(governed, pins=pins)
    (item,) = answer["items"]
    assert (answer["accepted"], item["accepted"]) == (False, False)
    assert [(fault["path"], fault["code"]) for fault in item["faults"]] == [("pins", "too_many")]


async def test_a_patch_is_refused_by_the_rules_of_a_put(governed: Plane) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "quotas"),
        ({"quotas": {}}, "quotas"),
        ({"quotas": {"acme": {"limit_bytes": 1, "floor_bytes": 2}}}, "quotas.acme.floor_bytes"),
        ({"quotas": {"a@b": {"limit_bytes": 1}}}, "quotas.a@b.tenant"),
        ({"policies": {"default": {"low_watermark": 0.9, "high_watermark": 0.8}}}, "policies.default.low_watermark"),
        ({"policies": {"default": {}}}, "policies.default.algorithm"),
        ({"pins": {"p": {"model": "m"}}}, "pins.p.tokens"),
        ({"pins": {"a b": PIN}}, "pins.a b.name"),
        ({"pins": {"p": {**PIN, "ttl_s": -1}}}, "pins.p.ttl_s"),
        ({"node": "nobody", "policies": {"default": {"algorithm": "arc"}}}, "node"),
    ]
    for body, path in cases:
        refused = await dry_run(governed, 422, **body)
        assert refused["errors"][0]["path"] == path, body
