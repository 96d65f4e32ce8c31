"""Every route and every role: permitted and refused callers, as each route declares them."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from litestar.routes import HTTPRoute

from app.services.base.principals import ROLES
from dataplane.protocol.control.snapshots import Fault
from dataplane.protocol.stats.tenants import TenantStats
from tests.app.callers import ADMIN, bearer, create_token, guarding, send
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane, serving, settings_in
from tests.app.problems import accepted, is_problem

pytestmark = pytest.mark.anyio
OPEN = {
    "/",
    "/{path}",
    "/api",
    "/api/{path}",
    "/api/openapi.json",
    "/api/v1/session",
    "/metrics",
    "/healthz",
    "/readyz",
    "/healthz/fleet",
    "/healthcheck",
}
"""Paths that may have a method that needs no token, or needs none by a setting."""
UNDER = ("/api/docs", "/docs", "/api/v1/join")
"""The description of the API and the documentation are no secrets; nodes that join prove themselves with tokens of
their own."""


def routes(app: Any) -> list[tuple[str, str, dict[str, Any]]]:
    """Method, path and `opt` of every route that Larder declares."""
    return [
        (method, route.path_format, handler.opt)
        for route in app.litestar.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        for method in handler.http_methods
        if method != "OPTIONS"  # made by the framework: tells methods, and nothing else
    ]


def is_open(path: str, opt: dict[str, Any]) -> bool:
    return opt["role"] == "anyone" or "opened_by" in opt


async def status(plane: Plane, method: str, path: str, token: str) -> int:
    """Only the status: some answers never end."""
    address = re.sub(r"\{[^}]*\}", "1", path)
    headers = bearer(token) if token else {}
    base = str(plane.http.base_url)
    async with (
        httpx.AsyncClient(base_url=base, trust_env=False, verify=False, timeout=60) as http,
        http.stream(method, address, headers={**headers, "accept": "text/html"}) as answer,
    ):
        return answer.status_code


async def test_every_route_declares_and_checks_its_role(guarded: Plane) -> None:
    tokens = {role: await create_token(guarded, f"{role}-token", role) for role in ROLES}
    limited = await create_token(guarded, "limited", "operator", tenants=["only-mine"])
    wrong = []
    for method, path, opt in routes(guarded.app):
        assert opt.get("role") in (*ROLES, "anyone"), f"{method} {path} does not say in opt who may use it"
        if is_open(path, opt):
            assert path in OPEN or path.startswith(UNDER), f"{path} answers everybody"
            continue
        allowed = ROLES.index(opt["role"])
        seen: dict[str, Any] = {"nobody": (await status(guarded, method, path, ""), (401,))}
        for place, role in enumerate(ROLES):
            got = await status(guarded, method, path, tokens[role])
            seen[role] = (got, () if place >= allowed or role == opt.get("also") else (403,))
        got = await status(guarded, method, path, limited)
        may = opt.get("scoped", False) and opt["role"] != "admin"
        seen["limited"] = (got, () if may else (403,))
        for caller, (got, expected) in seen.items():
            refused = got in (401, 403)
            if (expected and got not in expected) or (not expected and refused and caller != "limited"):
                wrong.append(f"{method} {path} by {caller}: {got}")
            assert got < 500 or got == 503, f"{method} {path} by {caller}: {got}"
    assert wrong == []


async def test_metrics_name_tenants_so_they_need_a_token_as_soon_as_others_do(
    socket_dir: Path, new_node: FakeNode
) -> None:
    new_node.stats.tenants = [TenantStats("acme", bytes=7)]
    async with serving(settings_in(socket_dir)) as plane:  # nobody needs a token before there is one
        await plane.until_state("in_sync")
        assert await status(plane, "GET", "/metrics", "") == 200
        first = await create_token(plane, "first", "admin")
        assert await status(plane, "GET", "/metrics", "") == 401
        viewer = (
            await send(plane, first, "POST", "/api/v1/tokens", json={"name": "scraper", "role": "viewer"})
        ).json()["token"]
        assert await status(plane, "GET", "/metrics", viewer) == 200
    async with guarding(socket_dir, anonymous_metrics=True) as plane:
        await plane.events_flow()
        answer = await send(plane, "", "GET", "/metrics")
        assert (answer.status_code, 'tenant="acme"' in answer.text) == (200, True)


async def test_health_needs_no_token_and_shows_no_name_without_one(
    socket_dir: Path, new_node: FakeNode, new_guarded: Plane
) -> None:
    await new_guarded.until_state("in_sync")
    assert accepted(await send(new_guarded, "", "GET", "/readyz"), 200) == {"status": "ready", "database": ""}
    fleet = await send(new_guarded, "", "GET", "/healthz/fleet")
    assert (fleet.status_code, fleet.json()) == (200, {"status": "ok", "nodes": {}, "database": ""})
    assert (await new_guarded.get("/healthz/fleet"))["nodes"] == {"node-a": "in_sync"}
    new_node.faults = [Fault("quotas[0].limit_bytes", "bad_field", "acme wants too much")]
    await new_guarded.put_quota("acme", 1)
    assert (await send(new_guarded, "", "GET", "/readyz")).status_code == 200
    behind = is_problem(await send(new_guarded, "", "GET", "/healthz/fleet"), 503)
    assert behind["detail"] == "1 of 1 nodes have not applied the current records"
    assert "node-a is nacked" in (await new_guarded.http.get("/healthz/fleet")).json()["detail"]
    Path(sa.make_url(new_guarded.app.parts.settings.common.database_url).database or "").rename(socket_dir / "aside")
    for path in ("/healthz", "/readyz", "/healthz/fleet"):
        assert is_problem(await send(new_guarded, "", "GET", path), 503)["detail"] == "the database does not answer"


async def test_metrics_and_health_are_guarded_by_settings(socket_dir: Path) -> None:
    async with guarding(socket_dir, anonymous_health=False) as plane:
        viewer, limited = await create_token(plane, "v"), await create_token(plane, "l", tenants=["a"])
        for path in ("/metrics", "/healthz", "/readyz", "/healthz/fleet"):
            assert await status(plane, "GET", path, "") == 401
            assert await status(plane, "GET", path, viewer) in (200, 503)
        assert await status(plane, "GET", "/metrics", limited) == 403, "it tells of all tenants"
        assert await status(plane, "GET", "/healthz", limited) == 200
    async with guarding(socket_dir) as plane:
        for path in ("/healthz", "/readyz", "/healthz/fleet"):
            assert await status(plane, "GET", path, "") in (200, 503)


async def test_the_address_of_a_caller_is_taken_from_trusted_proxies_alone(socket_dir: Path) -> None:
    sent = {"X-Forwarded-For": "203.0.113.9, 198.51.100.7", **bearer(ADMIN)}
    for proxies, source in (("", "127.0.0.1"), ("10.0.0.0/8", "127.0.0.1"), ("127.0.0.1", "198.51.100.7"),
                            ("127.0.0.0/8, 198.51.100.0/24", "203.0.113.9")):  # fmt: skip
        async with guarding(socket_dir, trusted_proxies=proxies) as plane:
            caller = (await plane.http.get("/api/v1/whoami", headers=sent)).json()
            assert caller["source"] == source, proxies
            nonsense = {**bearer(ADMIN), "X-Forwarded-For": "<script>, , 1.2.3"}
            assert (await plane.http.get("/api/v1/whoami", headers=nonsense)).json()["source"] == "127.0.0.1"


async def test_a_proxy_that_is_not_named_authenticates_no_caller_while_no_token_exists(socket_dir: Path) -> None:
    async with serving(settings_in(socket_dir)) as plane:
        for sent in ({"X-Forwarded-For": "203.0.113.9"}, {"forwarded": "for=203.0.113.9"}, {"X-Real-IP": ""}):
            for method, path in (("GET", "/api/v1/quotas"), ("PUT", "/api/v1/quotas/acme"), ("GET", "/metrics"),
                                 ("GET", "/api/v1/events"), ("POST", "/api/v1/tokens")):  # fmt: skip
                refused = await send(plane, "", method, path, headers=sent, json={"limit_bytes": 1})
                assert (refused.status_code, refused.json()["type"]) == (403, "urn:larder:problem:forbidden")
                for expected in ("LARDER_APP__TRUSTED_PROXIES", "larder tokens create", "LARDER_APP__AUTH=required"):
                    assert expected in refused.json()["detail"]
            assert (await send(plane, "", "GET", "/healthz", headers=sent)).status_code == 200
        assert (await plane.get("/api/v1/quotas"))["total"] == 0
        assert (await plane.get("/api/v1/audit?decision=denied"))["total"] >= 5, "the same once a minute"
        token = await create_token(plane, "first", "admin")
        proxied = {"X-Forwarded-For": "203.0.113.9"}
        assert (await send(plane, token, "GET", "/api/v1/quotas", headers=proxied)).status_code == 200
        assert (await send(plane, "", "GET", "/api/v1/quotas", headers=proxied)).status_code == 401
    async with guarding(socket_dir, trusted_proxies="127.0.0.1") as plane:
        assert (await send(plane, "", "GET", "/api/v1/quotas", headers=proxied)).status_code == 401
