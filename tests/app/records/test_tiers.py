"""Tiers: checked, pushed, refused by nodes with paths, and shown with what they hold."""

from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from dataplane.protocol.control.records import encode_tiers
from dataplane.protocol.control.snapshots import Fault
from dataplane.protocol.stats.tiers import TierStats
from dataplane.protocol.tiers import TierSpec
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.app.problems import accepted, is_problem

pytestmark = pytest.mark.anyio
T = "/api/v1/tiers/nvme"
DISK: dict[str, Any] = {
    "type": "disk", "budget_bytes": "2GiB", "parameters": {"directories": ["/mnt/nvme0/larder"]}, "order": 1,
    "spill": "evict", "load_deadline_s": 2, "max_bytes_in_flight": "128MiB", "note": "fast",
}  # fmt: skip
REDIS: dict[str, Any] = {
    "type": "redis",
    "budget_bytes": "1GiB",
    "parameters": {"servers": ["cache:6379"], "username": "larder", "password": "file:/run/secrets/redis"},
}
SECRET = "hunter2-very-secret"


async def test_a_tier_that_drains_is_deleted_when_other_tiers_hold_its_blocks(plane: Plane, node: FakeNode) -> None:
    async def report(draining_blocks: int | None) -> None:
        tier = TierStats("nvme", "disk", 2 << 30, True, blocks=1204, from_settings=False)
        tier.draining_blocks = draining_blocks
        await plane.report(node, tiers=[tier])

    owned = {**DISK, "spill": "drain", "managed_by": "git"}
    without = {"document": "apiVersion: larder/v1\nmanaged_by: git\n", "prune": True}
    await plane.http.put(f"{T}?wait=30s", json=owned)
    assert node.tiers[0].spill == "drain"
    for left, shown in ((None, "1,204 on node-a"), (7, "7 on node-a")):
        await report(left)
        refused = await plane.http.delete(T)
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:larder:problem:conflict")
        assert shown in refused.json()["detail"]
        assert "larder_tier_draining_blocks" in (await plane.http.get("/metrics")).text or left is None
        assert shown in is_problem(await plane.http.post("/api/v1/apply", json=without), 409)["detail"]
    await report(0)
    accepted(await plane.http.post("/api/v1/apply", json=without), 200)
    assert (await plane.http.get(T)).status_code == 404
    await plane.http.put(f"{T}?wait=30s", json={**DISK, "spill": "drain"})
    await report(7)
    await plane.http.patch(f"{T}?wait=30s", json={"spill": "off"}, headers={"If-Match": "*"})
    assert (await plane.http.delete(T)).status_code == 200, "the drain was cancelled"


async def test_a_node_is_sent_no_tiers_before_a_record_exists(new_plane: Plane, new_node: FakeNode) -> None:
    await new_plane.put_quota("acme")
    await new_plane.until_state("in_sync")
    assert "tiers" not in {snapshot.type for snapshot in new_node.received}
    assert (await new_plane.node())["state"] == "in_sync"


SECRETS: list[tuple[dict[str, Any], str]] = [
    (REDIS | {"parameters": {"servers": ["cache:6379"], "password": SECRET}}, "parameters.password"),
    (REDIS | {"parameters": {"servers": ["cache:6379"], "password": "env:"}}, "parameters.password"),
    (REDIS | {"parameters": {"servers": ["cache:6379"], "my": {"apiToken": SECRET}}}, "parameters.my.apiToken"),
    ({"type": "s3", "budget_bytes": 1 << 30, "parameters": {
        "url": "s3://bucket/blocks", "credentials": {"access_key_id": "env:ID", "secret_access_key": SECRET}}},
     "parameters.credentials.secret_access_key"),
    ({"type": "s3", "budget_bytes": 1 << 30, "parameters": {
        "url": "s3://bucket", "endpoint": f"https://me:{SECRET}@minio:9000"}}, "parameters.endpoint"),
]  # fmt: skip


