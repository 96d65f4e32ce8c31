"""Browsers: a token becomes a cookie, changes need the page's own token, and a session ends when it must."""

import asyncio
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from app.services.access import sessions
from app.store.access.tokens import SessionRow
from tests.app.callers import ADMIN, bearer, create_token, guarding
from tests.app.plane import Plane
from tests.app.problems import accepted, is_problem

pytestmark = pytest.mark.anyio
SESSION, Q = "/api/v1/session", "/api/v1/quotas/acme"


def browser(plane: Plane) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=str(plane.http.base_url), trust_env=False, verify=False, timeout=60)


def attributes_of(cookie: str) -> set[str]:
    """The attributes without a value; the value of the cookie is random text."""
    return {part.strip().lower() for part in cookie.split(";")[1:]}


async def test_a_session_has_the_rights_of_its_token_and_changes_need_the_pages_token(socket_dir: Path) -> None:
    async with guarding(socket_dir) as plane, browser(plane) as page:
        token = await create_token(plane, "ops", "operator")
        login = await page.post(SESSION, json={"token": f" {token}\n"})
        assert login.status_code == 200, login.text
        cookie = login.headers["set-cookie"].lower()
        for part in ("larder_session=", "httponly", "samesite=strict", "path=/", "max-age=43200"):
            assert part in cookie
        assert "secure" not in attributes_of(cookie)
        assert (login.headers["cache-control"], token in login.text) == ("no-store", False)
        csrf = login.headers["x-csrf-token"]
        identity = (await page.get(SESSION)).json()
        assert (identity["actor"], identity["role"], identity["session"], identity["csrf_token"]) == (
            "ops",
            "operator",
            True,
            csrf,
        )
        assert (await page.get("/api/v1/whoami")).json()["session"]
        for sent in ("", "0" * 64, "\xfc", csrf[:-1]):
            headers = {b"x-csrf-token": sent.encode("latin-1")}
            refused = await page.put(Q, json={"limit_bytes": 1}, headers=headers)
            assert (refused.status_code, "X-CSRF-Token" in refused.json()["detail"]) == (403, True)
        accepted(await page.put(Q, json={"limit_bytes": 1}, headers={"x-csrf-token": csrf}), 201)
        assert (await page.put(Q, json={"limit_bytes": 1}, headers={**bearer(token), "If-Match": "*"})).is_success
        assert (await page.get("/api/v1/tokens")).status_code == 403
        other = await page.post(SESSION, json={"token": token})
        assert other.headers["x-csrf-token"] != csrf, "each session has its own"


async def test_a_session_ends_with_logout_and_with_its_token(socket_dir: Path, database_url: str) -> None:
    async with guarding(socket_dir, database_url) as plane, browser(plane) as page:
        token = await create_token(plane, "ops", "operator")
        csrf = (await page.post(SESSION, json={"token": token})).headers["x-csrf-token"]
        cookies = dict(page.cookies)
        assert (await page.delete(SESSION)).status_code == 403
        out = await page.delete(SESSION, headers={"x-csrf-token": csrf})
        assert (out.status_code, "max-age=0" in out.headers["set-cookie"].lower()) == (204, True)
        page.cookies.update(cookies)
        assert "over" in is_problem(await page.get(SESSION), 401)["detail"]
        assert (await page.post(SESSION, json={"token": token})).status_code == 200
        assert (await plane.http.delete("/api/v1/tokens/ops")).status_code == 204
        assert (await page.get(SESSION)).status_code == 401
        done = [(e["action"], e["actor"]) for e in (await plane.get("/api/v1/audit?kind=session"))["items"]]
        assert done == [("login", "ops"), ("logout", "ops"), ("login", "ops")]


async def test_a_session_says_that_it_ends_with_its_token(socket_dir: Path) -> None:
    async with guarding(socket_dir) as plane, browser(plane) as page:
        made = await plane.http.post("/api/v1/tokens", json={"name": "ops", "role": "viewer", "ttl_s": 600})
        login = (await page.post(SESSION, json={"token": made.json()["token"]})).json()
        assert login["expires_at"] == (await page.get(SESSION)).json()["expires_at"] == made.json()["expires_at"]
        await plane.http.patch("/api/v1/tokens/ops", json={"ttl_s": 86_400})
        assert (await page.get(SESSION)).json()["expires_at"] - login["expires_at"] > sessions.SESSION_S - 700


