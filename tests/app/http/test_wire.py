"""Bytes of HTTP/1.1 against a real server: trailers, request targets, hosts, upgrades."""

from pathlib import Path

import pytest

from app.http.middleware.server_protocol import MAX_HEAD_BYTES, MAX_HEADERS, MAX_WAITING
from app.services.base.throttle import BURST
from tests.app.callers import ADMIN, guarding
from tests.app.plane import WAIT_S, Plane
from tests.app.raw import answered, connected, status_of

pytestmark = pytest.mark.anyio
CHUNKED_PUT = (
    b"PUT /api/v1/quotas/%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
BODY = b'{"limit_bytes": 5}'


def get(target: str, host: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()


def with_trailers(name: bytes, *fields: bytes) -> tuple[bytes, bytes]:
    """Head and body apart, so that the application waits for the body when the trailers come."""
    body = b"%x\r\n%s\r\n0\r\n" % (len(BODY), BODY) + b"".join(field + b"\r\n" for field in fields)
    return CHUNKED_PUT % name, body + b"\r\n"


async def test_fields_of_a_trailer_section_are_no_headers(lone: Plane) -> None:
    """Each of these changes the answer when it is a header."""
    for at, field in enumerate(
        (
            b"Authorization: Bearer wrong",
            b"Content-Type: text/plain",
            b"Content-Encoding: gzip",
            b"Host: evil.example",
            b"X-Forwarded-For: 1.2.3.4",
            b"Origin: http://evil.example",
            b"Sec-Fetch-Site: cross-site",
            b'If-Match: "7"',
            b"Cookie: larder_session=x",
            b"X-Request-Id: from-the-trailer",
            b"Accept: text/plain",
            b"Connection: upgrade\r\nUpgrade: h2c",
            b"Expect: 100-continue",
        )
    ):
        for together in (False, True):  # the fields come before the application starts, or while it waits
            head, body = with_trailers(b"t%d%d" % (at, together), field)
            answer = await answered(lone, *((head + body,) if together else (head, body)))
            assert status_of(answer) == 201, (field, answer)
            assert b"from-the-trailer" not in answer


@pytest.mark.parametrize("waits", [False, True])
async def test_a_trailer_that_closes_the_connection_ends_it_after_the_answer(
    lone: Plane, monkeypatch: pytest.MonkeyPatch, *, waits: bool
) -> None:
    """The parser takes no further request then, so one would wait in vain."""
    monkeypatch.setattr("app.http.middleware.server_protocol.HEAD_S", 10 * WAIT_S)
    head = (CHUNKED_PUT % b"closed").replace(b"Connection: close\r\n", b"")
    if not waits:  # the answer comes before the end of the body
        head = head.replace(b"PUT /api/v1/quotas/closed", b"DELETE /api/v1/nothing")
    async with connected(lone) as (reader, writer):
        writer.write(head)
        answer = b"" if waits else await reader.readuntil(b"}")
        writer.write(with_trailers(b"", b"Connection: close")[1] + get("/healthz", "localhost"))
        answer += await reader.read()
    assert answer.count(b"HTTP/1.1 ") == 1, answer
    assert status_of(answer) == (201 if waits else 404)


async def test_a_token_in_a_trailer_is_ignored(guarded: Plane) -> None:
    field = f"Authorization: Bearer {ADMIN}".encode()
    for parts in (with_trailers(b"a", field), (b"".join(with_trailers(b"a", field)),)):
        assert status_of(await answered(guarded, *parts)) == 401


async def test_an_address_in_a_trailer_buys_no_more_attempts(socket_dir: Path) -> None:
    """Behind a trusted proxy `X-Forwarded-For` is the address whose wrong tokens are counted."""
    async with guarding(socket_dir, trusted_proxies="127.0.0.1") as plane:
        statuses = []
        for at in range(int(BURST) + 4):
            head, body = with_trailers(b"a", b"X-Forwarded-For: 9.9.9.%d" % at)
            wrong = head.replace(b"Host:", b"Authorization: Bearer larder_wrong%d\r\nHost:" % at)
            statuses.append(status_of(await answered(plane, wrong + body)))
        assert statuses[0] == 401
        assert statuses[-1] == 429


async def test_trailers_are_bounded(lone: Plane) -> None:
    for trailer in (b"a: " + b"b" * MAX_HEAD_BYTES, b"b" * (MAX_HEAD_BYTES + 1)):
        pieces = [trailer[at : at + 32_768] for at in range(0, len(trailer), 32_768)]
        answer = await answered(lone, CHUNKED_PUT % b"a", b"1\r\n{\r\n0\r\n", *pieces)
        assert status_of(answer) == 431, answer


@pytest.mark.parametrize("in_trailer", [False, True])
async def test_the_number_of_fields_is_bounded_however_short_they_are(lone: Plane, in_trailer: bool) -> None:
    def parts(fields: int) -> tuple[bytes, ...]:
        short = [b"a:"] * (fields - (CHUNKED_PUT.count(b"\r\n") - 2))
        if in_trailer:
            return with_trailers(b"fields", *short)
        head, body = with_trailers(b"fields")
        return head[:-2] + b"".join(each + b"\r\n" for each in short) + b"\r\n", body

    assert status_of(await answered(lone, *parts(MAX_HEADERS))) == 201
    answer = await answered(lone, *parts(MAX_HEADERS + 1))
    assert status_of(answer) == 431
    assert b"expected at most 100 header fields" in answer


async def test_requests_ahead_of_their_answers_are_bounded(lone: Plane) -> None:
    """A stream is answered for as long as its client wants, and a part of the next request does not end it."""
    stream = b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    one = get("/healthz", "localhost").replace(b"Connection: close\r\n", b"")
    assert await answered(lone, stream + one * (MAX_WAITING + 1)) == b""
    async with connected(lone) as (reader, writer):
        writer.write(stream + one * MAX_WAITING)
        await reader.readuntil(b"\r\n\r\n")
    assert (await answered(lone, one * MAX_WAITING + get("/healthz", "localhost"))).count(b"200 OK") == MAX_WAITING + 1


async def test_an_invalid_host_is_refused(lone: Plane) -> None:
    hosts = [
        "[::1%eth0]", "[::1%25eth0]", "[fe80::1%25x]", "[fe80::1%evil.example]:8470", "[::1%]", "::1", "[::1", "::1]",
        "[v1.x]", "[]", "127.0.0.1:99999", "localhost:65536", "localhost:x", "localhost:-1", "localhost:123456",
        "user@localhost", "user:word@127.0.0.1", "localhost/", "localhost%00", "localhost,localhost",
        "localhost evil.example", "evil.example@127.0.0.1", "127.0.0.1#evil.example", "127.0.0.1\\evil.example",
        "", "localhost:\u0661", "\xb2",
    ]  # fmt: skip
    answers = {host: await answered(lone, get("/healthz", host)) for host in hosts}
    assert {host: status_of(answer) for host, answer in answers.items()} == dict.fromkeys(hosts, 400)
    assert all(b'"path":"Host"' in answer for answer in answers.values())


async def test_names_of_this_server_are_served_and_others_are_not(lone: Plane) -> None:
    ours = ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]", "[::1]:8470", "10.1.2.3:65535", "[fe80::1]",
            "[::ffff:127.0.0.1]:1", "localhost:")  # fmt: skip
    others = ("evil.example", "localhost.", "localhost.evil.example", "127.0.0.1.evil.example", "0x7f.1", "127.1",
              "2130706433", "127.0.0.1.", "1.2.3.4.5", "[127.0.0.1]")  # fmt: skip
    expected = {**dict.fromkeys(ours, 200), **dict.fromkeys(others, 403)}
    assert {host: status_of(await answered(lone, get("/healthz", host))) for host in expected} == expected


