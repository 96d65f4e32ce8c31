"""Owners of records: a record's owner is set by documents and unlimited callers alone."""

from pathlib import Path
from typing import Any

import pytest

from tests.app.callers import create_token, send
from tests.app.plane import PIN, Plane, serving, settings_in
from tests.app.problems import accepted, fault_paths

pytestmark = pytest.mark.anyio
ANY = {"If-Match": "*"}
CEILING = {"max_limit_bytes": "4GiB", "no_bound": ["max_floor_bytes", "max_weight"]}


def document(owner: str, **sections: Any) -> dict[str, Any]:
    return {"apiVersion": "larder/v1", **({"managed_by": owner} if owner else {}), **sections}


async def operator(plane: Plane) -> str:
    await plane.http.put("/api/v1/ceilings/acme", json=CEILING)
    return await create_token(plane, "op", "operator", tenants=["acme"])


async def test_a_limited_caller_neither_sets_nor_changes_owners(guarded: Plane) -> None:
    token = await operator(guarded)
    pin = {**PIN, "tenant": "acme"}
    new: list[tuple[str, dict[str, Any]]] = [
        ("/api/v1/quotas/acme", {"limit_bytes": 5}), ("/api/v1/pins/mine", pin),
    ]  # fmt: skip
    for path, body in new:
        for owner in ("boot", "team"):
            refused = await send(guarded, token, "PUT", path, json={**body, "managed_by": owner})
            assert (refused.status_code, refused.json()["errors"][0]["path"]) == (403, "managed_by")
        assert (await guarded.http.put(path, json={**body, "managed_by": "team"})).status_code == 201
        for patch in ({"managed_by": ""}, {"managed_by": "boot"}, {"managed_by": "other"}):
            refused = await send(guarded, token, "PATCH", path, json=patch, headers=ANY)
            assert fault_paths(refused, 403)[0] == "managed_by"
        refused = await send(guarded, token, "PUT", path, json=body, headers=ANY)
        assert "expected 'team', as it is" in refused.json()["detail"], "left out is nobody's"
        response = await send(guarded, token, "PATCH", path, json={"note": "n"}, headers=ANY)
        assert (response.status_code, response.json()["managed_by"]) == (200, "team")


async def test_a_limited_caller_applies_its_own_documents_and_takes_nothing_over(guarded: Plane) -> None:
    token = await operator(guarded)
    await guarded.http.put("/api/v1/quotas/acme", json={"limit_bytes": 5, "managed_by": "team"})
    pins = {"mine": {**PIN, "tenant": "acme"}}

    async def apply(body: dict[str, Any], **more: Any) -> Any:
        return await send(guarded, token, "POST", "/api/v1/apply", json={"document": body, **more})

    for owner in ("us", ""):
        for take_over, status in ((False, 409), (True, 403)):
            theirs = document(owner, quotas={"acme": {"limit_bytes": 5}})
            refused = await apply(theirs, take_over=take_over)
            assert refused.status_code == status, refused.text
    assert refused.json()["errors"][0]["path"] == "quotas.acme.managed_by"
    one = document("", pins={"mine": {**PIN, "tenant": "acme", "managed_by": "us"}})
    assert (await apply(one)).status_code == 403, "whose a document is says the document"
    assert fault_paths(await apply(document("boot", pins=pins)), 403)[0] == "managed_by"
    assert (await apply(document("us", pins=pins))).status_code == 200
    assert (await guarded.get("/api/v1/pins/mine"))["managed_by"] == "us"
    assert (await apply(document("us"), prune=True)).json()["deleted"] == 1


async def test_no_caller_makes_a_record_the_start_files_own_over_the_api(plane: Plane) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "quotas/a": {"limit_bytes": 1}, "pins/a": PIN, "policies/default": {"algorithm": "arc"},
    }  # fmt: skip
    for name, body in bodies.items():
        path = f"/api/v1/{name}"
        assert fault_paths(await plane.http.put(path, json={**body, "managed_by": "boot"}), 403)[0] == "managed_by"
        assert (await plane.http.put(path, json=body)).status_code == 201
        refused = await plane.http.patch(path, json={"managed_by": "boot"}, headers=ANY)
        assert refused.status_code == 403, refused.text
    body = {"document": document("boot", quotas={"b": {"limit_bytes": 1}}), "take_over": True}
    assert (await plane.http.post("/api/v1/apply", json=body)).status_code == 403


async def test_the_start_file_keeps_its_own_and_an_admin_may_take_them_from_it(socket_dir: Path) -> None:
    file = socket_dir / "larder.yaml"
    file.write_text("apiVersion: larder/v1\nquotas: {acme: {limit_bytes: 5}, b: {limit_bytes: 5, managed_by: boot}}\n")
    async with serving(settings_in(socket_dir, apply_file=str(file), apply_prune=True)) as plane:
        for tenant in ("acme", "b"):
            assert (await plane.get(f"/api/v1/quotas/{tenant}"))["managed_by"] == "boot"
        patch = {"note": "n"}
        response = await plane.http.patch("/api/v1/quotas/acme", json=patch, headers=ANY)
        assert (response.status_code, response.json()["managed_by"]) == (200, "boot")
        accepted(await plane.http.patch("/api/v1/quotas/acme", json={"managed_by": "team"}, headers=ANY), 200)


async def test_pins_of_a_limited_caller_do_not_read_labels_of_nodes(guarded: Plane) -> None:
    token = await operator(guarded)
    pin, at = {**PIN, "tenant": "acme"}, "/api/v1/pins/mine"
    picky = {**pin, "selector": {"zone": "eu"}}
    assert fault_paths(await send(guarded, token, "PUT", at, json=picky), 403)[0] == "selector"
    body = {"document": document("us", pins={"mine": picky}), "dry_run": True}
    refused = await send(guarded, token, "POST", "/api/v1/apply", json=body)
    assert refused.json()["errors"][0]["path"] == "pins.mine.selector"
    assert (await send(guarded, token, "PUT", at, json=pin)).status_code == 201
    for selector, status in (({"zone": "eu"}, 403), ({}, 200), (None, 200)):
        patch = {"selector": selector}
        answer = await send(guarded, token, "PATCH", at, json=patch, headers=ANY)
        assert answer.status_code == status, answer.text
    assert (await guarded.http.patch(at, json={"selector": {"zone": "eu"}}, headers=ANY)).status_code == 200
    response = await send(guarded, token, "PATCH", at, json={"note": "n"}, headers=ANY)
    assert (response.status_code, response.json()["selector"]) == (200, {"zone": "eu"})


async def test_generations_of_the_fleet_are_hidden_from_limited_callers(guarded: Plane) -> None:
    token = await operator(guarded)
    await guarded.http.put("/api/v1/quotas/other", json={"limit_bytes": 5})
    body: dict[str, Any] = {"document": document("us"), "dry_run": True}
    for method, path, more in (
        ("GET", "/api/v1/export", {}), ("POST", "/api/v1/apply", {"json": body}),
        ("POST", "/api/v1/apply", {"json": {**body, "dry_run": False}}),
    ):  # fmt: skip
        assert accepted(await send(guarded, token, method, path, **more), 200)["generations"] == {}
    guess = await send(guarded, token, "POST", "/api/v1/apply", json={**body, "expect": {"quotas": 0}})
    assert (guess.status_code, guess.json()["errors"][0]["path"]) == (403, "expect")
    assert (await guarded.get("/api/v1/export"))["generations"]["quotas"] >= 1
