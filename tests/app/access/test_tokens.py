"""Tokens: valid and refused ones, expiry, rotation, and the secrecy of secrets."""

import asyncio
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from app.services.access.credentials import Hasher, new_token, parsed
from app.services.access.refusals import MinuteShare, RefusalAudit
from app.services.base.throttle import Throttle
from tests.app.callers import ADMIN, bearer, create_token, guarding, send
from tests.app.plane import Plane, serving, settings_in
from tests.app.problems import accepted, fault_paths, is_problem
from tests.app.raw import connected
from tests.app.waiting import until

pytestmark = pytest.mark.anyio
WHOAMI = "/api/v1/whoami"


async def status_of(plane: Plane, token: str, path: str = WHOAMI) -> int:
    return (await send(plane, token, "GET", path)).status_code


async def test_a_token_identifies_its_caller_and_its_secret_is_shown_once(socket_dir: Path, database_url: str) -> None:
    async with guarding(socket_dir, database_url) as plane:
        answer = await plane.http.post(
            "/api/v1/tokens", json={"name": "ci", "role": "operator", "tenants": ["_default", "a"]}
        )
        assert answer.status_code == 201, answer.text
        token = answer.json()["token"]
        assert re.fullmatch(r"larder_[0-9a-f]{12}_[0-9a-f]{64}", token)
        identity = (await send(plane, token, "GET", WHOAMI)).json()
        assert (identity["actor"], identity["role"], identity["tenants"]) == ("ci", "operator", ["_default", "a"])
        assert (identity["token_id"], identity["session"]) == (answer.json()["id"], False)
        secret = token.rpartition("_")[2]
        for path in ("/api/v1/tokens", f"/api/v1/tokens/{identity['token_id']}", "/api/v1/tokens/ci", "/api/v1/audit"):
            found = await plane.http.get(path)
            assert found.is_success
            assert secret not in found.text
        async with plane.app.parts.database.read() as session:
            rows = (await session.execute(sa.text("SELECT * FROM tokens"))).all()
        assert rows
        assert secret not in repr(rows)


async def test_the_settings_token_alone_is_an_admin(guarded: Plane) -> None:
    identity = (await guarded.http.get(WHOAMI)).json()
    assert (identity["actor"], identity["role"], identity["tenants"], identity["token_id"]) == (
        "admin",
        "admin",
        None,
        "",
    )
    unauthorized = await send(guarded, "", "GET", WHOAMI)
    assert (unauthorized.status_code, unauthorized.headers["www-authenticate"]) == (401, 'Bearer realm="larder"')
    assert unauthorized.json()["type"] == "urn:larder:problem:unauthorized"
    assert await status_of(guarded, ADMIN + "x") == 401
    assert await status_of(guarded, ADMIN[:-1]) == 401


INVALID = [
    "", " ", "Bearer", "Bearer ", "bearer", "Basic YTpi", "Digest a=b", "larder_a_b", "Bearer larder__",
    "Bearer larder_abc_" + "0" * 63, "Bearer larder_abc_" + "0" * 65, "Bearer larder_ABC_" + "0" * 64,
    "Bearer " + "x" * 5000, "Bearer a b c", "Bearer \xff\xfe", "Bearer larder_abc_" + "0" * 64,
    "Bearer larder_setup_" + "0" * 64, "\tBearer x", "Bearer  \t", "Bearer " + ADMIN + ", Bearer " + ADMIN,
]  # fmt: skip


async def test_an_invalid_token_is_reported_and_never_repeated(guarded: Plane) -> None:
    lines = [b"GET /api/v1/whoami HTTP/1.1", b"host: localhost", b"connection: close", b"authorization: "]
    for number, header in enumerate(INVALID):
        async with connected(guarded, f"127.0.1.{number + 1}") as (reader, writer):  # no address waits for another
            writer.write(b"\r\n".join(lines) + header.encode("latin-1") + b"\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 401 "), (header, head)
        assert b"\r\nwww-authenticate: Bearer" in head
        assert len(msgspec.json.decode(body)["detail"]) < 200
        assert ADMIN.encode() not in head + body


