"""What nodes could not be sent is not recorded: one tenant's records never stop the pushes of all others."""

from pathlib import Path
from typing import Any

import pytest
import zmq.asyncio

from app.push.desired import DesiredState
from app.push.link import NodeLink, new_nonce
from app.services.base import changes, snapshot_sizes
from app.services.records import pin_quota
from app.store.records import snapshot_size
from dataplane.protocol.control.snapshots import (
    MAX_SNAPSHOT_BYTES,
    SNAPSHOT_TYPES,
    Nack,
    Snapshot,
    SnapshotType,
    digest_of,
)
from tests.app.callers import create_token, guarding, send
from tests.app.fake_node import FakeNode
from tests.app.plane import PIN, Plane, serving, settings_in
from tests.app.problems import fault_paths

pytestmark = pytest.mark.anyio


def pins(count: int, **fields: Any) -> dict[str, Any]:
    records = {f"p{number}": {**PIN, **fields} for number in range(count)}
    return {"apiVersion": "larder/v1", "managed_by": "team", "pins": records}


async def apply(plane: Plane, document: dict[str, Any], **more: Any) -> Any:
    return await plane.http.post("/api/v1/apply", json={"document": document, **more})


async def test_a_change_that_makes_a_snapshot_too_large_is_refused_whole(
    plane: Plane, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_sizes, "MAX_BYTES", 3 * 250)
    for name in ("a", "b"):
        await plane.put_pin(name)
    audited = (await plane.get("/api/v1/audit"))["items"]
    wide = await plane.http.put("/api/v1/pins/c", json={**PIN, "model": "🙂" * 256})
    assert (wide.status_code, wide.json()["type"]) == (409, "urn:larder:problem:conflict")
    assert "all pins of the fleet" in wide.json()["detail"]
    assert wide.json()["errors"][0]["path"] == "pins"
    for dry_run in (True, False):
        assert fault_paths(await apply(plane, pins(2), dry_run=dry_run), 409)[0] == "pins"
    assert [pin["name"] for pin in (await plane.get("/api/v1/pins"))["items"]] == ["a", "b"]
    assert (await plane.get("/api/v1/audit"))["items"] == audited
    await plane.put_pin("c")
    assert [pin.name for pin in node.pins] == ["a", "b", "c"]
    quota = {f"tenant-{number}": {"limit_bytes": 1} for number in range(4)}
    assert fault_paths(await apply(plane, {"apiVersion": "larder/v1", "quotas": quota}), 409)[0] == "quotas"


