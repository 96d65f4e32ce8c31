"""What the description of the API forbids is refused, and the refusal names the field.

From the example of each body, and from each parameter, requests are made that break one keyword of one schema each:
`pattern`, `minimum`, `required` and so on.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from app.http.examples import EXAMPLES
from app.schemas.records.pins import KEY_SOURCES
from tests.app.callers import guarding
from tests.app.fake_node import FakeNode
from tests.app.problems import accepted
from tests.app.published import RECORDS, body_of, description, operations
from tests.sizes import size

pytestmark = pytest.mark.anyio
DESCRIBED = description()
SCHEMAS: dict[str, Any] = DESCRIBED["components"]["schemas"]
EVERY = size(1, 13)
"""One of this many requests is sent."""
NAMES = dict.fromkeys(("tenant", "name", "ident", "token_id", "session"), "e") | {
    "node": "node-a",
    "number": "1",
    "client": "1",
}
NAMES["key"] = "0" * 64
KEYS = ("prefix", *KEY_SOURCES)
MANY = 5000
CHECKED = ("If-Match", "If-None-Match")
"""Headers that are held against their patterns."""
SENT = re.compile("[!-~]([ -~]*[!-~])?")
"""Values of headers that arrive as they are sent."""
TAGS = ('*"1"', '"1', "W/*", '"1" "2"', '"1", *', ", ".join(['"1"'] * 33))
"""Values that are no entity tags of `If-Match`."""
TEXTS = ("", "\x01", "a b", "no/such", "~", "é", " x", "-1", "1e99", "x" * 3000)


def validator(schema: dict[str, Any]) -> Any:
    return jsonschema_rs.validator_for(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "components": DESCRIBED["components"]},
        validate_formats=True,
    )


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    """Follow references."""
    while "$ref" in schema:
        more = {name: value for name, value in schema.items() if name != "$ref"}
        schema = {**SCHEMAS[schema["$ref"].rpartition("/")[2]], **more}
    return schema


def wrong_values(schema: dict[str, Any], depth: int = 2) -> Iterator[Any]:
    """Yield values that each break a keyword of a schema, and some that may not."""
    schema = resolved(schema)
    for choice in schema.get("anyOf", schema.get("oneOf", ())):
        yield from wrong_values(choice, depth)
    yield from (None, True, 7.5, [], ["x"], {"x": "y"}, *TEXTS)
    for keyword, step in (("minimum", -1), ("exclusiveMinimum", 0), ("maximum", 1), ("exclusiveMaximum", 0)):
        if keyword in schema:
            yield schema[keyword] + step
    if "maxLength" in schema:
        yield "x" * (schema["maxLength"] + 1)
    if schema.get("maxItems", MANY) < MANY:
        yield [item_of(schema, number) for number in range(schema["maxItems"] + 1)]
    if schema.get("uniqueItems"):
        yield [item_of(schema, 1)] * 2
    if "maxProperties" in schema:
        yield {f"k{number}": value_of(schema) for number in range(schema["maxProperties"] + 1)}
    if depth == 0:
        return
    if isinstance(schema.get("additionalProperties"), dict):
        for key in ("", "\x01", "a\nb", "x" * 300):
            yield {key: value_of(schema)}
        for value in wrong_values(schema["additionalProperties"], depth - 1):
            yield {"e": value}
    if "items" in schema:
        for value in wrong_values(schema["items"], depth - 1):
            yield [value]


def item_of(schema: dict[str, Any], number: int) -> Any:
    kind = resolved(schema["items"])
    if kind.get("type") == "integer":
        return number
    return f"{number:064x}" if "0-9a-f" in kind.get("pattern", "") else f"x{number}"


def value_of(schema: dict[str, Any]) -> Any:
    kind = resolved(schema["additionalProperties"])
    return {} if "properties" in kind else "x"


def forbidden_bodies(name: str) -> Iterator[tuple[str, Any]]:
    """Yield the field and the body of each request that breaks one rule."""
    schema, example = resolved(SCHEMAS[name]), EXAMPLES[name]
    for field, inner in schema["properties"].items():
        fits = validator(inner)
        wrong = {repr(value): value for value in wrong_values(inner) if not fits.is_valid(value)}
        others = KEYS if field in KEYS else ()
        for value in wrong.values():
            yield field, {key: other for key, other in example.items() if key not in others} | {field: value}
    for field in schema.get("required", ()):
        yield field, {key: value for key, value in example.items() if key != field}
    if schema.get("additionalProperties") is False:
        yield "colour", {**example, "colour": "red"}


def forbidden_parameters(operation: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the place, the name and the value of each parameter that breaks its schema."""
    for parameter in operation.get("parameters", ()):
        schema = resolved(parameter["schema"])
        kind = schema.get("items", schema)
        fits = validator(kind)
        for text in (*TEXTS, *TAGS):
            if parameter["in"] == "header" and (parameter["name"] not in CHECKED or not SENT.fullmatch(text)):
                continue
            if parameter["in"] == "path" and (text in ("", "\x01") or "/" in text):
                continue
            value: Any = text
            if kind.get("type") in ("integer", "number", "boolean"):
                value = int(text) if re.fullmatch("-?[0-9]+", text) else text
            if not fits.is_valid(value):
                yield parameter["in"], parameter["name"], text