async def test_a_token_ends_at_its_time_and_can_be_given_more(new_guarded: Plane) -> None:
    token = await create_token(new_guarded, "short", ttl_s=0.2)
    async with asyncio.timeout(60):
        while await status_of(new_guarded, token) == 200:
            await asyncio.sleep(0.02)
    assert "expired" in is_problem(await send(new_guarded, token, "GET", WHOAMI), 401)["detail"]
    assert (await new_guarded.http.get("/api/v1/tokens/short")).json()["expired"]
    longer = await new_guarded.http.patch("/api/v1/tokens/short", json={"expires_at": None, "name": "long"})
    assert (longer.status_code, longer.json()["expires_at"]) == (200, None)
    assert await status_of(new_guarded, token) == 200
    assert (await new_guarded.http.get("/api/v1/tokens/short")).status_code == 404


async def test_a_revoked_token_is_refused_at_once_and_soon_by_another_manager(
    socket_dir: Path, database_url: str
) -> None:
    other_dir = socket_dir / "other"
    other_dir.mkdir()
    shared = database_url
    async with guarding(socket_dir, shared) as plane, guarding(other_dir, shared) as other:
        token = await create_token(plane, "both")
        assert (await status_of(plane, token), await status_of(other, token)) == (200, 200)
        assert (await plane.http.delete("/api/v1/tokens/both")).status_code == 204
        revoked = time.monotonic()
        assert await status_of(plane, token) == 401
        while await status_of(other, token) != 401:
            assert time.monotonic() - revoked < 60, "a revocation reaches every manager"
            await asyncio.sleep(0.02)
        assert (await plane.http.delete("/api/v1/tokens/both")).status_code == 404


async def test_a_stream_ends_with_the_token_that_opened_it(guarded: Plane) -> None:
    token = await create_token(guarded, "watcher")
    async with guarded.http.stream("GET", "/api/v1/events", headers=bearer(token)) as stream:
        assert stream.status_code == 200
        parts = stream.aiter_bytes()
        await anext(parts)
        await guarded.http.delete("/api/v1/tokens/watcher")
        async with asyncio.timeout(60):
            with pytest.raises(Exception, match=r"peer closed|incomplete"):
                async for _ in parts:
                    pass


async def test_an_answer_that_was_waited_for_is_not_for_a_token_that_was_revoked_meanwhile(
    guarded: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.http.middleware.stack.SURE_S", 0.0)  # short waits are checked again, too
    token = await create_token(guarded, "watcher")
    index = (await guarded.http.get("/api/v1/snapshot")).json()["index"]
    while True:
        now = (await guarded.http.get(f"/api/v1/snapshot?index={index}&wait=1s")).json()["index"]
        if now == index:  # nothing changes by itself any more
            break
        index = now
    waiting = asyncio.create_task(guarded.http.get(f"/api/v1/snapshot?index={index}&wait=300s", headers=bearer(token)))
    await until(lambda: guarded.app.parts.limits.stream_slots.in_use)
    await guarded.http.delete("/api/v1/tokens/watcher")
    await guarded.put_quota("acme", wait="0s")
    assert (await waiting).status_code == 401


async def test_tokens_are_rotated_without_a_gap_and_the_last_admin_stays(new_plane: Plane) -> None:
    first = await create_token(new_plane, "first", "admin")
    new_plane.http.headers.update(bearer(first))
    assert "last valid one" in is_problem(await new_plane.http.delete("/api/v1/tokens/first"), 409)["detail"]
    await create_token(new_plane, "brief", "admin", ttl_s=0.001)
    assert (await new_plane.http.delete("/api/v1/tokens/first")).status_code == 409
    second = await create_token(new_plane, "second", "admin")
    assert (await new_plane.http.delete("/api/v1/tokens/first")).status_code == 204
    assert (await status_of(new_plane, first), await status_of(new_plane, second)) == (401, 200)


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "name"),
    ({"name": ""}, "name"),
    ({"name": "a b"}, "name"),
    ({"name": "x" * 129}, "name"),
    ({"name": "admin"}, "name"),
    ({"name": "local"}, "name"),
    ({"name": "n", "role": "root"}, "role"),
    ({"name": "n", "role": "admin", "tenants": ["a"]}, "role"),
    ({"name": "n", "tenants": []}, "tenants"),
    ({"name": "n", "tenants": ["ok", "a/b"]}, "tenants[1]"),
    ({"name": "n", "tenants": [""]}, "tenants[0]"),
    ({"name": "n", "ttl_s": 0}, "ttl_s"),
    ({"name": "n", "ttl_s": -1}, "ttl_s"),
    ({"name": "n", "ttl_s": 1e12}, "ttl_s"),
    ({"name": "n", "ttl_s": 5, "expires_at": 9e9}, "expires_at"),
    ({"name": "n", "expires_at": 1}, "expires_at"),
    ({"name": "n", "expires_at": "tomorrow"}, "expires_at"),
    ({"name": "n", "colour": 1}, "colour"),
]