async def test_the_authority_of_an_absolute_target_counts(lone: Plane) -> None:
    expected = {
        ("http://localhost/healthz", "localhost"): 200,
        ("http://127.0.0.1:8470/healthz?", "127.0.0.1:8470"): 200,
        ("HTTPS://[::1]/healthz", "[::1]"): 200,
        ("http://localhost", "localhost"): 200,
        ("http://localhost?x=y", "localhost"): 200,
        ("http://localhost/healthz#x", "localhost"): 200,
        # RFC 9112 §3.2.2: the authority of the target replaces the header.
        ("http://localhost/healthz", "evil.example"): 200,
        ("http://evil.example/healthz", "localhost"): 403,
        ("http://evil.example", "localhost"): 403,
        ("http://evil.example:80/healthz", "127.0.0.1"): 403,
        ("http://localhost@evil.example/healthz", "localhost"): 400,
        ("http://user:word@localhost/healthz", "localhost"): 400,
        ("http://localhost:99999/healthz", "localhost"): 400,
        ("http://[::1%25x]/healthz", "localhost"): 400,
        ("http:///healthz", "localhost"): 400,
        ("ftp://localhost/healthz", "localhost"): 400,
        ("localhost:80", "localhost"): 400,
        ("healthz", "localhost"): 400,
        ("*", "localhost"): 400,
        # A path, however it looks.
        ("//evil.example/healthz", "localhost"): 404,
        ("/http://evil.example/healthz", "localhost"): 404,
    }
    answers = {case: await answered(lone, get(*case)) for case in expected}
    assert {case: status_of(answer) for case, answer in answers.items()} == expected
    assert all(b"urn:larder:problem:" in answers[case] for case in expected if expected[case] >= 400)


