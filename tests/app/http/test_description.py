"""The API's description is complete: callers, refusals, headers, bodies of patches, examples."""

import re
import unicodedata
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31_VALIDATOR

from app.http.description import TAGS
from app.http.examples import EXAMPLES
from app.http.problems import KINDS, TYPE_PREFIX
from app.services.base import checks
from tests.app.callers import bearer, create_token
from tests.app.plane import Plane
from tests.app.problems import accepted
from tests.app.published import RECORDS, description, operations

pytestmark = pytest.mark.anyio
DIALECT = "https://json-schema.org/draft/2020-12/schema"


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return description()


def test_it_conforms_to_the_specification(described: dict[str, Any]) -> None:
    faults = [f"{fault.instance_path}: {fault.message}" for fault in OPENAPI_31_VALIDATOR.iter_errors(described)]
    assert faults == []
    for name, schema in described["components"]["schemas"].items():
        assert jsonschema_rs.meta.is_valid({"$schema": DIALECT, **schema}), name
    for method, path, operation in operations(described):
        in_path = [each for each in operation.get("parameters", []) if each["in"] == "path"]
        assert {each["name"] for each in in_path} == set(re.findall(r"{(\w+)}", path)), (method, path)
        assert all(each["required"] for each in in_path), (method, path)
        for need in operation.get("security", []):
            assert set(need) <= set(described["components"]["securitySchemes"]), (method, path)


def test_every_route_has_a_name_a_summary_one_tag_and_its_callers(described: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, _, operation in operations(described)]
    assert len(set(names)) == len(names)
    reads: list[dict[str, list[str]]] = [{"bearer": []}, {"session": []}]
    changes: list[dict[str, list[str]]] = [{"bearer": []}, {"session": [], "csrf": []}]
    for method, path, operation in operations(described):
        assert operation["summary"], path
        assert len(operation["tags"]) == 1, path
        assert operation["tags"][0] in TAGS, f"{path}: the tag {operation['tags'][0]!r} has no description"
        if operation["security"] == []:
            assert "Needs no token" in operation["description"], path
            continue
        assert f"Needs the role `{operation['x-role']}`" in operation["description"], path
        expected = reads if method == "get" else changes
        assert [need for need in operation["security"] if need] == expected, path
    assert described["security"] == changes


def test_every_route_declares_its_refusals(described: dict[str, Any]) -> None:
    for method, path, operation in operations(described):
        responses, where = operation["responses"], (method, path)
        assert {"400", "401", "403", "429", "431", "500", "503"} <= set(responses), where
        assert ("406" in responses) == (path.startswith("/api/") and "204" not in responses), where
        assert ("422" in responses) == path.startswith("/api/"), where
        if "{" in path and method in ("get", "delete", "patch"):
            assert "404" in responses, where
        assert ({"413", "415"} <= set(responses)) == ("requestBody" in operation), where
        conditional = any(each["name"] == "If-Match" for each in operation.get("parameters", []))
        assert ({"412", "428"} <= set(responses)) == conditional, where
        for status, response in responses.items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], (*where, status)
                for text in response["description"].split("; "):
                    code = text.partition("`")[2].partition("`")[0].removeprefix(TYPE_PREFIX)
                    assert KINDS[code].status == int(status), (*where, status, text)


def test_headers_of_answers_are_declared(described: dict[str, Any]) -> None:
    for method, path, operation in operations(described):
        for status, response in operation["responses"].items():
            headers, where = set(response["headers"]), (method, path, status)
            assert "X-Request-Id" in headers, where
            assert ("Retry-After" in headers) == (status in ("429", "503")), where
            assert ("WWW-Authenticate" in headers) == (status == "401"), where
            if status == "304":
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
        assert {"type": "null"} in field["anyOf"], name
        assert "default" not in field
    assert "required" not in schemas["QuotaPatch"]


async def test_null_removes_a_member_of_every_map_that_a_patch_changes(described: dict[str, Any], plane: Plane) -> None:
    schemas = described["components"]["schemas"]
    records = {f"{name}Patch": f"{noun}/e" for noun, body in RECORDS.items() for name in [body.removesuffix("Put")]}
    for noun, body in RECORDS.items():
        assert (await plane.http.put(f"/api/v1/{noun}/e", json=EXAMPLES[body])).status_code == 201
    patches = [(name, field) for name, schema in schemas.items() if name in records for field in schema["properties"]]
    maps = [
        (name, field) for name, field in patches if "additionalProperties" in str(schemas[name]["properties"][field])
    ]
    assert {("QuotaPatch", "tiers"), ("TierPatch", "selector")} <= set(maps)
    for name, field in maps:
        patch: dict[str, Any] = {field: {"e": None}}
        kind = {"$schema": DIALECT, "$ref": f"#/components/schemas/{name}", "components": described["components"]}
        assert jsonschema_rs.validator_for(kind).is_valid(patch), (name, field)
        answer = await plane.http.patch(f"/api/v1/{records[name]}", json=patch)
        assert answer.status_code == 200, (name, field, answer.text)
        if field == "selector":
            for labels, merged in (({"a": "1", "b": "2"}, {"a": "1", "b": "2"}), ({"a": None, "b": "3"}, {"b": "3"})):
                answer = await plane.http.patch(f"/api/v1/{records[name]}", json={field: labels})
                left = {key: value for key, value in answer.json()[field].items() if key in ("a", "b")}
                assert left == merged, (name, answer.text)
    for tiers in ({"disk": {"floor_bytes": 1, "limit_bytes": 9}}, {"disk": {"floor_bytes": None}}):
        changed = accepted(await plane.http.patch("/api/v1/quotas/e", json={"tiers": tiers}), 200)
    assert changed["tiers"] == {"disk": {"limit_bytes": 9}}
    inner = schemas["TierQuotaPatch"]["properties"]
    assert all({"type": "null"} in field["anyOf"] for field in inner.values())


