"""Each route answers refusals as it declares them."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.http.examples import EXAMPLES
from app.http.routes.access.session import MAX_BODY_BYTES
from app.services.base.principals import ROLES
from tests.app.callers import bearer, create_token, guarding
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane
from tests.app.problems import accepted
from tests.app.published import RECORDS, body_of, description, example_of, operations

pytestmark = pytest.mark.anyio
LIMIT_BYTES = 2048
LARGE_BYTES = max(LIMIT_BYTES, MAX_BODY_BYTES)
NAMES = {
    "tenant": "e",
    "name": "e",
    "node": "node-a",
    "number": "1",
    "client": "1",
    "key": "0" * 64,
    "ident": "e",
    "token_id": "e",
    "session": "e",
}
"""What stands in paths: names of what there is."""
MISSING = {**dict.fromkeys(NAMES, "nobody"), "number": "7", "client": "7"}
DESCRIBED: dict[str, Any] = description()
OPERATIONS = {each[2]["operationId"]: (each[0].upper(), *each[1:]) for each in operations(DESCRIBED)}
QUERIES = {"getSeries": "?name=hit_ratio", "findRequests": "?id=cmpl-1"}
"""Queries of operations that need one."""


class Asking:
    """A plane with a record of each kind, and callers of each kind."""

    def __init__(self, plane: Plane, tokens: dict[str, str]) -> None:
        self.http = plane.http
        self.tokens = tokens

    async def ask(self, name: str, query: str = "", names: dict[str, str] = NAMES, **more: Any) -> httpx.Response:
        """The answer, without its content: some have no end. It must be one that is declared."""
        method, path, operation = OPERATIONS[name]
        query = query or QUERIES.get(name, "")
        known = {**names, "name": names["node"]} if "/nodes/" in path else names
        address = re.sub(r"{(\w+)}", lambda found: known[found[1]], path)
        headers = more.pop("headers", {})
        if "requestBody" in operation and "content" not in more:
            more["content"] = json.dumps(example_of(operation))
            headers = {"content-type": body_of(operation)[0], **headers}
        async with self.http.stream(method, address + query, headers=headers, **more, auth=None) as answer:
            assert str(answer.status_code) in operation["responses"], f"{name}: {answer.status_code}"
            for header in operation["responses"][str(answer.status_code)]["headers"]:
                if DESCRIBED["components"]["headers"][header]["required"]:
                    assert header.lower() in answer.headers, f"{name}: {answer.status_code} without {header}"
            return answer


@pytest.fixture
async def asking(socket_dir: Path, new_node: FakeNode) -> AsyncIterator[Asking]:
    limits: dict[str, Any] = {"body_limit_bytes": LIMIT_BYTES, "apply_limit_bytes": LIMIT_BYTES}
    async with guarding(socket_dir, push_timeout_s=1.0, **limits) as plane:
        await plane.until_state("in_sync")
        for noun, body in RECORDS.items():
            accepted(await plane.http.put(f"/api/v1/{noun}/e", json=EXAMPLES[body]), 201)
        tokens: dict[str, str] = {role: await create_token(plane, f"{role}-token", role) for role in ROLES}
        tokens["limited"] = await create_token(plane, "e", "operator", tenants=["acme"])
        yield Asking(plane, tokens)


async def test_a_caller_without_the_role_is_refused_as_declared(asking: Asking) -> None:
    for name, (_, _, operation) in OPERATIONS.items():
        if operation["security"] and {} not in operation["security"]:
            wrong = await asking.ask(name, headers={"authorization": "Bearer larder_no_no"})
            assert wrong.status_code in (401, 429), name
            for place, role in enumerate(ROLES):
                if place < ROLES.index(operation["x-role"]) and role != operation.get("x-also"):
                    refused = await asking.ask(name, headers=bearer(asking.tokens[role]))
                    assert refused.status_code == 403, (name, role)
            if not operation["x-limited-to-tenants"]:
                assert (await asking.ask(name, headers=bearer(asking.tokens["limited"]))).status_code == 403, name
        foreign = await asking.ask(name, headers={"host": "evil.example"})
        assert foreign.status_code == 403, name


async def test_unreadable_requests_and_unacceptable_types_are_refused_as_declared(asking: Asking) -> None:
    for name, (_, path, operation) in OPERATIONS.items():
        declared = operation["responses"]
        assert (await asking.ask(name, "?a=%00")).status_code == 400, name
        if path.startswith("/api/"):
            assert (await asking.ask(name, "?colour=red")).status_code == 422, name
            picture = await asking.ask(name, headers={"accept": "image/png", "if-match": '"none"'})
            assert (picture.status_code == 406) == ("406" in declared), name
        if "requestBody" in operation:
            kind, _ = body_of(operation)
            for content, status in (("{", 400), (f'"{"x" * LARGE_BYTES}"', 413), ("[]", 422)):
                if status == 413 and name in {"putTokenizer", "patchTokenizer"}:  # files are large
                    continue
                answer = await asking.ask(name, content=content, headers={"content-type": kind})
                assert answer.status_code == status, (name, content[:9])
            answer = await asking.ask(name, content="{}", headers={"content-type": "text/plain"})
            assert answer.status_code == 415, name


async def test_current_and_outdated_states_are_answered_as_declared(asking: Asking) -> None:
    for name, (method, _, operation) in OPERATIONS.items():
        if method == "GET":
            first = await asking.ask(name)
            if first.status_code != 200:
                assert first.status_code in (404, 409, 503), (name, first.status_code)
                continue
            assert ("etag" in first.headers) == ("304" in operation["responses"]), name
            if "etag" in first.headers:
                assert (await asking.ask(name, headers={"if-none-match": "*"})).status_code == 304, name
        elif "428" in operation["responses"]:
            assert (await asking.ask(name)).status_code == 428, name
            assert (await asking.ask(name, headers={"if-match": '"999"'})).status_code == 412, name
        if "404" in operation["responses"] and method != "GET":
            missing = await asking.ask(name, names=MISSING, headers={"if-match": "*"})
            assert missing.status_code == 404, name
