"""The API's description, completed: what all routes have in common is said here once, not in every handler.

The framework describes parameters, bodies and answers. Added here are the refusals that any route can answer, headers,
who may call it and how to say who one is, the fields of merge patches, examples, and what the tags mean.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.routes import HTTPRoute

from app.http.body import MERGE_PATCH
from app.http.cookies import NAME as COOKIE
from app.http.problems import KINDS, MEDIA_TYPE, TYPE_PREFIX
from app.http.snapshot import INDEX_HEADER

Json = dict[str, Any]

TAGS = {
    "quotas": "A tenant's share of every node's pool.",
    "tenants": "Who keeps something, with or without a quota.",
    "pins": "Prefixes that must stay.",
    "policies": "How victims are chosen, and on which nodes.",
    "prefixes": "What was served most in the last hour.",
    "blocks": "What is cached, block by block.",
    "actions": "Things that are done to blocks now.",
    "tokenizers": "Tokenizers of models, so that text can be pinned and looked up.",
    "nodes": "Data planes: what they should hold and what they hold.",
    "pushes": "What was sent to nodes, and what they answered.",
    "events": "Facts as they happen, and those that were kept.",
    "snapshot": "The whole state for agents and controllers, with waiting for the next one.",
    "overview": "The dashboard's whole state.",
    "usage": "What tenants used, by the hour, and what it was worth.",
    "audit": "Who did what, or was refused it.",
    "tokens": "Who may call the API.",
    "ceilings": "The most that quotas may give.",
    "session": "Browsers that logged in.",
    "replicas": "Management planes that share the database.",
    "joins": "Tokens with which nodes join.",
    "as code": "Records in files: apply and export.",
    "health": "Whether Larder works, for whatever looks after it.",
}
EXAMPLES: dict[str, Any] = {
    "QuotaPut": {"limit_bytes": "4GiB", "floor_bytes": "1GiB", "weight": 2, "note": "trial"},
    "QuotaPatch": {"limit_bytes": "8GiB", "note": None},
    "PolicyPut": {"algorithm": "s3fifo", "admission": True, "selector": {"zone": "a"}, "priority": 10},
    "PolicyPatch": {"algorithm": "arc"},
    "PinPut": {"model": "llama", "tenant": "acme", "tokens": [1, 2, 3, 4], "chunk_tokens": 4, "ttl_s": 3600},
    "AdoptPost": {"floor_bytes": "1GiB", "note": "found"},
    "ResizePost": {"pool_bytes": "8GiB"},
}
_SCHEMES: Json = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "A token: `Authorization: Bearer larder_…`.",
    },
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": "A browser that logged in at `/api/v1/session`; changes need the header `X-CSRF-Token`, too.",
    },
}
_ANY_OF: list[Json] = [{"bearer": []}, {"session": []}]
_UNSAFE = frozenset({"put", "patch", "post", "delete"})
_HEADERS: Json = {
    "X-Request-Id": {
        "description": "Of this request, as the log and the audit have it.",
        "schema": {"type": "string"},
    },
    "ETag": {
        "description": "Names this state: for `If-None-Match`, and of a record for `If-Match`.",
        "schema": {"type": "string"},
    },
    "Location": {
        "description": "Where the new record is.",
        "schema": {"type": "string", "format": "uri-reference"},
    },
    "Retry-After": {
        "description": "Seconds after which it makes sense to try again.",
        "schema": {"type": "integer"},
    },
    "WWW-Authenticate": {"description": "`Bearer`.", "schema": {"type": "string"}},
    INDEX_HEADER: {"description": "`index` of the snapshot.", "schema": {"type": "integer"}},
}


class Described(JsonRenderPlugin):
    """`/api/openapi.json`: made once."""

    _made: bytes = b""

    def render(self, request: Any, openapi_schema: Json) -> bytes:
        if not self._made:
            self._made = self.render_json(request, complete(request.app, openapi_schema))
        return self._made


def complete(app: Litestar, document: Json) -> Json:
    """The framework's description with everything else; the argument is not used any more."""
    handlers = _handlers(app)
    schemas: Json = document["components"]["schemas"]
    document["components"]["securitySchemes"] = _SCHEMES
    document["components"]["headers"] = _HEADERS
    document["security"] = _ANY_OF
    for item in document["paths"].values():
        for method, operation in item.items():
            if isinstance(operation, dict) and "responses" in operation:
                handler = handlers[operation["operationId"]]
                _patch_body(method, operation, item, schemas, handler.opt.get("patch"))
                _responses(method, operation)
                _headers(method, operation)
                _access(operation, handler)
    for name, example in EXAMPLES.items():
        if name in schemas:
            schemas[name]["examples"] = [example]
    used = {
        tag for item in document["paths"].values() for operation in item.values() for tag in operation["tags"]
    }
    document["tags"] = [{"name": name, "description": text} for name, text in TAGS.items() if name in used]
    return document


