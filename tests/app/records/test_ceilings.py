"""Tenant-limited callers: what they see, and how far a ceiling lets them go."""

import asyncio
import re
from typing import Any

import httpx
import pytest

from tests.app.callers import bearer, create_token, send
from tests.app.command import output
from tests.app.plane import PIN, Plane
from tests.app.problems import accepted, fault_paths, is_problem

pytestmark = pytest.mark.anyio
Q, C = "/api/v1/quotas/acme", "/api/v1/ceilings/acme"
ANY = {"If-Match": "*"}
CEILING: dict[str, Any] = {
    "max_limit_bytes": "4GiB", "max_floor_bytes": "1GiB", "max_weight": 2, "max_pin_budget_bytes": "512MiB",
    "max_store_rate_bytes": "100MiB",
}  # fmt: skip
WITHIN: dict[str, Any] = {
    "limit_bytes": "4GiB", "floor_bytes": "1GiB", "weight": 2, "pin_budget_bytes": "512MiB",
    "store_rate_bytes": "100MiB",
}  # fmt: skip


async def with_operator(plane: Plane) -> str:
    return await create_token(plane, "acme-op", "operator", tenants=["acme"])


async def put(plane: Plane, token: str, path: str, **body: Any) -> httpx.Response:
    answer = await send(plane, token, "PUT", path, json=body)
    if answer.status_code == 428:
        answer = await send(plane, token, "PUT", path, json=body, headers=ANY)
    return answer


async def test_without_a_ceiling_a_tenants_operator_may_not_change_its_quota(guarded: Plane) -> None:
    token = await with_operator(guarded)
    assert "larder ceilings set acme" in is_problem(await put(guarded, token, Q, limit_bytes=1), 403)["detail"]
    await guarded.put_quota("acme", 5, wait="")
    for method, body in (("PATCH", {"note": "x"}), ("DELETE", None)):
        assert (await send(guarded, token, method, Q, json=body, headers=ANY)).status_code == 403
    assert (await guarded.get(Q))["limit_bytes"] == 5
    assert (await put(guarded, token, "/api/v1/pins/p", **PIN, tenant="acme")).status_code == 201


async def test_a_bound_caller_may_read_its_ceiling_and_no_other_and_change_none(guarded: Plane) -> None:
    token = await with_operator(guarded)
    assert "may pin (soft and guaranteed)" in is_problem(await send(guarded, token, "GET", C), 404)["detail"]
    for tenant in ("acme", "rival"):
        body = {**CEILING, "note": "they pay late"}
        assert (await guarded.http.put(f"/api/v1/ceilings/{tenant}", json=body)).status_code == 201
    whole = (await guarded.http.get(C)).json()
    assert whole["note"] == "they pay late"
    own = await send(guarded, token, "GET", C)
    assert (own.json(), own.headers["etag"]) == ({**whole, "note": ""}, whole["etag"])
    listed = (await send(guarded, token, "GET", "/api/v1/ceilings")).json()
    assert listed == {"items": [{**whole, "note": ""}], "total": 1, "next_cursor": ""}
    assert (await send(guarded, token, "GET", "/api/v1/ceilings/rival")).status_code == 403
    for method, change in (("PUT", CEILING), ("PATCH", {"note": "x"}), ("DELETE", None)):
        assert (await send(guarded, token, method, C, json=change, headers=ANY)).status_code == 403
    viewer = await create_token(guarded, "viewer")
    assert (await send(guarded, viewer, "GET", "/api/v1/ceilings")).json()["total"] == 2


async def test_a_ceiling_bounds_each_field_and_unbounded_values_exceed_it(guarded: Plane) -> None:
    token = await with_operator(guarded)
    assert (await guarded.http.put(C, json=CEILING)).status_code == 201
    assert (await put(guarded, token, Q, **WITHIN)).status_code == 201
    for field, above in (
        ("limit_bytes", "5GiB"), ("floor_bytes", "2GiB"), ("weight", 2.5), ("pin_budget_bytes", "513MiB"),
        ("store_rate_bytes", "101MiB"), ("limit_bytes", None), ("pin_budget_bytes", None),
        ("store_rate_bytes", None), ("mode", "observe"), ("selector", {"gpu": "h200"}),
    ):  # fmt: skip
        refused = await put(guarded, token, Q, **{**WITHIN, field: above})
        assert refused.status_code == 403, (field, above, refused.text)
        assert refused.json()["errors"][0]["path"] == field
        patched = await send(guarded, token, "PATCH", Q, json={field: above}, headers=ANY)
        assert patched.status_code == 403, (field, above, patched.text)
    for left_out in ("limit_bytes", "pin_budget_bytes", "store_rate_bytes"):
        body = {name: value for name, value in WITHIN.items() if name != left_out}
        assert (await put(guarded, token, Q, **body)).status_code == 403, left_out
    assert (await send(guarded, token, "DELETE", Q, headers=ANY)).status_code == 403
    assert accepted(await put(guarded, token, Q, **{**WITHIN, "limit_bytes": "2GiB"}), 200)["limit_bytes"] == 2 << 30


