"""The API's description says everything: who may call, what is refused, headers, bodies of patches, examples."""

import json
from typing import Any

import msgspec
import pytest

from app.http.description import EXAMPLES, TAGS
from app.http.problems import KINDS, TYPE_PREFIX
from app.openapi import document
from tests.app.plane import Plane

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return dict(json.loads(document()))


def operations(described: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, item in described["paths"].items()
        for method, operation in item.items()
    ]


def test_every_route_has_a_name_a_summary_one_tag_and_says_who_may_call_it(described: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(described)]
    assert len(set(names)) == len(names)
    for _, path, operation in operations(described):
        assert operation["summary"], path
        assert len(operation["tags"]) == 1, path
        assert operation["tags"][0] in TAGS, f"{path}: the tag {operation['tags'][0]!r} has no description"
        assert "Needs" in operation["description"], path
    assert described["security"] == [{"bearer": []}, {"session": []}]
    assert set(described["components"]["securitySchemes"]) == {"bearer", "session"}


def test_every_route_declares_its_refusals(described: dict[str, Any]) -> None:
    for method, path, operation in operations(described):
        responses, where = operation["responses"], (method, path)
        assert {"400", "401", "403", "422", "429", "431", "500", "503"} <= set(responses), where
        if "{" in path and method in ("get", "delete", "patch"):
            assert "404" in responses, where
        if method == "get":
            assert {"304", "406"} <= set(responses) or "204" in responses, where
        if "requestBody" in operation:
            assert {"413", "415"} <= set(responses), where
        if any(parameter["name"] == "If-Match" for parameter in operation.get("parameters", [])):
            assert {"412", "428"} <= set(responses), where
        for status, response in responses.items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], (*where, status)
                for said in response["description"].split("; "):
                    code = said.partition("`")[2].partition("`")[0].removeprefix(TYPE_PREFIX)
                    assert KINDS[code].status == int(status), (*where, status, said)


def test_headers_of_answers_are_declared(described: dict[str, Any]) -> None:
    for method, path, operation in operations(described):
        for status, response in operation["responses"].items():
            headers, where = set(response["headers"]), (method, path, status)
            assert "X-Request-Id" in headers, where
            assert ("Retry-After" in headers) == (status in ("429", "503")), where
            if method == "get" and status in ("200", "304"):
                assert "ETag" in headers, where
    assert "X-Larder-Index" in described["paths"]["/api/v1/snapshot"]["get"]["responses"]["200"]["headers"]


def test_a_patch_has_the_fields_of_its_record_and_each_may_be_null(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    for method, path, operation in operations(described):
        if method != "patch":
            continue
        schema = operation["requestBody"]["content"]["application/merge-patch+json"]["schema"]
        assert "$ref" in schema, path
    whole, patch = schemas["QuotaPut"]["properties"], schemas["QuotaPatch"]["properties"]
    assert set(whole) == set(patch)
    for name, field in patch.items():
        assert {"type": "null"} in field["oneOf"], name
        assert "default" not in field
    assert "required" not in schemas["QuotaPatch"]


def test_examples_are_of_schemas_that_there_are(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    for name, example in EXAMPLES.items():
        assert set(example) <= set(schemas[name]["properties"]), name
        assert schemas[name]["examples"] == [example]


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("$ref"), str):
                found: Any = described
                for part in value["$ref"].removeprefix("#/").split("/"):
                    found = found[part]
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(described)


async def test_what_is_served_is_what_is_printed(plane: Plane) -> None:
    served = await plane.http.get("/api/openapi.json")
    assert served.headers["content-type"] == "application/vnd.oai.openapi+json"
    assert msgspec.json.decode(served.content) == json.loads(document())


async def test_every_example_is_taken(plane: Plane) -> None:
    for path, name in (("quotas/e", "QuotaPut"), ("policies/e", "PolicyPut"), ("pins/e", "PinPut")):
        example = {**EXAMPLES[name]}
        answer = await plane.http.put(f"/api/v1/{path}", json=example)
        assert answer.status_code in (201, 409), answer.text
