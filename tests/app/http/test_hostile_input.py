"""Whatever a client sends as cursor, page token, parameter, header or body is answered, and never with a 500."""

import base64
import json
import re
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest

from app.http.examples import EXAMPLES
from tests.app.callers import ADMIN, bearer, create_token, guarding
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.app.published import RECORDS, body_of, description, example_of, operations
from tests.sizes import size

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]
DESCRIBED: dict[str, Any] = description()
TEXTS = ("", "\0", "%", "é", "a" * 5000, "nan", "-inf", "1e400", "9" * 5000, "-1", "1.5",
         "a:b", "\r\n", "9223372036854775808", "0001-01-01T00:00:00+14:00")  # fmt: skip
HEADERS = (*TEXTS, "Bearer larder_é", "a-" + "9" * 5000, '"', 'W/"', "*/*;q=x",
           ";;,,", "http://[", "Basic é", "bytes=9-1")  # fmt: skip
HEADER_NAMES = ("cookie", "authorization", "last-event-id", "traceparent", "accept", "x-request-id", "content-type",
                "if-none-match", "if-match", "origin", "x-forwarded-for", "forwarded", "range", "x-csrf-token",
                "content-encoding", "sec-fetch-site", "x-forwarded-proto")  # fmt: skip
VALUES = (b"9" * 5000, b"1e308", rb'"\ud800"', rb'"\u0000"',
          b"18446744073709551615",  rb'{"\ud800":1}', rb'[{"a":"\ud800"}]',
          b'{"a":' + b"9" * 5000 + b"}", b'"' + b"x" * 70_000 + b'"',
          b'"0001-01-01T00:00:00+14:00"', b'"9999-12-31T23:59:59-14:00"', b'[{"a":' + b"9" * 5000 + b"}]")  # fmt: skip
DEPTHS = (100, 900, 3000, 30_000)
SHARE = size(1, 19)
"""One input in so many is sent. It is a prime that no list of inputs has as a factor: addresses get different ones."""


def text_of(packed: bytes) -> str:
    return base64.urlsafe_b64encode(packed).decode().rstrip("=")


def cursors(sort: str = "") -> Iterator[str]:
    yield from ("x", "====", "A" * 2000, "A" * 5000, "9" * 60_000, "é", "k6A", "kw==")
    for depth in (10, 1000, 1400):
        yield from (text_of(b"\x91" * depth), text_of(b"\x93\xa0\x00" + b"\x91" * depth), text_of(b"\x81\xa0" * depth))
    values = (0, 1.5, "x", float("nan"), float("inf"), (1 << 64) - 1, -(1 << 63), 1 << 63, None, [1], True, "\0")
    for value in values:
        for key in (0, "x", (1 << 64) - 1, -(1 << 63), "\0", 1.5):
            yield text_of(msgspec.msgpack.encode([sort, value, key]))
    for place in (["", 1], ["n", (1 << 64) - 1], ["n", -1], ["node-a", 1 << 62], ["\0", 5], ["n", 1.5], [1, "n"]):
        yield text_of(msgspec.msgpack.encode(place))


def address_of(path: str) -> str:
    return re.sub(r"{\w+}", "e", path.replace("{number}", "1"))