async def test_a_secret_in_place_of_a_reference_is_refused_and_shown_nowhere(
    plane: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    with capture_logs() as lines:
        for given, path in SECRETS:
            document = {"apiVersion": "larder/v1", "tiers": {"shared": given}}
            answers = [
                await plane.http.put("/api/v1/tiers/shared", json=given),
                await plane.http.post("/api/v1/apply", json={"document": document, "dry_run": True}),
                await plane.http.post("/api/v1/actions/dry-run", json={"tiers": {"shared": given}}),
            ]
            for answer in answers:
                assert answer.status_code == 422, answer.text
                faults = [error for error in answer.json()["errors"] if error["path"].endswith(path)]
                assert "reference" in faults[0]["message"]
                assert SECRET not in answer.text
    assert SECRET not in str(await plane.get("/api/v1/audit")) + str(await plane.get("/api/v1/events/history"))
    assert "request.ended" in {line["event"] for line in lines}
    assert SECRET not in str(lines) + caplog.text


async def test_references_stay_as_they_are(plane: Plane, node: FakeNode) -> None:
    response = accepted(await plane.http.put("/api/v1/tiers/shared?wait=30s", json=REDIS), 201)
    assert response["parameters"] == REDIS["parameters"] == node.tiers[0].parameters
    contradiction = {"parameters": {"servers": ["cache:6379"], "username": "larder"}}
    refused = await plane.http.put("/api/v1/tiers/shared", json=REDIS | contradiction)
    assert [error["path"] for error in refused.json()["errors"]] == ["parameters.password"]


async def test_a_tier_of_a_type_with_codecs_compresses(plane: Plane, node: FakeNode) -> None:
    plain = {"type": "s3", "budget_bytes": "1GiB", "parameters": {"url": "s3://bucket/blocks"}}
    response = await plane.http.put("/api/v1/tiers/cold?wait=30s", json={**plain, "compress": "zstd"})
    assert (response.status_code, response.json()["compress"], node.tiers[0].compress) == (201, "zstd", "zstd")
    changed = await plane.http.patch(
        "/api/v1/tiers/cold?wait=30s", json={"compress": None}, headers={"If-Match": response.headers["ETag"]}
    )
    assert changed.json()["compress"] == "none"
    assert b"compress" not in encode_tiers(node.tiers), "nodes of older releases refuse the field"
    assert node.tiers[0].compress == "none"
    for kind, parameters in ((DISK, DISK["parameters"]), (REDIS, REDIS["parameters"])):
        refused = await plane.http.put(
            "/api/v1/tiers/other", json={**kind, "parameters": parameters, "compress": "zstd"}
        )
        assert [(error["path"], error["message"]) for error in refused.json()["errors"]] == [
            ("compress", f"expected none: tiers of the type {kind['type']} cannot compress with zstd")
        ]


async def test_a_refusal_is_shown_by_node_with_the_name_of_the_tier(plane: Plane, node: FakeNode) -> None:
    assert (await plane.http.put("/api/v1/tiers/a?wait=30s", json=DISK)).is_success
    node.faults = [Fault("tiers[1].parameters.directories", "bad_field", "cannot create /mnt/nvme0: denied")]
    shown = (await plane.http.put(f"{T}?wait=30s", json=DISK)).json()
    fault = {"path": "tiers.nvme.parameters.directories", "code": "bad_field",
             "message": "cannot create /mnt/nvme0: denied"}  # fmt: skip
    assert shown["faults"] == {"node-a": [fault]}
    assert shown["status"]["applied"] is False
    at = shown["status"]["nodes"]["node-a"]
    applied = (await plane.get("/api/v1/tiers/a"))["generation"]
    assert (at["state"], at["observed_generation"]) == ("nacked", applied)
    assert fault["path"] in at["conditions"][0]["message"]
    assert [spec.name for spec in node.tiers] == ["a"], "a node applies all tiers or none"
    assert (await plane.get("/api/v1/tiers/a"))["faults"] == {"node-a": [fault]}

    node.faults = []
    mended = (await plane.http.put(f"{T}?wait=30s", json=DISK | {"order": 5})).json()
    assert (mended["faults"], mended["status"]["applied"]) == ({}, True)


async def test_nodes_report_in_a_dry_run_what_they_would_refuse(plane: Plane, node: FakeNode) -> None:
    assert (await plane.http.put("/api/v1/tiers/a?wait=30s", json=DISK)).is_success
    node.faults = [Fault("tiers[1].parameters.directories", "bad_field", "read-only file system")]
    tried = accepted(await plane.http.post("/api/v1/actions/dry-run", json={"tiers": {"nvme": DISK}}), 200)
    verdict = tried["items"][0]
    assert (verdict["type"], verdict["accepted"]) == ("tiers", False)
    assert verdict["faults"][0]["path"] == "tiers.nvme.parameters.directories"
    tried_specs = msgspec.msgpack.decode(node.received[-1].body, type=list[TierSpec])
    assert (node.received[-1].dry_run, [spec.name for spec in tried_specs]) == (True, ["a", "nvme"])
    assert (await plane.get("/api/v1/tiers"))["total"] == 1


async def test_a_tier_is_for_the_nodes_that_it_selects(plane: Plane, node: FakeNode) -> None:
    shown = (await plane.http.put(f"{T}?wait=0s", json=DISK | {"selector": {"rack": "7"}})).json()
    assert (shown["selector"], shown["status"]["nodes"]) == ({"rack": "7"}, {})
    assert (await plane.put_quota("acme"))["status"]["applied"] is True
    assert (await plane.http.put("/api/v1/tiers/every?wait=30s", json=DISK)).json()["status"]["applied"] is True
    assert [spec.name for spec in node.tiers] == ["every"]


async def test_contents_and_states_of_tiers_are_shown_by_node(plane: Plane, node: FakeNode) -> None:
    await plane.http.put(f"{T}?wait=30s", json=DISK)
    away = TierStats(
        "nvme", "disk", 2 << 30, False, "the disk is gone", blocks=3, stored_bytes=3 << 20, from_settings=False
    )
    await plane.report(node, tiers=[away])
    shown = await plane.get(T)
    assert (shown["blocks"], shown["stored_bytes"]) == (3, 3 << 20)
    assert shown["stats"]["node-a"]["reason"] == "the disk is gone"
    effective = shown["status"]["conditions"][2]
    assert (effective["status"], effective["reason"]) == ("False", "OutOfService")
    assert "the disk is gone" in effective["message"]
    gone = (await plane.http.delete(T)).json()
    assert (gone["blocks"], gone["stored_bytes"], gone["nodes"]) == (3, 3 << 20, ["node-a"])
    assert "nothing is deleted" in gone["message"]
