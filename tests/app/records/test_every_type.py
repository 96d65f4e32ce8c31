"""What holds for records of every type: nodes, dry runs, preconditions, patches, lists, the audit log and deletion."""

import time
from typing import Any

import httpx
import pytest

from app.http.examples import EXAMPLES
from dataplane.protocol.control.records import PolicySpec, QuotaSpec
from dataplane.protocol.tiers import TierSpec
from tests.app.callers import create_token, send
from tests.app.fake_node import FakeNode
from tests.app.plane import PIN, Plane
from tests.app.problems import accepted, fault_paths

pytestmark = pytest.mark.anyio

TYPES = [
    ("quotas/acme", "QuotaPut", "quota"),
    ("pins/p", "PinPut", "pin"),
    ("policies/night", "PolicyPut", "policy"),
    ("tiers/nvme", "TierPut", "tier"),
    ("ceilings/acme", "CeilingPut", "ceiling"),
    ("rates/llama", "RatePut", "rate"),
    ("tokenizers/words", "TokenizerPut", "tokenizer"),
]
NOTED = {"note": "another"}
of_every_type = pytest.mark.parametrize(("path", "example", "noun"), TYPES, ids=[noun for *_, noun in TYPES])


async def sent(plane: Plane, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    """Send a request as it is, without the precondition that the client of tests adds."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await plane.http.request(method, f"/api/v1/{path}", json=body, headers=named, auth=lambda request: request)


@of_every_type
async def test_a_record_is_tried_made_changed_and_deleted(plane: Plane, path: str, example: str, noun: str) -> None:
    began = time.time()
    body, name = EXAMPLES[example], path.partition("/")[2]
    kind = path.partition("/")[0]
    tried = accepted(await sent(plane, "PUT", f"{path}?dry_run=true", body), 201)
    assert (await sent(plane, "GET", path)).status_code == 404
    for method in ("PATCH", "DELETE"):
        assert (await sent(plane, method, path, NOTED if method == "PATCH" else None)).status_code == 404
    for state in ("*", '"1"'):
        assert (await sent(plane, "PUT", path, body, if_match=state)).status_code == 412, "there is no such state"

    made = await sent(plane, "PUT", path, body, if_none_match="*")
    assert made.status_code == 201, made.text
    record, etag = made.json(), made.headers["etag"]
    shown = {field for field in body if field in record} - {"expires_at"}
    assert {field: record[field] for field in shown} == {field: tried[field] for field in shown}
    assert record["etag"] == etag == (await sent(plane, "GET", path)).headers["etag"]
    assert [item["etag"] for item in (await plane.get(f"/api/v1/{kind}?limit=1"))["items"]] == [etag]
    assert (await sent(plane, "PUT", path, body, if_none_match="*")).status_code == 412
    for method, sent_body in (("PUT", body), ("PATCH", NOTED), ("DELETE", None)):
        missing = await sent(plane, method, path, sent_body)
        assert (missing.status_code, missing.json()["type"]) == (428, "urn:larder:problem:precondition-required")
        assert etag in missing.json()["detail"]
        for wrong in ('"999"', f"W/{etag}"):
            stale = await sent(plane, method, path, sent_body, if_match=wrong)
            assert (stale.status_code, stale.json()["type"]) == (412, "urn:larder:problem:precondition-failed")
    if "ttl_s" not in body:  # which moves the end
        assert (await sent(plane, "PUT", path, body, if_match=etag)).json()["etag"] == etag, "it is the same"

    current = (await sent(plane, "GET", path)).headers["etag"]
    noted = await sent(plane, "PATCH", f"{path}?dry_run=true", NOTED, if_match=current)
    assert (noted.status_code, noted.json()["note"]) == (200, "another"), noted.text
    assert (await sent(plane, "GET", path)).headers["etag"] == current
    assert accepted(await sent(plane, "PATCH", path, NOTED, if_match=f'"1000", {current}'), 200)["note"] == "another"
    assert (await sent(plane, "PATCH", f"{path}?dry_run=true", NOTED, if_match=current)).status_code == 412
    assert (await sent(plane, "PATCH", path, {"note": None}, if_match="*")).json()["note"] == ""
    for value in (1, None):
        assert fault_paths(await sent(plane, "PATCH", path, {"colour": value}, if_match="*"))[0] == "colour"
    assert (await sent(plane, "PATCH", path, [], if_match="*")).status_code == 422
    assert fault_paths(await sent(plane, "PATCH", path, {"note": "a\x00"}, if_match="*"))[0] == "note"

    assert (await sent(plane, "DELETE", path, if_match=etag)).status_code == 412
    assert (await sent(plane, "DELETE", path, if_match="*")).is_success
    assert (await sent(plane, "GET", path)).status_code == 404
    entries = (await plane.get(f"/api/v1/audit?kind={noun}&limit=4"))["items"]
    assert [(entry["action"], entry["name"]) for entry in entries] == [
        (action, name) for action in ("delete", "update", "update", "create")
    ]
    assert entries[2]["after"]["note"] == "another"
    assert len(await plane.stored_events(f"name={noun}.changed&since={began}", 2)) == 2


DIRECTORIES = {"directories": ["/mnt/nvme0/larder"]}
PUSHED: list[tuple[str, dict[str, Any], Any, dict[str, Any], Any]] = [
    (
        "quotas/acme",
        {"limit_bytes": "512MiB", "floor_bytes": "64MiB", "weight": 2.5, "pin_budget_bytes": "32MiB",
         "store_rate_bytes": 1_000_000, "on_exceed": "reject", "mode": "observe", "note": "trial"},
        QuotaSpec("acme", 512 << 20, 64 << 20, 2.5, 32 << 20, 1_000_000, "reject", "observe"),
        {"floor_bytes": 5},
        QuotaSpec("acme", floor_bytes=5),
    ),
    (
        "policies/default",
        {"algorithm": "s3fifo", "admission": True, "admission_idle_s": 60, "high_watermark": 0.97,
         "low_watermark": 0.95, "note": "scans"},
        PolicySpec("default", "s3fifo", True, 60.0, 0.97, 0.95),
        {"admission": True},
        PolicySpec("default", "lru", True),
    ),
    (
        "tiers/nvme",
        {"type": "disk", "budget_bytes": "2GiB", "parameters": DIRECTORIES, "order": 1, "spill": "evict",
         "load_deadline_s": 2, "max_bytes_in_flight": "128MiB", "note": "fast"},
        TierSpec("nvme", "disk", 2 << 30, DIRECTORIES, 1, "evict", 2.0, 128 << 20),
        {"type": "disk", "budget_bytes": "1GiB", "parameters": DIRECTORIES},
        TierSpec("nvme", "disk", 1 << 30, DIRECTORIES),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("path", "whole", "spec", "few", "other_spec"), PUSHED, ids=[path for path, *_ in PUSHED])
async def test_a_record_reaches_the_node_with_its_defaults_and_a_deleted_one_is_removed(
    plane: Plane, node: FakeNode, path: str, whole: dict[str, Any], spec: Any, few: dict[str, Any], other_spec: Any
) -> None:
    kind = path.partition("/")[0]
    waited = f"{path}?wait=30s"
    assert accepted(await sent(plane, "PUT", waited, whole), 201)["status"]["applied"] is True
    assert getattr(node, kind) == [spec]
    changed = accepted(await sent(plane, "PUT", waited, few, if_match="*"), 200)
    assert getattr(node, kind) == [other_spec], "a put is the whole intent: fields that it leaves out have defaults"
    assert (await plane.get(f"/api/v1/{kind}"))["total"] == 1
    gone = await sent(plane, "DELETE", waited, if_match="*")
    assert gone.status_code == (200 if kind == "tiers" else 204)
    assert getattr(node, kind) == []
    (entry,) = (await plane.get("/api/v1/audit?limit=1"))["items"]
    expected = ("delete", kind, changed["generation"] + 1)
    assert (entry["action"], entry["type"], entry["generation"]) == expected


async def test_strength_and_refresh_of_a_pin_reach_the_node(plane: Plane, node: FakeNode) -> None:
    answer = await plane.put_pin("p", "30s", strength="soft", ttl_s=60, refresh_on_hit=True)
    (pin,) = node.pins
    assert (pin.strength, pin.refresh_s, pin.expires_at) == ("soft", 60.0, answer["expires_at"])
    assert (answer["strength"], answer["refresh_on_hit"], answer["ttl_s"]) == ("soft", True, 60.0)
    await plane.put_pin("p", "30s", strength="permanent")
    (pin,) = node.pins
    assert (pin.strength, pin.refresh_s, pin.expires_at) == ("permanent", None, None)


@pytest.mark.parametrize(
    ("path", "body", "patch", "expected", "wrong", "field"),
    [
        ("quotas/acme", {"limit_bytes": "1GiB", "weight": 2}, {"floor_bytes": "1KiB", "weight": None},
         {"limit_bytes": 1 << 30, "floor_bytes": 1024, "weight": 1.0}, {"floor_bytes": "2GiB"}, "floor_bytes"),
        ("policies/default", {"algorithm": "s3fifo", "admission_idle_s": 60, "low_watermark": 0.95},
         {"algorithm": "arc"}, {"algorithm": "arc", "admission_idle_s": 60}, {"high_watermark": 0.5}, "low_watermark"),
        ("policies/default", {"algorithm": "arc"}, {}, {"algorithm": "arc"}, {"selector": {"zone": "a"}}, "selector"),
        ("tiers/nvme", {"type": "disk", "budget_bytes": "2GiB", "parameters": DIRECTORIES},
         {"parameters": {"threads": 8}}, {"parameters": {**DIRECTORIES, "threads": 8}},
         {"parameters": {"directories": None}}, "parameters.directories"),
        ("pins/p", PIN, {}, {"tier": "host"}, {"tier": "disk"}, "tier"),
    ],
)  # fmt: skip
async def test_a_patch_keeps_the_other_fields_and_is_checked_whole(
    plane: Plane, path: str, body: dict[str, Any], patch: dict[str, Any], expected: dict[str, Any],
    wrong: dict[str, Any], field: str,
) -> None:  # fmt: skip
    assert (await sent(plane, "PUT", path, body)).status_code == 201
    patched = accepted(await sent(plane, "PATCH", path, patch, if_match="*"), 200)
    assert {name: patched[name] for name in expected} == expected
    assert fault_paths(await sent(plane, "PATCH", path, wrong, if_match="*"))[0] == field
    assert (await plane.get(f"/api/v1/{path}"))["etag"] == patched["etag"]


async def test_only_operators_of_the_whole_fleet_change_tiers(guarded: Plane) -> None:
    path, body = "/api/v1/tiers/nvme", EXAMPLES["TierPut"]
    limited = await create_token(guarded, "limited", "operator", tenants=["acme"])
    for token, reading, writing in (
        (await create_token(guarded, "viewer"), 404, 403),
        (limited, 403, 403),
        (await create_token(guarded, "operator", "operator"), 404, 201),
        ("", 401, 401),
    ):
        assert (await send(guarded, token, "GET", path)).status_code == reading
        assert (await send(guarded, token, "PUT", path, json=body)).status_code == writing
        if writing != 201:
            assert (await send(guarded, token, "PATCH", path, json={"order": 1})).status_code == writing
            assert (await send(guarded, token, "DELETE", path)).status_code == writing
    document = {"document": {"apiVersion": "larder/v1", "tiers": {"nvme": body}}}
    assert (await send(guarded, limited, "POST", "/api/v1/apply", json=document)).status_code == 403
    assert (await send(guarded, limited, "GET", "/api/v1/export")).json()["document"]["tiers"] == []


@of_every_type
async def test_an_unusable_name_is_refused(shared_plane: Plane, path: str, example: str, noun: str) -> None:
    kind, field = path.partition("/")[0], "tenant" if path.endswith("acme") else "name"
    unusable = "a%0Ab" if field == "tenant" else "a b"
    for method in ("GET", "PUT", "PATCH", "DELETE"):
        body = {"PUT": EXAMPLES[example], "PATCH": NOTED}.get(method)
        assert fault_paths(await sent(shared_plane, method, f"{kind}/{unusable}", body))[0] == field


@pytest.mark.parametrize(
    ("kind", "example", "field", "values", "more"),
    [
        ("quotas", "QuotaPut", "mode", ("enforce", "observe"), {}),
        ("pins", "PinPut", "tier", ("host", "gpu"), {}),
        ("pins", "PinPut", "strength", ("guaranteed", "soft"), {}),
        ("policies", "PolicyPut", "algorithm", ("arc", "lru"), {}),
        ("tiers", "TierPut", "type", ("disk", "redis"), {"redis": {"parameters": {"servers": ["cache:6379"]}}}),
        ("rates", "RatePut", "model", ("a", "b"), {}),
        ("quotas", "QuotaPut", "managed_by", ("team", "other"), {}),
    ],
)
async def test_a_list_is_filtered_sorted_and_paged(
    plane: Plane, kind: str, example: str, field: str, values: tuple[str, str], more: dict[str, Any]
) -> None:
    given = values if kind == "rates" else (values[0], values[1], values[0])  # a model has one rate
    for number, value in enumerate(given):
        body = {**EXAMPLES[example], field: value, **more.get(value, {})}
        assert (await sent(plane, "PUT", f"{kind}/r{number}", body)).is_success
    key = "tenant" if kind == "quotas" else "name"

    async def names(query: str) -> list[str]:
        return [item[key] for item in (await plane.get(f"/api/v1/{kind}?{query}"))["items"]]

    every = [f"r{number}" for number in range(len(given))]
    assert await names(f"{field}={values[1]}") == ["r1"]
    assert await names(f"sort=-{key}") == every[::-1]
    if field in ("mode", "tier", "strength", "algorithm"):
        assert fault_paths(await sent(plane, "GET", f"{kind}?{field}=best"))[0] == field
    first = await plane.get(f"/api/v1/{kind}?limit=1&{field}={values[0]}")
    assert (len(first["items"]), first["total"]) == (1, len(given) - 1)
    assert await names(f"limit=2&cursor={(await plane.get(f'/api/v1/{kind}?limit=1'))['next_cursor']}") == every[1:3]


async def test_a_pin_is_tried_with_the_message_of_its_field(plane: Plane) -> None:
    pin = (await sent(plane, "PUT", "pins/p", {**EXAMPLES["PinPut"], "ttl_s": 60})).json()
    tried = await sent(plane, "PATCH", "pins/p?dry_run=true", {"strength": "soft", "ttl_s": 6000}, if_match=pin["etag"])
    assert tried.json()["strength"] == "soft"
    assert tried.json()["expires_at"] > pin["expires_at"] + 5000
    refused = await sent(plane, "PATCH", "pins/p?dry_run=true", {"strength": "permanent"}, if_match=pin["etag"])
    assert [error["path"] for error in refused.json()["errors"]] == ["strength"]


async def test_a_patched_tokenizer_keeps_its_file(plane: Plane) -> None:
    made = (await sent(plane, "PUT", "tokenizers/words", EXAMPLES["TokenizerPut"])).json()
    noted = (await sent(plane, "PATCH", "tokenizers/words", {"note": "n"}, if_match=made["etag"])).json()
    assert (noted["digest"], noted["model"], noted["note"]) == (made["digest"], made["model"], "n")