async def test_a_snapshot_that_is_too_large_already_may_shrink(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    await plane.put_pin("a")
    await plane.put_pin("b", model="m" * 200)
    monkeypatch.setattr(snapshot_sizes, "MAX_BYTES", 10)
    assert (await plane.http.put("/api/v1/pins/a", json={**PIN, "note": "as large"})).status_code == 200
    assert (await plane.http.put("/api/v1/pins/b", json={**PIN, "model": "m" * 100})).status_code == 200
    assert (await plane.http.put("/api/v1/pins/b", json={**PIN, "model": "m" * 101})).status_code == 409
    assert (await plane.http.delete("/api/v1/pins/a", headers={"If-Match": "*"})).status_code == 204


async def test_keys_beyond_the_bound_of_nodes_are_refused_and_the_same_keys_count_once(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (snapshot_sizes, changes):
        monkeypatch.setattr(module, "MAX_PINNED_KEYS", 3)
    for name in ("a", "b", "c"):
        await plane.put_pin(name)  # the same two keys
    more = await plane.http.put("/api/v1/pins/d", json={**PIN, "model": "another"})
    assert (more.status_code, "keys of all pins" in more.json()["detail"]) == (409, True)
    assert (await apply(plane, pins(1, model="another"))).status_code == 409
    assert (await apply(plane, pins(1))).status_code == 200


async def test_the_counted_size_is_the_sum_of_the_database_and_at_least_the_sent_size(
    socket_dir: Path, database_url: str
) -> None:
    async with serving(settings_in(socket_dir, database_url)) as plane:
        parts = plane.app.parts
        for number in range(3):
            await plane.put_pin(f"p{number}", wait="", model="モデル" * (number + 1), tenant="ключ")
        await plane.put_pin("p1", wait="", model="m", tenant="é", ttl_s=60, refresh_on_hit=True, strength="soft")
        await plane.put_pin("p2", wait="", model="m", tier="gpu", ttl_s=60, refresh_on_hit=True)
        await plane.http.delete("/api/v1/pins/p0", headers={"If-Match": "*"})
        quotas = {"鍵": {"limit_bytes": None}, "b": {"limit_bytes": 7, "weight": 0.123}}
        assert (await apply(plane, pins(0) | {"pins": {"x": PIN}, "quotas": quotas})).status_code == 200
        await plane.http.patch("/api/v1/pins/x", json={"note": "n"}, headers={"If-Match": "*"})
        await plane.http.put("/api/v1/policies/default", json={"algorithm": "age_class"})
        whole = {
            "limit_bytes": 1 << 60, "floor_bytes": 0, "weight": 0.123, "pin_budget_bytes": 1 << 60,
            "store_rate_bytes": 1 << 60, "on_exceed": "reject", "mode": "observe",
            "tiers": {"鍵" * 63 + str(at): {"floor_bytes": 1 << 60, "limit_bytes": 1 << 60} for at in range(8)},
        }  # fmt: skip
        assert (await plane.http.put("/api/v1/quotas/whole", json=whole)).status_code == 201
        tier = {
            "type": "s3", "budget_bytes": 1 << 60, "parameters": {"url": "s3://b/" + "p" * 16_000}, "order": 1000,
            "spill": "second_touch", "load_deadline_s": 299.5, "max_bytes_in_flight": 1 << 36,
            "compress": "zstd",
        }  # fmt: skip
        for name in ("t", "u" * 64, "v"):
            assert (await plane.http.put(f"/api/v1/tiers/{name}", json=tier)).status_code == 201
        await plane.http.delete("/api/v1/tiers/v", headers={"If-Match": "*"})
        known = parts.records.pins._changes._weights
        desired = DesiredState(parts.database)
        await desired.refresh()
        async with parts.database.read() as session:
            for kind in SNAPSHOT_TYPES:
                summed = await snapshot_size.weight(session, kind)
                assert known[kind][1] == summed
                assert summed.bytes >= len(desired.built(kind, {}).body) - 5


@pytest.mark.parametrize("kind", SNAPSHOT_TYPES)
async def test_a_snapshot_that_no_node_reads_is_refused_here_and_not_sent(kind: SnapshotType, socket_dir: Path) -> None:
    context = zmq.asyncio.Context()
    link = NodeLink(f"ipc://{socket_dir}/nobody.sock", "m", context)
    body = bytes(MAX_SNAPSHOT_BYTES + 1)

    async def fetch(digests: list[str]) -> dict[str, bytes]:
        raise AssertionError(digests)

    snapshot = Snapshot(kind, "s", 7, new_nonce(), digest_of(body), body)
    try:
        verdict = await link.push(snapshot, fetch, lambda count: None, 1.0)
    finally:
        await link.close()
        context.term()
    assert isinstance(verdict, Nack)
    assert (verdict.generation, verdict.errors[0].path) == (7, kind)
    assert verdict.errors[0].message == "the snapshot has 67,108,865 bytes, and nodes read at most 67,108,864"


async def test_callers_of_some_tenants_make_a_bounded_number_of_pins_of_each(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with guarding(socket_dir, pins_per_tenant=2) as plane:
        token = await create_token(plane, "op", "operator", tenants=["acme", "rival"])
        for tenant in ("acme", "rival"):
            for number, status in enumerate((201, 201, 409)):
                at = f"/api/v1/pins/{tenant}-{number}"
                answer = await send(plane, token, "PUT", at, json={**PIN, "tenant": tenant})
                assert answer.status_code == status, answer.text
        assert "at most 2 pins (app.pins_per_tenant)" in answer.json()["detail"]
        for dry_run in (True, False):
            body = {"document": pins(1, tenant="acme"), "dry_run": dry_run}
            assert fault_paths(await send(plane, token, "POST", "/api/v1/apply", json=body), 409)[0] == "tenant"
        assert (await apply(plane, pins(2, tenant="acme"))).status_code == 200, "an admin may make more"
        again = await send(
            plane, token, "PUT", "/api/v1/pins/acme-0", json={**PIN, "tenant": "acme", "note": "n"},
            headers={"If-Match": "*"},
        )  # fmt: skip
        assert again.status_code == 200, "nothing is added"
    for name, what in (("MAX_KEYS", "pinned keys"), ("MAX_BYTES", "bytes of pin names")):
        monkeypatch.setattr(pin_quota, name, 1)
        async with guarding(socket_dir) as plane:
            answer = await send(plane, token, "PUT", f"/api/v1/pins/{name}", json={**PIN, "tenant": "acme"})
            assert (answer.status_code, what in answer.json()["detail"]) == (409, True)
        monkeypatch.undo()