LEFT_OUT: tuple[tuple[str, Any, Any, Any], ...] = (
    ("floor_bytes", 5, 4, 6), ("weight", 2, 1.5, 2.5), ("pin_budget_bytes", 4, 3, None),
    ("store_rate_bytes", 9, 8, None), ("limit_bytes", 50, 49, None),
)  # fmt: skip
"""Field, what it is, something lower, and something higher."""


async def test_fields_that_a_ceiling_leaves_out_may_be_lowered_and_not_raised(guarded: Plane) -> None:
    token = await with_operator(guarded)
    named = (await guarded.http.put(C, json={"note": "nothing is theirs to raise"})).json()
    assert (named["max_weight"], named["no_bound"]) == (None, ["max_ttl_s"])
    first = await put(guarded, token, Q, weight=1.5)
    assert first.json()["errors"][0]["message"] == (
        "expected at most 1 (the current value: the tenant's ceiling sets no bound for it, so it can only be "
        "lowered), got 1.5"
    )
    assert (await put(guarded, token, Q, limit_bytes=9)).status_code == 201, "they had no limit, now they have one"
    assert (await send(guarded, token, "DELETE", Q, headers=ANY)).status_code == 403, "that would lift it"
    whole = {field: now for field, now, _, _ in LEFT_OUT}
    await guarded.http.put(Q, json=whole, headers=ANY)
    for field, now, lower, higher in LEFT_OUT:
        for value, expected in ((higher, 403), (now, 200), (lower, 200), (now, 403)):
            answer = await send(guarded, token, "PATCH", Q, json={field: value}, headers=ANY)
            assert answer.status_code == expected, (field, value, answer.text)
        await guarded.http.put(Q, json=whole, headers=ANY)


async def test_no_bound_at_all_must_be_explicit_and_is_shown(guarded: Plane) -> None:
    token = await with_operator(guarded)
    made_one = (await guarded.http.put(C, json={"no_bound": ["max_weight", "max_limit_bytes"]})).json()
    assert made_one["no_bound"] == ["max_limit_bytes", "max_weight", "max_ttl_s"]
    assert (await put(guarded, token, Q, limit_bytes=5, weight=1000)).status_code == 201
    assert (await put(guarded, token, Q, weight=1000)).status_code == 200, "without a limit again"
    assert (await put(guarded, token, Q, weight=1000, floor_bytes=1)).status_code == 403
    bound = (await guarded.http.patch(C, json={"max_weight": 2}, headers=ANY)).json()
    assert (bound["max_weight"], bound["no_bound"]) == (2, ["max_limit_bytes", "max_ttl_s"])
    closed = (await guarded.http.patch(C, json={"no_bound": None, "max_ttl_s": 5}, headers=ANY)).json()
    assert (closed["max_limit_bytes"], closed["no_bound"]) == (None, [])


async def test_the_command_line_shows_fields_without_bound_and_fields_that_may_not_be_raised(plane: Plane) -> None:
    out = await output(plane, "ceilings", "set", "acme", "--limit", "8GiB", "--weight", "none")
    assert out == "acme: ceiling set; no bound for weight, ttl; floor, pin budget, store rate may not be raised\n"
    out = await output(plane, "ceilings", "list")
    row = next(line for line in out.splitlines() if "acme" in line)
    assert re.split("  +", row.strip())[:7] == [
        "acme", "8 GiB", "as it is", "no bound", "as it is", "as it is", "no bound",
    ]  # fmt: skip
    out = await output(plane, "ceilings", "set", "acme", "--weight", "2", "--ttl", "7d", "--floor", "none")
    assert out == "acme: ceiling set; no bound for floor; pin budget, store rate may not be raised\n"
    stored = await plane.get(C)
    assert (stored["max_limit_bytes"], stored["max_weight"], stored["no_bound"]) == (8 << 30, 2, ["max_floor_bytes"])