def _handlers(app: Litestar) -> Mapping[str, HTTPRouteHandler]:
    return {
        str(handler.operation_id): handler
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if handler.operation_id
    }


def _patch_body(method: str, operation: Json, item: Json, schemas: Json, patch: Any) -> None:
    """A merge patch has the fields of the record's PUT, all of them optional; null takes one back to its default.
    Where there is no PUT, the route names the struct in `opt`."""
    content = operation.get("requestBody", {}).get("content", {}).get(MERGE_PATCH)
    if method != "patch" or content is None or "$ref" in content["schema"]:
        return
    if patch is not None:
        (content["schema"],), made = msgspec.json.schema_components(
            [patch], ref_template="#/components/schemas/{name}"
        )
        schemas.update(made)
        return
    whole = item["put"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    name = whole.removesuffix("Put") + "Patch"
    schemas[name] = {
        "title": name,
        "type": "object",
        "additionalProperties": False,
        "description": "Fields to change; what is left out stays, null takes a field back to its default.",
        "properties": {field: _nullable(schema) for field, schema in schemas[whole]["properties"].items()},
    }
    content["schema"] = {"$ref": f"#/components/schemas/{name}"}


def _nullable(schema: Json) -> Json:
    choices = schema.get("oneOf") or [{name: value for name, value in schema.items() if name not in _SAID}]
    if {"type": "null"} in choices:
        return {name: value for name, value in schema.items() if name != "default"}
    said = {name: schema[name] for name in ("description",) if name in schema}
    return {**said, "oneOf": [*choices, {"type": "null"}]}


_SAID = ("default", "description", "examples")


def _responses(method: str, operation: Json) -> None:
    """The refusals that need no handler's word."""
    codes = ["malformed", "invalid", "head-too-large", "stopping"]
    if "204" not in operation["responses"]:
        codes.append("not-acceptable")
    if method in _UNSAFE:
        codes.append("conflict")
    if "requestBody" in operation:
        codes += ["too-large", "unsupported-media-type"]
    for code in codes:
        kind = KINDS[code]
        said = f"`{TYPE_PREFIX}{code}`: {kind.title}"
        held = operation["responses"].setdefault(
            str(kind.status),
            {
                "description": "",
                "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        )
        if f"`{TYPE_PREFIX}{code}`" not in held["description"]:
            if not held["description"].startswith("`"):  # the framework's own words for a refusal
                held["description"] = ""
                held["content"] = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
            held["description"] = "; ".join(filter(None, (held["description"], said)))
    if method == "get":
        operation["responses"]["304"] = {
            "description": "The caller has this state already (`If-None-Match`)."
        }
    operation["responses"] = dict(sorted(operation["responses"].items()))


def _headers(method: str, operation: Json) -> None:
    names = {parameter["name"] for parameter in operation.get("parameters", ())}
    for status, response in operation["responses"].items():
        said = ["X-Request-Id"]
        if (method == "get" and status in ("200", "304")) or (
            "If-Match" in names and status in ("200", "201")
        ):
            said.append("ETag")
        if method == "post" and status == "201":
            said.append("Location")
        if status in ("429", "503"):
            said.append("Retry-After")
        if status == "401":
            said.append("WWW-Authenticate")
        if operation["operationId"] == "getSnapshot" and status == "200":
            said.append(INDEX_HEADER)
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in said}
    if method == "get":
        operation.setdefault("parameters", []).append(
            {
                "name": "If-None-Match",
                "in": "header",
                "required": False,
                "description": "ETags of states that the caller has.",
                "schema": {"type": "string"},
            }
        )


def _access(operation: Json, handler: HTTPRouteHandler) -> None:
    role = handler.opt.get("role", "admin")
    if role == "anyone":
        operation["security"] = []
        said = "Needs no token."
    else:
        limited = handler.opt.get("scoped", False)
        said = f"Needs the role `{role}`" + (
            ", which may be limited to tenants." if limited else ", not limited to tenants."
        )
    operation["description"] = "\n\n".join(filter(None, (operation.get("description"), said)))
