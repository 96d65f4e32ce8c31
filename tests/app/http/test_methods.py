"""What every resource supports besides its methods: HEAD, OPTIONS, 304, queries, Accept."""

import asyncio
import re

import pytest

from app.http.middleware.server_protocol import MAX_HEAD_BYTES
from app.http.negotiation import produced
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.app.problems import is_problem
from tests.app.published import description
from tests.app.raw import answered, status_of
from tests.app.waiting import until

pytestmark = pytest.mark.anyio
Q = "/api/v1/quotas/acme"


async def test_head_is_get_without_the_body(plane: Plane) -> None:
    await plane.put_quota("acme", 5)  # acknowledged: the record's status stays what it is
    for path in (Q, "/api/v1/policies", "/api/openapi.json", "/", "/healthz", "/metrics", "/api/v1/nowhere"):
        got, head = await plane.http.get(path), await plane.http.head(path)
        assert (head.status_code, head.content) == (got.status_code, b""), path
        changing = {"date", "x-request-id", "content-length"}
        assert set(head.headers) == set(got.headers), path
        if path != "/metrics":
            assert head.headers["content-length"] == got.headers["content-length"]
        for name in set(got.headers) - changing:
            if name != "etag" or path == Q:
                assert head.headers[name] == got.headers[name], (path, name)


async def test_head_of_an_endless_answer_ends(shared_plane: Plane) -> None:
    async with asyncio.timeout(60):
        head = await shared_plane.http.head("/api/v1/events")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"].startswith("text/event-stream")
    await until(lambda: not shared_plane.app.parts.bus.listeners)


async def test_options_names_the_methods(shared_plane: Plane) -> None:
    for path, allowed in (
        (Q, "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"),
        ("/api/v1/quotas", "GET, HEAD, OPTIONS"),
        ("/healthz", "GET, HEAD, OPTIONS"),
    ):
        answer = await shared_plane.http.options(path)
        assert (answer.status_code, answer.headers["allow"], answer.content) == (204, allowed, b"")
        refused = await shared_plane.http.request("TRACE", path)
        assert is_problem(refused, 405)["detail"].startswith(f"expected one of {allowed} at")
        assert refused.headers["allow"] == allowed
    is_problem(await shared_plane.http.options("/api/v1/nowhere"), 404)


async def test_every_route_allows_the_methods_that_are_described(shared_plane: Plane) -> None:
    """`OPTIONS`, and the refusal of each other method, of every path of the description and of pins without action."""
    for path, item in description()["paths"].items():
        described = {method.upper() for method in item} | {"OPTIONS"}
        described |= {"HEAD"} if "GET" in described else set()
        allowed = ", ".join(sorted(described))
        for name in ("e", "e:e") if "tenant}" in path else ("e",):  # salts may have a colon
            address = re.sub(r"{(number|client)}", "1", path)
            address = re.sub(r"{\w+}", name, address)
            answer = await shared_plane.http.options(address)
            assert (answer.status_code, answer.headers["allow"]) == (204, allowed), address
            for method in {"GET", "HEAD", "PUT", "PATCH", "POST", "DELETE", "TRACE"} - described:
                refused = await shared_plane.http.request(method, address, json={})
                assert (refused.status_code, refused.headers["allow"]) == (405, allowed), (method, address)
                if method != "HEAD":
                    assert is_problem(refused, 405)["detail"].endswith(f"{allowed} at {address}, got {method}"), address
    for name, allowed in (("e%3Aextend", "OPTIONS, POST"), (":extend", "OPTIONS, POST"),
                          ("e:extend:extend", "OPTIONS, POST"),
                          ("e:other", "DELETE, GET, HEAD, OPTIONS, PATCH, PUT")):  # fmt: skip
        answer = await shared_plane.http.options(f"/api/v1/pins/{name}")
        assert (answer.status_code, answer.headers["allow"]) == (204, allowed), name


async def test_a_client_with_the_current_answer_gets_304(plane: Plane) -> None:
    await plane.put_quota("acme", 5)  # acknowledged: the record's status stays what it is
    for path in (Q, "/api/v1/policies", "/api/openapi.json"):
        first = await plane.http.get(path)
        etag = first.headers["etag"]
        for known in (etag, f'"x", {etag}', "*", etag.removeprefix("W/"), f"W/{etag.removeprefix('W/')}"):
            again = await plane.http.get(path, headers={"if-none-match": known})
            assert (again.status_code, again.content) == (304, b""), (path, known)
            assert again.headers["etag"] == etag
            assert again.headers["x-request-id"]
        assert (await plane.http.head(path, headers={"if-none-match": etag})).status_code == 304
        assert (await plane.http.get(path, headers={"if-none-match": '"other"'})).status_code == 200
    etag = (await plane.http.get("/api/v1/policies")).headers["etag"]
    assert (await plane.http.put("/api/v1/policies/default", json={"algorithm": "arc"})).is_success
    assert (await plane.http.get("/api/v1/policies", headers={"if-none-match": etag})).status_code == 200
    is_problem(await plane.http.get("/api/v1/quotas/nobody", headers={"if-none-match": "*"}), 404)