async def test_an_invalid_token_is_refused_with_the_reason(guarded: Plane) -> None:
    for body, path in BAD:
        assert fault_paths(await guarded.http.post("/api/v1/tokens", json=body))[0] == path
    for patch in (
        {"name": None},
        {"ttl_s": None},
        {"ttl_s": -1},
        {"role": "admin"},
        {"tenants": None},
        {"name": "a b"},
    ):
        await guarded.http.delete("/api/v1/tokens/here")
        await create_token(guarded, "here")
        assert (await guarded.http.patch("/api/v1/tokens/here", json=patch)).status_code == 422, patch
    again = await guarded.http.post("/api/v1/tokens", json={"name": "here"})
    assert (again.status_code, again.json()["type"]) == (409, "urn:larder:problem:conflict")


async def test_until_a_token_exists_this_machine_needs_none(socket_dir: Path) -> None:
    async with serving(settings_in(socket_dir)) as plane:
        identity = (await plane.http.get(WHOAMI)).json()
        assert (identity["actor"], identity["role"]) == ("local", "admin")
        assert await status_of(plane, "larder_abc_" + "0" * 64) == 401  # what is shown must be right
        token = await create_token(plane, "first", "admin")
        assert (await plane.http.get(WHOAMI)).status_code == 401
        assert await status_of(plane, token) == 200
    async with serving(settings_in(socket_dir)) as again:
        assert (await again.http.get(WHOAMI)).status_code == 401
        assert await status_of(again, token) == 200


async def test_the_first_token_is_an_admins_because_it_creates_the_rest(socket_dir: Path, database_url: str) -> None:
    bodies: list[dict[str, Any]] = [
        {"name": "x"},
        {"name": "x", "role": "operator"},
        {"name": "x", "role": "alerts"},
        {"name": "x", "tenants": ["a"]},
    ]
    async with serving(settings_in(socket_dir, database_url)) as plane:
        for body in bodies:
            refused = await plane.http.post("/api/v1/tokens", json=body)
            assert (refused.status_code, "the first token must have the role admin" in refused.text) == (403, True)
        assert (await plane.get(WHOAMI))["actor"] == "local", "no token exists, so none is needed"
        first = await create_token(plane, "first", "admin")
        for body in bodies:
            accepted(await send(plane, first, "POST", "/api/v1/tokens", json={**body, "name": new_token().id}), 201)