async def test_a_request_without_one_host_and_a_path_is_refused(lone: Plane) -> None:
    for head in (
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nhOST: evil.example\r\n",
        b"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n",
        b"GET http://localhost/healthz HTTP/1.1\r\n",
        b"GET /healthz HTTP/1.1\r\n",
        b"GET /api/v1/overview HTTP/1.0\r\n",
        b"POST /healthz HTTP/1.0\r\n",
        b"GET /healthz HTTP/1.0\r\nHost: localhost\r\nHost: localhost\r\n",
        b"GET /healthz HTTP/1.0\r\nOrigin: http://evil.example\r\n",
        b"OPTIONS / HTTP/1.0\r\nOrigin: http://evil.example\r\n",
        b"OPTIONS / HTTP/1.1\r\n",
        b"GET /api/v1/overview HTTP/1.0\r\nHost:\r\n",
        b"GET /healthz HTTP/1.0\r\nHost:\r\nHost: localhost\r\n",
        b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost:80\r\n",
        b"CONNECT http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\n",
        b"CONNECT /healthz HTTP/1.1\r\nHost: localhost\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n",
    ):
        answer = await answered(lone, head + b"Connection: close\r\n\r\n")
        assert status_of(answer) == 400, (head, answer)
        assert b"urn:larder:problem:malformed" in answer


async def test_a_health_check_needs_no_name_of_a_host(lone: Plane) -> None:
    """HTTP/1.0 has no `Host`, and HAProxy checks with `OPTIONS /` unless it is configured otherwise."""
    for method in (b"GET ", b"HEAD ", b"OPTIONS "):
        for path in (b"/healthz", b"/readyz", b"/healthz/fleet", b"/metrics", b"/readyz/", b"/readyz?verbose"):
            target = method + path
            new = await answered(lone, target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            for end in (b" HTTP/1.0\r\n\r\n", b" HTTP/1.0\r\nHost:\r\n\r\n"):
                old = await answered(lone, target + end)
                assert status_of(old) == status_of(new) != 400, (target, end)
            foreign = await answered(lone, target + b" HTTP/1.0\r\nHost: evil.example\r\n\r\n")
            assert status_of(foreign) == 403, target
    assert status_of(await answered(lone, b"OPTIONS / HTTP/1.0\r\n\r\n")) == 204


async def test_a_body_behind_an_upgrade_is_not_read_as_a_request(lone: Plane) -> None:
    head = b"PUT /api/v1/quotas/a HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: h2c\r\n"
    hidden = b"DELETE /api/v1/quotas/kept HTTP/1.1\r\nHost: localhost\r\nIf-Match: *\r\nConnection: close\r\n\r\n"
    await lone.put_quota("kept", 5, wait="")
    for framing, body in (
        (b"Content-Length: %d\r\n\r\n" % len(hidden), hidden),
        (b"Transfer-Encoding: chunked\r\n\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(hidden), hidden)),
    ):
        answer = await answered(lone, head + framing, body)
        assert status_of(answer) == 400, answer
        assert answer.count(b"HTTP/1.1 ") == 1
    assert (await lone.get("/api/v1/quotas/kept"))["limit_bytes"] == 5


async def test_an_upgrade_without_a_body_is_not_followed_and_its_connection_ends(lone: Plane) -> None:
    head = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    answer = await answered(lone, head + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert status_of(answer) == 200
    assert b"\r\nconnection: close\r\n" in answer


async def test_bytes_behind_a_request_do_not_become_part_of_its_answer(lone: Plane) -> None:
    """The stream of events is open when bytes come that are no request."""
    async with connected(lone) as (reader, writer):
        writer.write(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"no request\r\n\r\n")
        rest = await reader.read()
    assert b"HTTP/1.1 400" not in rest
