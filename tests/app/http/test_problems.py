"""What is refused, and that every refusal is a problem that names what was wrong."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.errors import Malformed
from app.http.body import check_pairs
from app.settings import Settings
from dataplane.protocol.control.records import ALGORITHMS
from tests.app.failing_database import fails_at
from tests.app.plane import PIN, Plane, serving
from tests.app.problems import is_problem

pytestmark = pytest.mark.anyio
KEY = "ab" * 32
Q, P = "/api/v1/quotas/acme", "/api/v1/pins/p"


def pin(**fields: Any) -> dict[str, Any]:
    return {**PIN, **fields}


BAD_JSON = [
    (Q, {}, 422, "limit_bytes"),
    (Q, [], 422, "body"),
    (Q, {"limit_bytes": -1}, 422, "limit_bytes"),
    (Q, {"limit_bytes": 1 << 61}, 422, "limit_bytes"),
    (Q, {"limit_bytes": "4 parsecs"}, 422, "limit_bytes"),
    (Q, {"limit_bytes": "9" * 400 + ".0GiB"}, 422, "limit_bytes"),
    (Q, {"limit_bytes": True}, 422, "limit_bytes"),
    (Q, {"limit_bytes": 1.5}, 422, "limit_bytes"),
    (Q, {"limit_bytes": 1, "limit": 2}, 422, "limit"),
    (Q, {"limit_bytes": 1, "note": 5}, 422, "note"),
    (Q, {"limit_bytes": 1, "note": "x" * 1025}, 422, "note"),
    (Q, {"limit_bytes": 1, "note": "a\x00b"}, 422, "note"),
    ("/api/v1/quotas/a@b", {"limit_bytes": 1}, 422, "tenant"),
    ("/api/v1/quotas/" + "x" * 129, {"limit_bytes": 1}, 422, "tenant"),
    (Q + "?wait=soon", {"limit_bytes": 1}, 422, "wait"),
    (Q + "?wait=31s", {"limit_bytes": 1}, 422, "wait"),
    (P, pin(tokens=[]), 422, "tokens"),
    (P, pin(tokens=[1, 2, 3]), 422, "tokens"),
    (P, pin(tokens=[1, 2, 3, -4]), 422, "tokens[3]"),
    (P, pin(tokens=[1, 2, 3, 1 << 32]), 422, "tokens[3]"),
    (P, pin(tokens=[1, 2, 3, "4"]), 422, "tokens[3]"),
    (P, pin(tokens=list(range(4097)), chunk_tokens=1), 422, "tokens"),
    (P, pin(chunk_tokens=0), 422, "chunk_tokens"),
    (P, pin(keys=[KEY]), 422, "tokens"),
    (P, {"model": "m"}, 422, "tokens"),
    (P, {"model": "m", "keys": []}, 422, "keys"),
    (P, {"model": "m", "keys": ["ab"]}, 422, "keys"),
    (P, {"model": "m", "keys": ["zz" * 32]}, 422, "keys"),
    (P, {"model": "m", "keys": [KEY, KEY]}, 422, "keys"),
    (P, {"model": "m", "keys": [f"{n:064x}" for n in range(4097)]}, 422, "keys"),
    (P, pin(model=""), 422, "model"),
    (P, pin(model="m" * 257), 422, "model"),
    (P, pin(tenant="a/b"), 422, "tenant"),
    (P, pin(tenant=""), 422, "tenant"),
    (P, pin(strength="hard"), 422, "strength"),
    (P, pin(ttl_s=0), 422, "ttl_s"),
    (P, pin(ttl_s=5, expires_at=9e9), 422, "expires_at"),
    (P, pin(expires_at=1), 422, "expires_at"),
    (P, pin(expires_at="2001-01-01T00:00:00Z"), 422, "expires_at"),
    (P, pin(expires_at="2099-01-01T00:00:00"), 422, "expires_at"),
    (P, pin(expires_at="tomorrow"), 422, "expires_at"),
    ("/api/v1/pins/a%20b", PIN, 422, "name"),
    ("/api/v1/pins/" + "x" * 129, PIN, 422, "name"),
]


async def test_every_bad_field_is_named(shared_plane: Plane) -> None:
    audited = (await shared_plane.get("/api/v1/audit"))["total"]
    for path, body, status, field in BAD_JSON:
        problem = is_problem(await shared_plane.http.put(path, json=body), status)
        assert field in [error["path"] for error in problem["errors"]], (path, body, problem)
    assert (await shared_plane.get("/api/v1/audit"))["total"] == audited


async def test_all_faults_of_a_request_are_reported_at_once(shared_plane: Plane) -> None:
    response = await shared_plane.http.put(P, json=pin(model="", tenant="@", ttl_s=-1))
    assert [error["path"] for error in is_problem(response, 422)["errors"]] == ["model", "tenant", "ttl_s"]


@pytest.mark.parametrize(
    ("method", "path", "kwargs", "status"),
    [
        ("GET", "/api/v1/nowhere", {}, 404),
        ("GET", "/api", {}, 404),
        ("GET", "/api/", {"headers": {"accept": "text/html"}}, 404),
        ("GET", "/api/redoc", {"headers": {"accept": "text/html"}}, 404),
        ("GET", "/nowhere", {"headers": {"accept": "application/json"}}, 404),
        ("GET", "/assets/missing.js", {"headers": {"accept": "text/html"}}, 404),
        ("GET", Q, {}, 404),
        ("GET", P, {}, 404),
        ("DELETE", Q, {}, 404),
        ("DELETE", P, {}, 404),
        ("GET", "/api/v1/nodes/nobody", {}, 404),
        ("POST", "/api/v1/quotas", {"json": {}}, 405),
        ("POST", Q, {"json": {}}, 405),
        ("PUT", Q, {}, 422),
        ("PUT", Q, {"content": b"{", "headers": {"content-type": "application/json"}}, 400),
        ("PUT", Q, {"content": b'{"note":"\xff"}', "headers": {"content-type": "application/json"}}, 400),
        ("PUT", Q, {"content": b"[" * 100_000, "headers": {"content-type": "application/json"}}, 422),
        ("PUT", Q, {"content": b"limit_bytes=1"}, 415),
        ("PUT", Q, {"content": b"{}", "headers": {"content-type": "text/plain"}}, 415),
        ("GET", "/api/v1/quotas/a%2Fb", {}, 400),
        ("GET", "/api/v1/quotas/%ff", {}, 400),
        ("GET", "/foo%00bar", {}, 400),
        ("GET", "/assets/%00", {}, 400),
        ("GET", "/" + "x" * 5000, {"headers": {"accept": "application/json"}}, 404),
        ("GET", "/api/v1/pushes?node=%00", {}, 400),
        ("GET", "/api/v1/quotas?cursor=x", {}, 422),
        ("GET", "/api/v1/pins?sort=colour", {}, 422),
        ("GET", "/api/v1/audit?cursor=%ff%ff", {}, 400),
        ("GET", "/api/v1/audit?cursor=" + "9" * 5000, {}, 422),
        ("GET", "/api/v1/series?name=nodes&end=nan", {}, 422),
        ("GET", "/healthz", {"headers": {"origin": "http://["}}, 403),
        ("GET", "/api/v1/pushes?limit=0", {}, 422),
        ("GET", "/api/v1/pushes?limit=many", {}, 422),
        ("GET", "/api/v1/pushes?type=policy", {}, 422),
        ("GET", "/api/v1/series?name=nodes&range_s=-1", {}, 422),
    ],
)
async def test_every_refusal_is_a_problem(
    shared_plane: Plane, method: str, path: str, kwargs: Any, status: int
) -> None:
    is_problem(await shared_plane.http.request(method, path, **kwargs), status)


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        (
            "/api/v1/policies/default",
            {"algorithm": "mru"},
            f"algorithm: expected one of {', '.join(ALGORITHMS)}, got 'mru'",
        ),
        (P, pin(strength="x" * 99), f"expected one of soft, guaranteed, permanent, got '{'x' * 40}'"),
        (Q, {"mode": None}, "mode: expected one of enforce, observe, got null"),
        (Q, {"on_exceed": 5}, "on_exceed: expected one of evict_self, reject, got a whole number"),
        (
            "/api/v1/policies/default",
            {"watermark": 1},
            "watermark: unknown; expected one of algorithm, admission, admission_idle_s, high_watermark, "
            "low_watermark, note, managed_by, selector, priority",
        ),
        (Q, "text", "body: expected a JSON object, got text"),
        (Q, {"limit_bytes": 1, "note": None}, "note: expected text, got null"),
        (
            Q,
            {"limit_bytes": 1.5},
            "limit_bytes: expected bytes as a whole number, text such as '4GiB' or null, got a number that is "
            "not whole",
        ),
        (Q, {"selector": {"zone": 1}}, "selector[...]: expected text, got a whole number"),
        (P, pin(tokens=[1, "2"]), "tokens[1]: expected a whole number, got text"),
        (
            "/api/v1/ceilings/a",
            {"strengths": ["x"]},
            "strengths[0]: expected one of soft, guaranteed, permanent, got 'x'",
        ),
        ("/api/v1/rates/m", {"model": "m"}, "prefill_tokens_per_s: expected a number, got nothing"),
    ],
)
async def test_a_wrong_field_is_refused_with_the_expected_values(
    shared_plane: Plane, path: str, body: Any, detail: str
) -> None:
    answer = is_problem(await shared_plane.http.put(path, json=body), 422)
    assert answer["detail"].endswith(detail)


async def test_a_parameter_is_refused_in_our_words(shared_plane: Plane) -> None:
    for query, detail in (
        ("pushes?state=foo", "state: expected one of acked, nacked, timed_out, refused, got 'foo'"),
        ("quotas?limit=x", "limit: expected a whole number, got text"),
        ("quotas?limit=0", "limit: expected a whole number, at least 1"),
        ("series?name=nodes&end=-1", "end: expected a number, at least 0"),
        ("tenants?managed=perhaps", "managed: expected true or false, got text"),
    ):
        assert is_problem(await shared_plane.http.get(f"/api/v1/{query}"), 422)["detail"].startswith(detail), query


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        (Q, b'{"limit_bytes": 1, "limit_bytes": 2}', "limit_bytes"),
        (Q, b'{"limit_bytes": 1, "selector": {"a": "1", "b": "2", "a": "1"}}', "a"),
        (Q, b'{"note": "x", "limit_bytes": 1, "n\\u006fte": "y"}', "note"),
        (P, b'{"model": "m", "tokens": [' + b"1, " * 50_000 + b'1], "model": "n"}', "model"),
        ("/api/v1/apply", b'{"document": {"quotas": {"t": {}, "t": {}}}}', "t"),
    ],
)
async def test_a_duplicate_key_of_an_object_is_refused_by_its_name(
    shared_plane: Plane, path: str, body: bytes, key: str
) -> None:
    method = "POST" if path.endswith("apply") else "PUT"
    answer = await shared_plane.http.request(method, path, content=body, headers={"content-type": "application/json"})
    assert is_problem(answer, 400)["detail"] == f"expected each key once in an object, got {key!r} 2 times"
    assert (await shared_plane.get("/api/v1/quotas"))["total"] == 0


def test_the_work_for_a_duplicate_key_grows_with_the_object_and_not_with_its_square() -> None:
    compared = 0

    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    pairs: list[tuple[str, Any]] = [(Key(name), 0) for name in (*map(str, range(5_000)), "x", "x")]
    with pytest.raises(Malformed, match="got 'x' 2 times"):
        check_pairs(pairs)
    assert compared < 4 * len(pairs)


async def test_keys_that_look_alike_are_not_the_same(shared_plane: Plane) -> None:
    body = b'{"limit_bytes": 1, "selector": {"a[1]": "x", "a[2]": "y"}}'
    answer = await shared_plane.http.put(Q, content=body, headers={"content-type": "application/json"})
    assert is_problem(answer, 422)["errors"][0]["path"] == "selector"
    many = b'{"limit_bytes": ' + b"9" * 5_000 + b"}"
    is_problem(await shared_plane.http.put(Q, content=many, headers={"content-type": "application/json"}), 422)


async def test_a_body_that_is_too_large_is_refused_with_the_limit(shared_plane: Plane) -> None:
    headers = {"content-type": "application/json"}
    response = await shared_plane.http.put(Q, content=b"0" * (17 << 20), headers=headers)
    assert is_problem(response, 413)["detail"] == "expected a body of at most 16 MiB"


async def test_bytes_that_are_no_request_get_a_problem(shared_plane: Plane) -> None:
    response = await shared_plane.http.request("NONSENSE", "/api/v1/quotas")
    is_problem(response, 400)


async def test_a_crash_exposes_no_internals(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(plane.app.parts.access.audit, "page", broken)
    response = await plane.http.get("/api/v1/audit")
    assert "secret" not in response.text
    assert is_problem(response, 500)["detail"].startswith("internal error")


async def test_a_crash_before_any_handler_is_a_problem_too(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(plane.app, "_check", broken)
    response = await plane.http.get("/healthz", headers={"x-request-id": "abc-1"})
    assert "secret" not in response.text
    assert is_problem(response, 500)["request_id"] == "abc-1"
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_a_request_that_outlasts_the_grace_time_is_answered_and_logs_no_traceback(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(settings) as plane:
        port = plane.http.base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"PUT {Q} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            "content-length: 100\r\nexpect: 100-continue\r\n\r\n".encode()
        )
        assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")  # the handler waits for the body
    answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"urn:larder:problem:stopping" in answer
    assert [record for record in caplog.records if record.exc_info] == []


async def test_a_database_file_that_was_removed_takes_no_changes(new_plane: Plane, settings: Settings) -> None:
    path = Path(sa.make_url(settings.common.database_url).database or "")
    await new_plane.put_quota("acme", 1)
    aside = path.rename(path.with_name("aside"))
    for method, where in (("PUT", Q), ("GET", "/healthz"), ("GET", "/readyz"), ("GET", "/healthz/fleet"), ("GET", Q)):
        body = {"limit_bytes": 2} if method == "PUT" else None
        problem = is_problem(await new_plane.http.request(method, where, json=body), 503)
        assert "was removed or replaced" in problem["detail"]
    assert not path.exists()
    path.touch()
    is_problem(await new_plane.http.get("/healthz"), 503)
    aside.rename(path)
    assert (await new_plane.get(Q))["limit_bytes"] == 1
    await new_plane.put_quota("acme", 2)


async def test_a_database_that_is_away_is_503_and_the_plane_recovers(plane: Plane) -> None:
    with fails_at("begin", ConnectionRefusedError("no database here")):
        problem = is_problem(await plane.http.get("/healthz"), 503)
    assert problem["type"] == "urn:larder:problem:store-unavailable"
    assert (await plane.http.get("/healthz")).status_code == 200


async def test_a_valid_request_id_is_kept(shared_plane: Plane) -> None:
    given = await shared_plane.http.get("/healthz", headers={"x-request-id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    odd = await shared_plane.http.get("/healthz", headers={"x-request-id": "a b " * 40 + "c"})
    assert len(odd.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost", "host": "localhost:443"},
        {"origin": "https://localhost", "host": "localhost:80"},
        {"origin": "https://localhost..", "host": "localhost"},
        {"origin": "http://localhost.:8470", "host": "localhost:8470"},
        {"host": "evil.example"},
        {"host": "evil.example:8470", "origin": "http://evil.example:8470"},
        {"sec-fetch-site": "cross-site"},
    ],
)
async def test_a_foreign_page_can_neither_change_anything_nor_listen(
    shared_plane: Plane, headers: dict[str, str]
) -> None:
    problem = is_problem(await shared_plane.http.put(Q, json={"limit_bytes": 1}, headers=headers), 403)
    assert problem["type"] == "urn:larder:problem:foreign-origin"
    assert (await shared_plane.get("/api/v1/quotas"))["total"] == 0
    if not headers.keys() & {"sec-fetch-site"}:  # the browser sends an origin with a stream
        is_problem(await shared_plane.http.get("/api/v1/events", headers=headers), 403)


async def test_the_dashboards_own_page_may_call(plane: Plane) -> None:
    origin = str(plane.http.base_url).rstrip("/")
    response = await plane.http.put(
        Q, json={"limit_bytes": 1}, headers={"origin": origin, "sec-fetch-site": "same-origin"}
    )
    assert response.status_code == 201


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("https://localhost", "localhost:443"),
        ("http://localhost", "localhost:80"),
        ("http://localhost:80", "LOCALHOST"),
        ("http://localhost:8470", "localhost:8470"),
        ("https://[::1]", "[::1]:443"),
    ],
)
async def test_a_host_is_the_same_with_its_default_port(shared_plane: Plane, origin: str, host: str) -> None:
    headers = {"origin": origin, "host": host}
    assert (await shared_plane.http.delete(Q, headers=headers)).status_code == 404


@pytest.mark.parametrize(
    "settings", [{"allowed_hosts": "Larder.example, dotted.example., larder-0, localhost"}], indirect=True
)
async def test_an_allowed_host_may_be_an_absolute_name(new_plane: Plane) -> None:
    for host, status in (
        ("larder.example.", 200),
        ("dotted.example:8470", 200),
        ("dotted.example.:8470", 200),
        ("larder-0.", 200),
        ("larder.example..", 403),
        (".", 403),
        ("localhost.", 403),
    ):
        assert (await new_plane.http.get("/healthz", headers={"host": host})).status_code == status, host
    headers = {"origin": "http://larder.example.", "host": "larder.example"}
    assert (await new_plane.http.delete(Q, headers=headers)).status_code == 404


async def test_unicode_tenants_are_names_like_others(plane: Plane) -> None:
    await plane.put_quota("M%C3%BCller%20%26%20S%C3%B6hne", "1GiB")
    assert (await plane.get("/api/v1/quotas"))["items"][0]["tenant"] == "Müller & Söhne"
    assert (await plane.put_quota("_default", None))["tenant"] == "_default"
