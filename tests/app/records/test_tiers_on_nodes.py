"""Tier records on a real data plane: opened live, filled by an engine, shown, refused with a path, and left at rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dataplane.protocol.stats.tiers import TierStats
from dataplane.protocol.tier_directory import MAX_TIERS
from tests.app.plane import Plane
from tests.app.problems import accepted
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane as DataPlane
from tests.dataplane.tiering import chains

pytestmark = pytest.mark.anyio
T = "/api/v1/tiers/fast"


def disk(folder: Path, **fields: Any) -> dict[str, Any]:
    parameters = {"directories": [str(folder)], "segment_bytes": 4 << 20}
    return {"type": "disk", "budget_bytes": "64MiB", "parameters": parameters, **fields}


async def until_tier(plane: Plane, holds: Callable[[TierStats | None], bool]) -> None:
    """Wait until the node reports the tier `fast` as wanted."""

    def reported() -> bool:
        stats = plane.app.parts.fleet.stats()
        tier = next((tier for each in stats for tier in each.tiers if tier.name == "fast"), None)
        return bool(stats) and holds(tier)

    await plane.until(reported)


async def test_a_record_opens_a_tier_that_fills_and_leaves_its_blocks_when_it_is_deleted(
    governed: Plane, data_plane: DataPlane, tmp_path: Path
) -> None:
    made = accepted(await governed.http.put(f"{T}?wait=30s", json=disk(tmp_path / "t")), 201)
    assert made["status"]["applied"] is True
    await until_tier(governed, lambda tier: tier is not None and tier.serves)
    chain = make.keys(chains.BLOCKS, "chain")

    def store() -> None:
        with chains.connect(data_plane) as client:
            chains.store(client, chain)

    await asyncio.to_thread(store)
    await until_tier(governed, lambda tier: tier is not None and tier.blocks == chains.BLOCKS)
    shown = await governed.get(T)
    name = (await governed.node())["name"]
    assert (shown["blocks"], shown["stats"][name]["from_settings"]) == (chains.BLOCKS, False)
    assert [each["status"] for each in shown["status"]["conditions"]] == ["True", "True", "True"]

    changed = await governed.http.patch(f"{T}?wait=30s", json={"budget_bytes": "128MiB"}, headers={"If-Match": "*"})
    assert changed.json()["status"]["applied"] is True
    await until_tier(governed, lambda tier: tier is not None and tier.budget_bytes == 128 << 20)

    gone = (await governed.http.delete(f"{T}?wait=30s", headers={"If-Match": "*"})).json()
    assert (gone["blocks"], gone["nodes"]) == (chains.BLOCKS, [name])
    await until_tier(governed, lambda tier: tier is None)
    assert list((tmp_path / "t").iterdir()), "the blocks are still on the disk"
    accepted(await governed.http.put(f"{T}?wait=30s", json=disk(tmp_path / "t")), 201)
    await until_tier(governed, lambda tier: tier is not None and tier.blocks == chains.BLOCKS)


async def test_a_directory_that_cannot_be_created_is_shown_with_its_reason(governed: Plane, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.write_text("a file")
    await governed.http.put(f"{T}?wait=30s", json=disk(place / "t"))
    await until_tier(governed, lambda tier: tier is not None and str(place) in tier.reason)
    shown = await governed.get(T)
    applied, effective = shown["status"]["conditions"][1:]
    assert (applied["status"], effective["status"], effective["reason"]) == ("True", "False", "OutOfService")
    assert str(place) in effective["message"]
    place.unlink()
    await until_tier(governed, lambda tier: tier is not None and tier.serves)


async def test_an_unusable_tier_is_refused_by_its_node_and_leaves_the_tiers_in_force(
    governed: Plane, tmp_path: Path
) -> None:
    assert (await governed.http.put(f"{T}?wait=30s", json=disk(tmp_path / "t"))).is_success
    tiers = {f"more{number}": disk(tmp_path / str(number)) for number in range(MAX_TIERS)}
    name = (await governed.node())["name"]
    tried = await governed.http.post("/api/v1/actions/dry-run", json={"tiers": tiers})
    assert [fault["path"] for fault in tried.json()["items"][0]["faults"]] == ["tiers"]
    document = {"apiVersion": "larder/v1", "tiers": tiers}
    applied = await governed.http.post("/api/v1/apply?wait=30s", json={"document": document})
    assert applied.json()["status"]["tiers"] == {"applied": False, "behind": [name]}
    shown = await governed.get("/api/v1/tiers/more0")
    (fault,) = shown["faults"][name]
    assert (fault["path"], fault["code"]) == ("tiers", "too_many")
    assert shown["status"]["nodes"][name]["state"] == "nacked"
    await until_tier(governed, lambda tier: tier is not None and tier.serves)