async def test_the_setup_token_makes_one_token_once_and_survives_restarts(
    socket_dir: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(settings_in(socket_dir, database_url)) as plane:
        assert (await plane.http.get(WHOAMI)).status_code == 200
        assert (await plane.get("/api/v1/audit"))["total"] == 0
    assert "larder_setup_" not in capsys.readouterr().out, "nothing requires a token yet"
    settings = settings_in(socket_dir, database_url, auth="required")
    async with serving(settings) as plane:
        unauthorized = is_problem(await plane.http.get(WHOAMI), 401)
        assert "'larder login --setup' creates the first with the setup token" in unauthorized["detail"]
    setup = re.findall(r"larder_setup_[0-9a-f]{64}", capsys.readouterr().out)
    assert len(setup) == 1
    async with serving(settings) as plane:
        for method, path in (
            ("GET", WHOAMI),
            ("GET", "/api/v1/tokens"),
            ("PUT", "/api/v1/quotas/a"),
            ("GET", "/api/v1/audit"),
        ):
            refused = await send(plane, setup[0], method, path, json={"limit_bytes": 1})
            assert (refused.status_code, "setup token" in refused.json()["detail"]) == (401, True)
        login = await send(plane, "", "POST", "/api/v1/session", json={"token": setup[0]})
        assert login.status_code == 401
        lesser = await send(plane, setup[0], "POST", "/api/v1/tokens", json={"name": "x", "role": "viewer"})
        assert lesser.status_code == 403
        body = {"name": "root", "role": "admin"}
        bodies = [body, {**body, "name": "root2"}]
        answers = await asyncio.gather(*(send(plane, setup[0], "POST", "/api/v1/tokens", json=b) for b in bodies))
        assert sorted(answer.status_code for answer in answers) == [201, 401]
        used = await send(plane, setup[0], "POST", "/api/v1/tokens", json=body)
        assert (used.status_code, "the first token was already created with it" in used.json()["detail"]) == (401, True)
        assert "setup" not in (await plane.http.get(WHOAMI)).json()["detail"], "there is a token now"
        token = next(answer.json()["token"] for answer in answers if answer.is_success)
        assert await status_of(plane, token) == 200
        listed = (await send(plane, token, "GET", "/api/v1/tokens")).json()
        assert [item["name"] for item in listed["items"]] in (["root"], ["root2"])
    assert "larder_setup_" not in capsys.readouterr().out
    async with serving(settings) as plane:
        assert (await send(plane, setup[0], "POST", "/api/v1/tokens", json=body)).status_code == 401
    assert "larder_setup_" not in capsys.readouterr().out


async def test_the_last_use_is_shown_and_written_after_the_request(guarded: Plane) -> None:
    token = await create_token(guarded, "used")
    assert (await guarded.http.get("/api/v1/tokens/used")).json()["last_used_at"] is None
    before = time.time()
    assert await status_of(guarded, token) == 200
    async with asyncio.timeout(60):
        while (found := (await guarded.http.get("/api/v1/tokens/used")).json())["last_used_at"] is None:
            await asyncio.sleep(0.05)
    assert (before <= found["last_used_at"] <= time.time(), found["last_used_from"]) == (True, "127.0.0.1")


async def test_wrong_tokens_are_slowed_down_by_address_and_right_ones_never_are(new_guarded: Plane) -> None:
    token = await create_token(new_guarded, "good")
    wrong = "larder_abc_" + "0" * 64
    # Together, so that a slow machine does not give back what they used up.
    seen = await asyncio.gather(*(send(new_guarded, wrong, "GET", WHOAMI) for _ in range(40)))
    assert sum(answer.status_code == 401 for answer in seen) >= 10
    late = next(answer for answer in seen if answer.status_code == 429)
    assert int(late.headers["retry-after"]) >= 1
    assert late.json()["type"] == "urn:larder:problem:too-many-requests"
    assert await status_of(new_guarded, token) == 200
    entries = (await new_guarded.get("/api/v1/audit"))["items"]
    denied = [entry for entry in entries if entry["decision"] == "denied"]
    assert len(denied) in (1, 2, 3), "the same is kept once a minute, with how often it came again"
    assert {(e["action"], e["token_id"], e["source"]) for e in denied} == {("authenticate", "", "127.0.0.1")}
    real = parsed(token)
    assert real is not None
    await send(new_guarded, f"larder_{real.id}_{'0' * 64}", "GET", WHOAMI)
    newest = (await new_guarded.get("/api/v1/audit"))["items"][0]
    assert (newest["token_id"], newest["decision"]) == (real.id, "denied")
    text = (await new_guarded.http.get("/metrics")).text
    assert 'larder_auth_failures_total{reason="unknown"} 41.0' in text


def test_a_throttle_allows_a_burst_and_then_one_a_second_in_bounded_memory() -> None:
    throttle = Throttle(burst=3, per_second=1, max_sources=10)
    assert [throttle.count("a", 0.0) for _ in range(4)] == [0, 0, 0, 1]
    assert throttle.count("b", 0.0) == 0
    assert throttle.count("a", 0.5) == pytest.approx(0.5)
    assert throttle.count("a", 1.0) == 0
    assert throttle.count("a", 1.0) > 0
    for number in range(1000):
        throttle.count(f"10.0.{number // 250}.{number % 250}", 1.0)
    assert len(throttle._tokens) == 10
    six = Throttle(burst=1)
    assert six.count("2001:db8::1", 0) == 0
    assert six.count("2001:db8::2", 0) > 0, "who has one address of a network has all"
    assert six.count("::ffff:1.2.3.4", 0) == 0
    assert six.count("::ffff:1.2.3.5", 0) == 0


def test_each_refused_caller_has_a_share_of_the_audit_and_newcomers_a_reserve() -> None:
    refusals = RefusalAudit[str](MinuteShare(whole=4, each=2, reserve=1))
    taken = [refusals.take(identity, what, identity + what, 0.0) for identity in "abc" for what in "123"]
    assert taken == [True, True, False, True, True, False, True, False, False]
    assert not refusals.take("d", "1", "d1", 0.0), "the reserve is used up"
    assert (refusals.suppressed, refusals.suppressed_total) == (5, 5)
    assert refusals.take("d", "1", "d1", 60.0)


def test_the_same_refusal_is_given_back_once_with_how_often_it_came_again() -> None:
    refusals = RefusalAudit[str](MinuteShare(whole=4, each=2, reserve=0))
    taken = [refusals.take(identity, "x", f"{identity}{at}", at) for at in range(5) for identity in "ab"]
    assert (taken.count(True), taken[:2]) == (2, [True, True])
    assert refusals.take("a", "y", "other", 5.0)
    assert (refusals.take_repeated(59.0), refusals.suppressed_total) == ([], 0)
    assert refusals.take_repeated(60.0) == [("a0", 4), ("b0", 4)]
    assert refusals.take_repeated(61.0) == []
    assert [refusals.take("a", "x", "again", 62.0) for _ in range(2)] == [True, False]
    assert refusals.take_repeated(63.0, all_of_them=True) == [("again", 1)]


def test_hashes_of_two_databases_and_of_two_kinds_never_meet() -> None:
    token, one, two = new_token(), Hasher("one", "s"), Hasher("two", "s")
    assert one.token(token) == Hasher("one", "s").token(token) != two.token(token)
    assert one.token(token) != Hasher("one", "t").token(token), "the name alone says nothing"
    assert len({one.session(token.secret), one.csrf(token.secret), one.configured(token.secret), one.token(token)}) == 4


async def test_uses_may_be_written_twice_at_once(guarded: Plane) -> None:
    token = await create_token(guarded, "ci")
    await status_of(guarded, token)
    uses = guarded.app.parts.access.token_uses
    await asyncio.gather(*(uses.write(0.0, all_of_them=True) for _ in range(4)))
    (shown,) = [each for each in (await guarded.get("/api/v1/tokens"))["items"] if each["name"] == "ci"]
    assert shown["last_used_at"] is not None