async def test_a_record_that_an_admin_set_above_the_ceiling_stays_when_another_field_changes(guarded: Plane) -> None:
    token = await with_operator(guarded)
    await guarded.http.put(C, json={"max_limit_bytes": 10})
    await guarded.put_quota("acme", 50, wait="")
    noted = await send(guarded, token, "PATCH", Q, json={"note": "ours"}, headers=ANY)
    assert (noted.status_code, noted.json()["limit_bytes"]) == (200, 50)
    assert (await send(guarded, token, "PATCH", Q, json={"limit_bytes": 51}, headers=ANY)).status_code == 403
    assert (await send(guarded, token, "PATCH", Q, json={"limit_bytes": 10}, headers=ANY)).status_code == 200
    assert (await send(guarded, token, "PATCH", Q, json={"limit_bytes": 50}, headers=ANY)).status_code == 403


async def test_a_ceiling_bounds_the_strength_and_the_end_of_pins(guarded: Plane) -> None:
    token = await with_operator(guarded)
    pin = {**PIN, "tenant": "acme"}
    assert fault_paths(await put(guarded, token, "/api/v1/pins/p", **pin, strength="permanent"), 403)[0] == "strength"
    await guarded.http.put(C, json={"max_ttl_s": 60, "strengths": ["soft"]})
    for more, path in (({"strength": "guaranteed", "ttl_s": 5}, "strength"), ({"strength": "soft"}, "ttl_s"),
                       ({"strength": "soft", "ttl_s": 61}, "ttl_s")):  # fmt: skip
        assert fault_paths(await put(guarded, token, "/api/v1/pins/p", **pin, **more), 403)[0] == path
    assert (await put(guarded, token, "/api/v1/pins/p", **pin, strength="soft", ttl_s=60)).status_code == 201


async def test_a_token_of_another_tenant_sees_and_changes_nothing(guarded: Plane) -> None:
    await guarded.put_quota("acme", 5, wait="")
    await guarded.put_pin("secret-pin", wait="", tenant="acme")
    await guarded.http.put(C, json=CEILING)
    token = await create_token(guarded, "other", "operator", tenants=["other", "_default"])
    for method, path in (("GET", Q), ("PUT", Q), ("PATCH", Q), ("DELETE", Q)):
        body = None if method in ("GET", "DELETE") else {"limit_bytes": 1}
        assert (await send(guarded, token, method, path, json=body, headers=ANY)).status_code == 403
    for path in ("/api/v1/quotas", "/api/v1/pins"):
        listed = (await send(guarded, token, "GET", path)).json()
        assert (listed["items"], listed["total"]) == ([], 0)
    assert (await send(guarded, token, "GET", "/api/v1/pins/secret-pin")).status_code == 404
    assert (await send(guarded, token, "DELETE", "/api/v1/pins/secret-pin", headers=ANY)).status_code == 404
    taken = await put(guarded, token, "/api/v1/pins/secret-pin", **PIN, tenant="other")
    assert (taken.status_code, "acme" in taken.text) == (403, False)
    assert (await put(guarded, token, "/api/v1/pins/mine", **PIN, tenant="acme")).status_code == 403
    for method, path in (("GET", C), ("GET", "/api/v1/tokens"), ("POST", "/api/v1/actions/demote")):
        scope = {"tenant": "acme"} if method == "POST" else None
        assert (await send(guarded, token, method, path, json=scope)).status_code == 403
    overview = await send(guarded, token, "GET", "/api/v1/overview")
    assert overview.status_code == 200
    assert "acme" not in overview.text
    assert "secret-pin" not in overview.text
    for path in ("/api/v1/policies", "/api/v1/audit"):
        assert (await send(guarded, token, "GET", path)).status_code == 403


async def test_a_stream_of_a_limited_caller_has_its_tenants_alone(guarded: Plane) -> None:
    token = await create_token(guarded, "other", tenants=["other"])
    async with guarded.http.stream("GET", "/api/v1/events", headers=bearer(token)) as stream:
        lines = stream.aiter_lines()
        while await anext(lines) != "event: overview":
            pass
        await guarded.put_quota("acme", 5, wait="")
        await guarded.put_quota("other", 5, wait="")
        seen = ""
        async with asyncio.timeout(60):
            while '"tenants_total":1' not in seen or '"quota.created"' not in seen:
                seen += await anext(lines)
    assert "acme" not in seen