async def test_a_session_of_the_settings_token_ends_when_that_changes(socket_dir: Path) -> None:
    async with guarding(socket_dir) as plane, browser(plane) as page:
        assert (await page.post(SESSION, json={"token": ADMIN})).status_code == 200
        assert (await page.get("/api/v1/tokens")).status_code == 200
        cookies = dict(page.cookies)
    async with guarding(socket_dir) as plane, browser(plane) as page:
        page.cookies.update(cookies)
        assert (await page.get(SESSION)).json()["actor"] == "admin"
    from tests.app.plane import serving, settings_in

    async with serving(settings_in(socket_dir, admin_token="another-" + ADMIN)) as plane, browser(plane) as page:
        page.cookies.update(cookies)
        assert (await page.get(SESSION)).status_code == 401


async def test_wrong_logins_are_refused_logged_and_slowed_down(socket_dir: Path) -> None:
    async with guarding(socket_dir) as plane, browser(plane) as page:
        answers = await asyncio.gather(*(page.post(SESSION, json={"token": f"wrong-{n}"}) for n in range(40)))
        statuses = [answer.status_code for answer in answers]
        assert statuses.count(401) >= 10
        assert 429 in statuses
        assert (await page.post(SESSION, json={"token": ADMIN})).status_code == 200
        total = (await plane.get("/api/v1/audit?decision=denied"))["total"]
        assert total in (1, 2, 3), "the same once a minute, and how often it came again"
        for body in ({}, {"token": 5}, {"token": "x" * 513}, {"token": "x", "more": 1}):
            assert (await page.post(SESSION, json=body)).status_code == 422
        page.cookies.clear()
        for value in ("", "x", "0" * 64, "0" * 5000, "\xff"):
            cookie = {b"cookie": f"larder_session={value}".encode("latin-1")}
            assert (await page.get(SESSION, headers=cookie)).status_code == 401


async def test_a_token_has_so_many_sessions_and_one_more_ends_the_oldest(
    socket_dir: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_OF_A_TOKEN", 3)
    async with guarding(socket_dir, database_url) as plane, browser(plane) as page:
        token, other = await create_token(plane, "ops", "operator"), await create_token(plane, "other")

        async def opened(text: str) -> str:
            page.cookies.clear()
            assert (await page.post(SESSION, json={"token": text})).status_code == 200
            return str(page.cookies["larder_session"])

        async def valid(cookies: list[str]) -> list[bool]:
            page.cookies.clear()
            answers = [await page.get(SESSION, headers={"cookie": f"larder_session={cookie}"}) for cookie in cookies]
            return [answer.status_code == 200 for answer in answers]

        for text in (token, ADMIN):
            opened_sessions = [await opened(other), *[await opened(text) for _ in range(3)]]
            assert await valid(opened_sessions) == [True] * 4
            opened_sessions.append(await opened(text))
            assert await valid(opened_sessions) == [True, False, True, True, True]
        async with plane.app.parts.database.read() as session:
            count = await session.scalar(sa.select(sa.func.count()).select_from(SessionRow))
        assert count == 3 + 3 + 2, "no row is left of those that ended"


async def test_a_token_that_logs_in_again_and_again_waits_and_the_audit_does_not_grow(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "LOGINS", 3)
    monkeypatch.setattr(sessions, "LOGINS_PER_SECOND", 1e-6)
    async with guarding(socket_dir) as plane, browser(plane) as page:
        token, other = await create_token(plane, "ops"), await create_token(plane, "other")
        answers = [await page.post(SESSION, json={"token": token}) for _ in range(20)]
        assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 17
        assert answers[-1].json()["type"].endswith("too-many-requests")
        assert int(answers[-1].headers["retry-after"]) > 0
        assert (await page.post(SESSION, json={"token": other})).status_code == 200
        entries = (await plane.get("/api/v1/audit?limit=100"))["items"]
        assert [entry["actor"] for entry in entries if entry["action"] == "login"] == ["other", *["ops"] * 3]


async def test_over_https_the_cookie_is_for_this_host_and_https_alone(socket_dir: Path) -> None:
    async with guarding(socket_dir, trusted_proxies="127.0.0.1") as plane, browser(plane) as page:
        page.headers["x-forwarded-proto"] = "https"
        login = await page.post(SESSION, json={"token": ADMIN})
        name, _, rest = login.headers["set-cookie"].partition("=")
        assert (name, "secure" in attributes_of(rest)) == ("__Host-larder_session", True)
        cookie = {"cookie": f"{name}={rest.partition(';')[0]}"}
        assert (await page.get(SESSION, headers=cookie)).status_code == 200
        plain = {"cookie": f"larder_session={rest.partition(';')[0]}"}
        assert (await page.get(SESSION, headers=plain)).status_code == 401
    async with guarding(socket_dir) as plane, browser(plane) as page:
        login = await page.post(SESSION, json={"token": ADMIN}, headers={"x-forwarded-proto": "https"})
        assert "secure" not in attributes_of(login.headers["set-cookie"]), "nobody said that this proxy is one"