def test_every_body_has_an_example_and_each_is_valid(described: dict[str, Any]) -> None:
    schemas = described["components"]["schemas"]
    expected = {
        content["schema"]["$ref"].rpartition("/")[2]
        for _, _, operation in operations(described)
        for content in operation.get("requestBody", {"content": {}})["content"].values()
    }
    assert set(EXAMPLES) == expected
    for name, example in EXAMPLES.items():
        assert schemas[name]["examples"] == [example]
        schema = {"$schema": DIALECT, "$ref": f"#/components/schemas/{name}", "components": described["components"]}
        jsonschema_rs.validator_for(schema).validate(example)


def test_the_description_and_the_server_call_the_same_characters_printable(described: dict[str, Any]) -> None:
    fields = described["components"]["schemas"]["PinPut"]["properties"]
    by_category: dict[str, list[str]] = {}
    for number in range(0x110000):
        category = unicodedata.category(chr(number))
        members = by_category.setdefault(category, [])
        if category in ("Cc", "Cf", "Zs", "Zl", "Zp") or (category != "Cs" and len(members) < 40):
            members.append(chr(number))
    assert {"Cn", "Co", "Mn"} <= set(by_category)
    for name, check in (("note", checks.note), ("model", checks.model)):
        fits = jsonschema_rs.validator_for({"$schema": DIALECT, **fields[name]})
        for category, characters in by_category.items():
            for character in characters:
                try:
                    check(f"a{character}b")
                    allowed = True
                except ValueError:
                    allowed = False
                assert fits.is_valid(f"a{character}b") == allowed, (name, category, ascii(character))
                assert allowed or category not in ("Co", "Lu", "So"), (name, ascii(character))


def test_documents_and_problems_are_described_once(described: dict[str, Any]) -> None:
    single, _, several = described["components"]["schemas"]["ApplyPut"]["properties"]["document"]["anyOf"]
    assert single == several["items"]["anyOf"][0] == {"type": "object", "$ref": "#/components/schemas/Document"}
    problems = described["components"]["responses"]
    assert len({msgspec.json.encode(problem, order="sorted") for problem in problems.values()}) == len(problems)
    for path, item in described["paths"].items():
        for method, operation in item.items():
            for status, response in operation["responses"].items():
                assert int(status) < 400 or list(response) == ["$ref"], (method, path, status)


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


async def test_a_page_is_served_as_printed(plane: Plane) -> None:
    served = await plane.http.get("/api/openapi.json")
    assert served.headers["content-type"] == "application/vnd.oai.openapi+json"
    assert msgspec.json.decode(served.content) == description()


async def test_every_example_is_accepted(new_plane: Plane) -> None:
    posts = {
        "actions/dry-run": ("DryRunPost", 200), "actions/invalidate": ("SweepPost", 200),
        "actions/lookup": ("LookupPost", 200), "actions/verify": ("VerifyPost", 200), "apply": ("ApplyPut", 200),
        "nodes/node-a/drain": ("DrainPost", 200), "nodes/node-a/engines/7/expel": ("ExpelPost", 200),
        "nodes/node-a/resize": ("ResizePost", 200), "pins/e:extend": ("PinExtend", 200),
        "tenants/acme/adopt": ("AdoptPost", 201),
        "join-tokens": ("JoinTokenPost", 409),  # this plane has no join socket
        "session": ("SessionPost", 401),
        "actions/clear": ("ClearPost", 422),  # does not confirm
        "tokens": ("TokenPost", 201),
    }  # fmt: skip
    requests = [
        *(("PUT", f"{noun}/e", body, 201) for noun, body in RECORDS.items()),
        *(("PATCH", f"{noun}/e", body.replace("Put", "Patch"), 200) for noun, body in RECORDS.items()),
        ("PATCH", "nodes/node-a", "NodePatch", 200),
        *(("POST", path, *expected) for path, expected in posts.items()),
    ]
    new_plane.http.headers.update(bearer(await create_token(new_plane, "root", "admin")))
    for method, path, name, status in requests:
        answer = await new_plane.http.request(method, f"/api/v1/{path}", json=EXAMPLES[name])
        assert answer.status_code == status, (name, answer.text)