def requests() -> Iterator[tuple[str, str, str, str, str, dict[str, Any]]]:
    """Yield the operation, the method, the path, the field and its place, and the options of each request."""
    for method, path, operation in operations(DESCRIBED):
        names = {**NAMES, "name": NAMES["node"]} if "/nodes/" in path else NAMES
        kind, body = body_of(operation)
        headers = {"content-type": kind} if kind else {}
        if any(parameter["name"] == "If-Match" for parameter in operation.get("parameters", ())):
            headers["if-match"] = "*"
        url = path.format(**names)
        if body:
            for field, content in forbidden_bodies(body):
                yield operation["operationId"], method, url, field, "body", {"json": content, "headers": headers}
        content = {"json": EXAMPLES[body]} if body else {}
        for place, field, text in forbidden_parameters(operation):
            if place == "header":
                more = {"headers": {**headers, field.lower(): text}, **content}
                yield operation["operationId"], method, url, field, place, more
            elif place == "path":
                there = {**names, field: text}
                wrong = path.format(**there)
                yield operation["operationId"], method, wrong, field, place, {**content, "headers": headers}
            else:
                more = {"params": {field: text}, "headers": headers, **content}
                yield operation["operationId"], method, url, field, place, more


async def test_what_the_description_forbids_is_refused_with_the_field(socket_dir: Path) -> None:
    node = FakeNode(socket_dir)
    await node.start()
    async with guarding(socket_dir, join_url="tcp://127.0.0.1:*") as plane:
        await plane.until_state("in_sync")
        for noun, body in RECORDS.items():
            accepted(await plane.http.put(f"/api/v1/{noun}/e", json=EXAMPLES[body]), 201)
        faults = []
        for number, (name, method, url, field, place, options) in enumerate(requests()):
            if number % EVERY:
                continue
            answer = await plane.http.request(method, url, **options)
            where = f"{name} {field}: {str(options.get('json', {}).get(field, options.get('params', url)))[:80]!a}"
            if answer.status_code == 404 and place == "path":
                continue  # no such path
            if answer.status_code not in (400, 422):
                faults.append(f"{answer.status_code} {where}")
                continue
            problem = answer.json()
            named = " ".join(fault["path"] for fault in problem.get("errors", ())) or problem["detail"]
            sent = options.get("json", {}).get(field)
            inner = list(sent) if isinstance(sent, dict) else []  # faults of a document are at its own fields
            if not any(part in named for part in (field, *inner)):
                faults.append(f"{answer.status_code} {where}: {named[:80]}")
        await node.stop()
        assert not faults, f"{len(faults)}\n" + "\n".join(faults)