class Asking:
    """Asks, and keeps what was answered with a 500."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.wrong: list[str] = []
        self.requests = 0

    async def ask(self, method: str, address: str, **more: Any) -> int:
        """Ask, and return the status; of most inputs one in SHARE is sent, all of them in a full run."""
        self.requests += 1
        if self.requests % SHARE:
            return 0
        try:
            async with self.http.stream(method, address, auth=None, **more) as answer:
                if answer.status_code == 500:
                    self.wrong.append(f"{method} {address[:100]} {str(more)[:200]}")
                return answer.status_code
        except (httpx.InvalidURL, httpx.LocalProtocolError):  # what the client does not send
            return 0


@pytest.fixture(scope="module")
async def plane(shared_node: FakeNode) -> AsyncIterator[Plane]:
    """A plane that authenticates, with a node and two records of each type."""
    async with guarding(shared_node.folder) as running:
        await running.until_state("in_sync")
        for noun, body in RECORDS.items():
            for name in "ef":
                await running.http.put(f"/api/v1/{noun}/{name}", json=EXAMPLES[body])
        yield running


async def test_cursors_of_every_list(plane: Plane) -> None:
    asking = Asking(plane.http)
    for method, path, operation in operations(DESCRIBED):
        names = {parameter["name"] for parameter in operation.get("parameters", ())}
        if "cursor" not in names:
            continue
        sorts = [""]
        if "sort" in names:
            refused = (await plane.http.get(f"{path}?sort=none")).json()["detail"]
            sorts += [name.strip() for name in refused.partition("one of ")[2].partition(", with")[0].split(",")]
        for sort in sorts:
            for cursor in cursors(sort):
                await asking.ask(method, path, params={"cursor": cursor, **({"sort": sort} if sort else {})})
    assert asking.requests > 400
    assert asking.wrong == []


async def test_page_tokens_of_the_list_of_objects(plane: Plane) -> None:
    tokens = [ADMIN, await create_token(plane, "one", "operator", tenants=["e"])]
    tokens.append(await create_token(plane, "two", "operator", tenants=["e", "f"]))
    requests = 0
    for token in tokens:
        for cursor in (*cursors(), *(f"0.{cursor}" for cursor in cursors()), "999999.x", "00.", "1.", "-1.", "²."):
            requests += 1
            if requests % SHARE:
                continue
            answer = await plane.http.get(
                "/cache/objects", params={"tier": "l1", "page_token": cursor}, headers=bearer(token)
            )
            assert answer.status_code in (200, 400, 503), (answer.status_code, cursor[:100])
            assert answer.status_code != 400 or "page_token: expected" in answer.text
    for cursor in (text_of(b"\x93\xa0\x00" + b"\x91" * 1000), "9" * 60_000):
        answer = await plane.http.get("/cache/objects", params={"tier": "l1", "page_token": cursor})
        assert answer.status_code == 400


async def test_parameters_of_every_route(plane: Plane) -> None:
    asking = Asking(plane.http)
    for method, path, operation in operations(DESCRIBED):
        headers, more = {"if-match": "*"}, {}
        if "requestBody" in operation:
            more["content"] = json.dumps(example_of(operation))
            headers["content-type"], _ = body_of(operation)
        for parameter in operation.get("parameters", ()):
            name = parameter["name"]
            for text in TEXTS:
                if parameter["in"] == "query" and name not in ("wait", "cursor"):
                    await asking.ask(method, address_of(path), params={name: text}, headers=headers, **more)
                elif parameter["in"] == "path" and text:
                    address = address_of(path.replace(f"{{{name}}}", quote(text, safe="")))
                    await asking.ask(method, address, headers=headers, **more)
    assert asking.requests > 300
    assert asking.wrong == []


async def test_headers(plane: Plane) -> None:
    asking = Asking(plane.http)
    for path in ("/api/v1/whoami", "/api/v1/events", "/api/v1/quotas/e", "/api/v1/snapshot", "/cache/objects"):
        for name in HEADER_NAMES:
            for text in HEADERS:
                value = text.encode("utf-8")
                if not re.search(rb"[\0\r\n]", value):
                    await asking.ask("GET", path, headers=[(b"x-other", b"y"), (name.encode(), value)])
                    if name in ("if-match", "if-none-match"):
                        await asking.ask("DELETE", "/api/v1/quotas/none", headers=[(name.encode(), value)])
    assert asking.requests > 300
    assert asking.wrong == []


async def test_bodies_of_every_route(plane: Plane) -> None:
    """Nested deeply, as a whole and in each field; and values that are hard to hold."""
    asking = Asking(plane.http)
    for method, path, operation in operations(DESCRIBED):
        if "requestBody" in operation:
            kind, name = body_of(operation)
            headers = {"content-type": kind, "if-match": "*"}
            for body in bodies(name):
                await asking.ask(method, address_of(path), content=body, headers=headers)
    for method, path in (("PUT", "/quota/e"), ("DELETE", "/cache/objects"), ("POST", "/cache/prefetches"),
                         ("POST", "/cache/checksums"), ("POST", "/cache/clear")):  # fmt: skip
        for depth in DEPTHS:
            for body in nested(depth):
                await asking.ask(method, path, content=body)
        for value in VALUES:
            await asking.ask(method, path, content=value)
    assert asking.requests > 400
    assert asking.wrong == []


def nested(depth: int) -> Iterator[bytes]:
    yield b"[" * depth + b"]" * depth
    yield b'[{"a":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}]"
    yield b'{"a":' * depth + b"1" + b"}" * depth
    yield b"[" * depth


def bodies(name: str) -> Iterator[bytes]:
    sources = {"tokens", "keys", "prefix", "text", "messages"}
    for depth in DEPTHS:
        yield from nested(depth)
    for field in DESCRIBED["components"]["schemas"][name].get("properties", {}):
        left_out = sources if field in sources else {field}
        rest = {key: value for key, value in EXAMPLES[name].items() if key not in left_out}
        start = json.dumps(rest)[:-1].encode() + (b", " if rest else b"") + f'"{field}": '.encode()
        for depth in DEPTHS[1:3]:
            for value in islice(nested(depth), 1, 3):
                yield start + value + b"}"
        for value in VALUES:
            yield start + value + b"}"


async def test_documents_as_text(plane: Plane) -> None:
    bomb = "a: &a [x]\n" + "".join(
        f"b{at}: &b{at} [{', '.join(['*a' if not at else f'*b{at - 1}'] * 9)}]\n" for at in range(12)
    )
    texts = [bomb, "a: &a [*a]", "- *unknown", "&a : *a", "!!python/object:os.system x", "%YAML 9.9\n---\n", "\x00",
             "---\n" * 3000, "? " * 5000, "- " * 5000, "{" * 5000, "[" * 30_000, '{"a":' * 30_000, "a: " * 3000,
             "quotas:\n  a:\n    limit_bytes: " + "9" * 5000, "? [a, b]\n: c", "<<: [*a]", "\ud7ff\ufeff", "|\n" * 1000,
             '["' + "\\ud800" + '"]', "- !!int x", "9" * 5000, "\t"]  # fmt: skip
    for text in texts:
        answer = await plane.http.post("/api/v1/apply", json={"document": text, "dry_run": True})
        status = answer.status_code
        assert status in (200, 400, 422), (status, text[:80])