@pytest.mark.parametrize(
    ("path", "field", "detail"),
    [
        (
            "/api/v1/policies?colour=red",
            "colour",
            "unknown; expected one of algorithm, cursor, limit, managed_by, sort",
        ),
        ("/api/v1/overview?x", "x", "unknown; expected none here"),
        ("/api/v1/quotas?limit=1&limit=2", "limit", "expected once"),
        ("/api/v1/pushes?kind=quotas", "kind", "unknown; expected one of"),
        (f"{Q}?limit=1", "limit", "unknown; expected none here"),
    ],
)
async def test_an_unknown_query_parameter_is_refused(shared_plane: Plane, path: str, field: str, detail: str) -> None:
    problem = is_problem(await shared_plane.http.get(path), 422)
    assert problem["errors"][0]["path"] == field
    assert problem["errors"][0]["message"].startswith(detail)


async def test_a_query_of_a_change_is_checked_before_it_happens(shared_plane: Plane) -> None:
    is_problem(await shared_plane.http.put(f"{Q}?wait=2s&dry=1", json={"limit_bytes": 5}), 422)
    is_problem(await shared_plane.http.get(Q), 404)
    is_problem(await shared_plane.http.get("/api/v1/quotas?managed_by=%ff"), 400)


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("application/json", 200),
        ("text/html, */*;q=0.1", 200),
        ("application/*", 200),
        ("Application/JSON;charset=utf-8", 200),
        ("", 200),
        ("text/html", 406),
        ("application/xml, text/*", 406),
        ("application/json;q=0", 406),
        ("*/*, application/json;q=0.0", 406),
        ("*/*;q=0", 406),
        ("nonsense", 406),
    ],
)
async def test_a_caller_that_does_not_accept_json_is_refused(shared_plane: Plane, accept: str, status: int) -> None:
    answer = await shared_plane.http.get("/api/v1/policies", headers={"accept": accept})
    assert answer.status_code == status
    if status == 406:
        assert "accepts application/json" in is_problem(answer, 406)["detail"]


async def test_a_stream_is_of_its_own_kind(shared_plane: Plane) -> None:
    is_problem(await shared_plane.http.get("/api/v1/events", headers={"accept": "application/json"}), 406)
    async with shared_plane.http.stream("GET", "/api/v1/events", headers={"accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200
    kinds = {
        produced(handler)
        for route in shared_plane.app.litestar.routes
        for handler in getattr(route, "route_handlers", [])
        if route.path.startswith("/api/v1")
    }
    assert kinds <= {"application/json", "text/event-stream", "application/x-ndjson"}


LINES, TEXT = "application/x-ndjson", "text/plain"


@pytest.mark.parametrize("path", ["/api/v1/audit/export", "/api/v1/nodes/{name}/trace"])
@pytest.mark.parametrize(
    ("accept", "kind"), [("*/*", LINES), (LINES, LINES), (f"{TEXT};q=0.5, {LINES}", LINES), (TEXT, TEXT)]
)
async def test_lines_have_a_described_type_and_are_text_for_clients_that_know_no_lines(
    plane: Plane, node: FakeNode, path: str, accept: str, kind: str
) -> None:
    node.trace = [b'{"timestamp":0,"hash_ids":[1]}\n']
    await plane.put_quota("acme")
    answer = await plane.http.get(path.format(name=node.name), headers={"accept": accept})
    assert answer.status_code == 200
    assert answer.headers.get_list("content-type") == [f"{kind}; charset=utf-8" if kind == TEXT else kind]
    assert answer.headers["vary"] == "Accept"
    assert answer.text.endswith("}\n")
    content = description()["paths"][path]["get"]["responses"]["200"]["content"]
    assert content[TEXT] == {"schema": {"type": "string"}}
    assert {"$ref"} == content[LINES]["schema"].keys()


@pytest.mark.parametrize(
    "headers",
    [{"content-encoding": "gzip"}, {"content-type": "application/json; charset=utf-16"}, {"content-type": "text/json"}],
)
async def test_a_body_that_is_written_otherwise_is_refused(plane: Plane, headers: dict[str, str]) -> None:
    is_problem(
        await plane.http.put(Q, content=b'{"limit_bytes": 5}', headers={"content-type": "application/json", **headers}),
        415,
    )
    good = {"content-type": "application/json; charset=UTF-8", "content-encoding": "identity"}
    assert (await plane.http.put(Q, content=b'{"limit_bytes": 5}', headers=good)).status_code == 201


async def test_a_head_without_end_is_refused(shared_plane: Plane) -> None:
    large = b"x" * (MAX_HEAD_BYTES + 1)
    for request in (
        b"GET /" + large + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + large,
        b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"".join(b"x%d: y\r\n" % n for n in range(10_000)) + b"\r\n",
    ):
        answer = await answered(shared_plane, request)
        assert status_of(answer) == 431
        assert b'"urn:larder:problem:head-too-large"' in answer
    large_enough = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx: " + b"y" * 20_000 + b"\r\n\r\n"
    assert status_of(await answered(shared_plane, large_enough)) == 200
