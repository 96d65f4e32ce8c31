"""Complete the OpenAPI document with the parts that all routes share, so that handlers need not repeat them.

Litestar describes parameters, bodies and answers. This module adds the problems that any route can answer, headers,
required roles and authentication schemes, the fields of merge patches, examples, and the descriptions of tags.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.response import Stream
from litestar.routes import HTTPRoute

from app.http.body import MERGE_PATCH
from app.http.cookies import NAME as COOKIE
from app.http.cookies import SECURE_NAME as SECURE_COOKIE
from app.http.examples import EXAMPLES
from app.http.problems import KINDS, MEDIA_TYPE, TYPE_PREFIX
from app.http.routes.access.session import CSRF_HEADER
from app.http.routes.views.snapshot import INDEX_HEADER

Json = dict[str, Any]
API = "/api/"

ABOUT = """Quotas, pins, policies and the state of a KV cache. Times are Unix seconds, sizes are bytes.

- **Who asks**: until there is a token, requests from the machine itself need none. From then on every request has one.
- **Changing what is there**: `PUT`, `PATCH` and `DELETE` of a record need `If-Match` with its ETag, or `*`; creating
  needs nothing. A `PATCH` is a JSON merge patch (RFC 7396).
- **Lists** have `items`, `total` and `next_cursor`, which is the `cursor` of the next page.
- **Refusals** are problem details (RFC 9457); `errors` names the fields at fault.
- Every `GET` has a `HEAD`, and every path answers `OPTIONS`.
"""
TAGS = {
    "quotas": "A tenant's share of every node's pool.",
    "tenants": "Tenants with cached blocks or a quota.",
    "pins": "Manage pinned prefixes.",
    "policies": "How victims are chosen, and on which nodes.",
    "prefixes": "List the most served prefixes of the last hour.",
    "blocks": "List cached blocks.",
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
    "managers": "Management planes that share the database.",
    "joins": "Tokens with which nodes join.",
    "as code": "Records in files: apply and export.",
    "health": "Whether Larder works, for whatever looks after it.",
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
        "description": f"A browser that logged in at `/api/v1/session`; over HTTPS the cookie is `{SECURE_COOKIE}`.",
    },
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": CSRF_HEADER,
        "description": "Changes with a session need it; `GET /api/v1/session` tells it.",
    },
}
_BEARER: Json = {"bearer": []}
_SESSION: Json = {"session": []}
_TO_READ = [_BEARER, _SESSION]
_TO_CHANGE = [_BEARER, {**_SESSION, "csrf": []}]
_UNSAFE = frozenset({"put", "patch", "post", "delete"})


def _header(description: str, kind: str = "string", *, always: bool = True, **more: str) -> Json:
    return {"description": description, "required": always, "schema": {"type": kind, **more}}


_HEADERS: Json = {
    "X-Request-Id": _header("Of this request, as the log and the audit have it."),
    "ETag": _header("Names this state: for `If-None-Match`, and of a record for `If-Match`."),
    "Location": _header("Where the new record is.", format="uri-reference"),
    "Retry-After": _header("Seconds after which it makes sense to try again.", "integer"),
    "WWW-Authenticate": _header('`Bearer realm="larder"`.'),
    "Set-Cookie": _header("The session's cookie, which scripts cannot read."),
    "Content-Disposition": _header("Of `text/csv`: a name for the file.", always=False),
    CSRF_HEADER: _header("What changes with the session's cookie must send; empty without a session."),
    INDEX_HEADER: _header("`index` of the snapshot.", "integer"),
}
_OWN_HEADERS = {
    "getSnapshot": (INDEX_HEADER,),
    "logIn": (CSRF_HEADER, "Set-Cookie"),
    "getSession": (CSRF_HEADER,),
    "logOut": ("Set-Cookie",),
    "getUsage": ("Content-Disposition",),
    "adoptTenant": ("ETag", "Location"),
    "createToken": ("Location",),
    "extendPin": ("ETag",),
}
"""Headers of successful answers, by operation, beyond those that follow from the method."""


class DescribedOperation(JsonRenderPlugin):
    """Serves `/api/openapi.json`. The document is built once, in a thread, because that takes half a second."""

    def __init__(self, path: str) -> None:
        super().__init__(path=path)
        self._making = asyncio.Lock()
        self._made = b""

    async def prepare(self, app: Litestar) -> None:
        """Build the document. Await this before `render` is called."""
        async with self._making:
            if not self._made:
                self._made = await asyncio.to_thread(_encoded, app)

    def render(self, request: Any, openapi_schema: Json) -> bytes:
        return self._made


def _encoded(app: Litestar) -> bytes:
    return msgspec.json.encode(document(app))


def document(app: Litestar) -> Json:
    """Return the complete OpenAPI document."""
    made = app.openapi_schema.to_schema()
    schemas: Json = made["components"]["schemas"]
    made["info"]["description"] = ABOUT
    made["components"]["securitySchemes"] = _SCHEMES
    made["components"]["headers"] = _HEADERS
    made["security"] = _TO_CHANGE
    handlers = _handlers(app)
    made["paths"] = paths = _apart(made["paths"], handlers)
    for path, item in paths.items():
        for method, operation in item.items():
            handler = handlers[operation["operationId"]]
            _parameters(operation)
            _patch_body(method, operation, item, schemas, handler.opt)
            _kinds(operation, handler)
            _responses(path, method, operation, handler)
            _headers(path, method, operation, handler)
            _access(method, operation, handler)
    for name, example in EXAMPLES.items():
        if name in schemas:  # a test checks that the names of EXAMPLES are names of schemas
            schemas[name]["examples"] = [example]
    used = {tag for item in paths.values() for operation in item.values() for tag in operation["tags"]}
    made["tags"] = [{"name": name, "description": text} for name, text in TAGS.items() if name in used]
    return made


def _apart(paths: Json, handlers: Mapping[str, HTTPRouteHandler]) -> Json:
    """Give an operation with `opt["suffix"]` a path of its own: the path of its route followed by the suffix."""
    apart: Json = {}
    for path, item in paths.items():
        for method, operation in item.items():
            suffix = handlers[operation["operationId"]].opt.get("suffix", "")
            apart.setdefault(path + suffix, {})[method] = operation
    return apart


def _handlers(app: Litestar) -> Mapping[str, HTTPRouteHandler]:
    return {
        str(handler.operation_id): handler
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if handler.operation_id
    }


def _parameters(operation: Json) -> None:
    """Remove null from the schemas of optional parameters: a header or a query parameter cannot be null."""
    for parameter in operation.get("parameters", ()):
        said: Json = parameter["schema"]
        choices = [choice for choice in said.get("oneOf", ()) if choice != {"type": "null"}]
        if len(choices) == 1:
            del said["oneOf"]
            said.update(choices[0])
        if "null" in said.get("type", ()):
            said["type"] = next(kind for kind in said["type"] if kind != "null")
            said["enum"] = [value for value in said["enum"] if value is not None]


def _patch_body(method: str, operation: Json, item: Json, schemas: Json, opt: Json) -> None:
    """Describe the body of a merge patch: the fields of the record's PUT, all of them optional; null resets a field to
    its default. A route names the struct whose fields a patch may not change as `kept` in `opt`, or,
    if there is no PUT, the struct of the patch as `patch`."""
    content = operation.get("requestBody", {}).get("content", {}).get(MERGE_PATCH)
    if method != "patch" or content is None or "$ref" in content["schema"]:
        return
    if "patch" in opt:
        (content["schema"],), made = msgspec.json.schema_components(
            [opt["patch"]], ref_template="#/components/schemas/{name}"
        )
        schemas.update(made)
        return
    whole = item["put"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    name = whole.removesuffix("Put") + "Patch"
    kept = opt["kept"].__struct_fields__ if "kept" in opt else ()
    fields = {field: schema for field, schema in schemas[whole]["properties"].items() if field not in kept}
    schemas[name] = {
        "title": name,
        "type": "object",
        "additionalProperties": False,
        "description": "Fields to change; what is left out stays, null takes a field back to its default.",
        "properties": {field: _nullable(schema) for field, schema in fields.items()},
    }
    content["schema"] = {"$ref": f"#/components/schemas/{name}"}


def _nullable(schema: Json) -> Json:
    choices = schema.get("oneOf") or [{name: value for name, value in schema.items() if name not in _SAID}]
    if {"type": "null"} in choices:
        return {name: value for name, value in schema.items() if name != "default"}
    said = {name: schema[name] for name in ("description",) if name in schema}
    return {**said, "oneOf": [*choices, {"type": "null"}]}


_SAID = ("default", "description", "examples")


def _kinds(operation: Json, handler: HTTPRouteHandler) -> None:
    """Add the other media types of the answer, all of them text."""
    for kind in handler.opt.get("produces", ()):
        operation["responses"]["200"]["content"][kind] = {"schema": {"type": "string"}}


def _responses(path: str, method: str, operation: Json, handler: HTTPRouteHandler) -> None:
    """Add the problems that a route can answer without declaring them."""
    codes = ["malformed", "head-too-large", "stopping"]
    if path.startswith(API):  # see `negotiation`
        codes.append("invalid")
        if "204" not in operation["responses"]:
            codes.append("not-acceptable")
    if method == "put" or "201" in operation["responses"]:
        codes.append("conflict")  # another client may create it first
    if "requestBody" in operation:
        codes += ["too-large", "unsupported-media-type"]
    for code in codes:
        _refused(operation["responses"], code)
    if _has_etag(path, method, handler):
        operation["responses"]["304"] = {
            "description": "The caller has this state already (`If-None-Match`)."
        }
    operation["responses"] = dict(sorted(operation["responses"].items()))


def _refused(responses: Json, code: str) -> None:
    kind = KINDS[code]
    said = f"`{TYPE_PREFIX}{code}`: {kind.title}"
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    held = responses.setdefault(str(kind.status), {"description": "", "content": content})
    if not held["description"].startswith("`"):  # Litestar's own description of the error
        held["description"], held["content"] = "", content
    if said not in held["description"].split("; "):
        held["description"] = "; ".join(filter(None, (held["description"], said)))


def _has_etag(path: str, method: str, handler: HTTPRouteHandler) -> bool:
    """Return whether the answer has an ETag: a GET of the API that is not a stream, see `conditional`."""
    kind: Any = handler.parsed_fn_signature.return_type.annotation
    return method == "get" and path.startswith(API) and kind is not Stream


def _headers(path: str, method: str, operation: Json, handler: HTTPRouteHandler) -> None:
    names = {parameter["name"] for parameter in operation.get("parameters", ())}
    is_tagged = _has_etag(path, method, handler)
    for status, response in operation["responses"].items():
        said = ["X-Request-Id"]
        if status in ("200", "201", "204"):
            said += _OWN_HEADERS.get(operation["operationId"], ())
        if (is_tagged and status in ("200", "304")) or ("If-Match" in names and status in ("200", "201")):
            said.append("ETag")
        if status in ("429", "503"):
            said.append("Retry-After")
        if status == "401":
            said.append("WWW-Authenticate")
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in said}
    if is_tagged:
        operation.setdefault("parameters", []).append(
            {
                "name": "If-None-Match",
                "in": "header",
                "required": False,
                "description": "ETags of states that the caller has.",
                "schema": {"type": "string"},
            }
        )


def _access(method: str, operation: Json, handler: HTTPRouteHandler) -> None:
    role = handler.opt.get("role", "admin")
    if role == "anyone":
        operation["security"] = []
        said = "Needs no token."
    else:
        limited = handler.opt.get("scoped", False)
        said = f"Needs the role `{role}`" + (
            ", which may be limited to tenants." if limited else ", not limited to tenants."
        )
        operation["security"] = _TO_CHANGE if method in _UNSAFE else _TO_READ
        operation["x-role"], operation["x-limited-to-tenants"] = role, limited
        opened_by = handler.opt.get("opened_by")
        if opened_by:
            said = f"Open to everybody unless the setting `{opened_by}` is false. Then: {said}"
            operation["security"] = [{}, *_TO_READ]
    operation["description"] = "\n\n".join(filter(None, (operation.get("description"), said)))
