"""Complete the OpenAPI document with the parts that all routes share, so that handlers need not repeat them.

Litestar describes parameters, bodies and answers. This module adds the problems that any route can answer, headers,
required roles and authentication schemes, the fields of merge patches, examples, and the descriptions of tags.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.response import Stream
from litestar.routes import HTTPRoute

from app.descriptions import descriptions
from app.http.body import MERGE_PATCH
from app.http.cookies import NAME as COOKIE
from app.http.cookies import SECURE_NAME as SECURE_COOKIE
from app.http.examples import EXAMPLES
from app.http.negotiation import suffixes
from app.http.problems import KINDS, MEDIA_TYPE, TYPE_PREFIX
from app.http.routes.access.session import CSRF_HEADER
from app.http.routes.views.snapshot import INDEX_HEADER
from app.schemas.base.fields import IN_WORDS, whole
from app.schemas.documents.apply import DOCUMENT, SECTIONS, ExportAnswer

Json = dict[str, Any]
API = "/api/"

DESCRIPTION = """Quotas, pins, policies, tiers and the state of a KV cache. Times are Unix seconds, sizes are bytes.

- **Authentication**: until the first token is created, requests from the same machine need none. After that, every
  request needs one.
- **Changes**: `PUT`, `PATCH` and `DELETE` of an existing record need `If-Match` with its ETag, or `*`; creating a
  record needs no header. A `PATCH` is a JSON merge patch (RFC 7396).
- **Printable** characters are all that the patterns of names and notes allow: no controls, no characters that change
  the direction of text or are invisible, and no blanks but the space. Characters that are unassigned or for private
  use are printable, so that the rule is the same with each version of Unicode.
- **Lists** have `items`, `total` and `next_cursor`, which is the `cursor` of the next page.
- **Errors** are problem details (RFC 9457); `errors` names the invalid fields.
- Every path with `GET` also supports `HEAD`, and every path supports `OPTIONS`.
"""
TAGS = {
    "quotas": "A tenant's share of every node's pool.",
    "tenants": "Tenants with cached blocks or a quota.",
    "pins": "Manage pinned prefixes.",
    "policies": "Eviction policies, and the nodes to which they apply.",
    "tiers": "Stores behind the memory of nodes, such as disks.",
    "prefixes": "List the most served prefixes of the last hour.",
    "blocks": "List cached blocks.",
    "requests": "What engines' requests got from the cache, and why not more.",
    "sessions": "Conversations that requests name (`larder.session`).",
    "actions": "Actions on cached blocks, such as look-ups and invalidation.",
    "tokenizers": "Tokenizers of models, for pins and look-ups by text.",
    "nodes": "Data planes, with their desired and observed state.",
    "pushes": "Snapshots that were sent to nodes, and the answers of the nodes.",
    "events": "Events as they happen, and stored events.",
    "alerts": "Alerts of Alertmanager and Grafana, and the changes beside them.",
    "snapshot": "The complete state for agents and controllers, which can wait for the next state.",
    "findings": "What is wrong, since when, the likely cause, and what to do.",
    "overview": "The state that the dashboard shows.",
    "series": "Figures over time, and what happened meanwhile.",
    "usage": "Usage of tenants per hour, and the prefill time that it saved.",
    "audit": "The audit log: changes, actions and denied requests.",
    "tokens": "Manage API tokens.",
    "ceilings": "Bounds within which a tenant's own operators may set quotas and pins.",
    "session": "Login sessions of browsers.",
    "managers": "Managers that share the database.",
    "joins": "Tokens with which nodes join the fleet.",
    "as code": "Apply and export records as documents.",
    "health": "Health checks.",
}
_SCHEMES: Json = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A token: `Authorization: Bearer larder_…`."},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": f"A browser session from `/api/v1/session`; over HTTPS the cookie is `{SECURE_COOKIE}`.",
    },
    "csrf": {
        "type": "apiKey",
        "in": "header",
        "name": CSRF_HEADER,
        "description": "CSRF token that changes with a session need; `GET /api/v1/session` returns it.",
    },
}
_BEARER: Json = {"bearer": []}
_SESSION: Json = {"session": []}
_READ_SECURITY = [_BEARER, _SESSION]
_CHANGE_SECURITY = [_BEARER, {**_SESSION, "csrf": []}]
_UNSAFE = frozenset({"put", "patch", "post", "delete"})
_WITH_BODY = ("malformed", "invalid", "unsupported-media-type", "too-large")
_OF_EVERY_ROUTE = (
    *("unauthorized", "forbidden", "foreign-origin", "too-many-requests", "internal", "store-unavailable"),
    *("malformed", "head-too-large"),
)
"""Codes of problems that routes with a body, and all routes, can answer without declaring them, besides those of a
server that is busy or stops."""


def _header(description: str, kind: str = "string", *, always: bool = True, **rules: str) -> Json:
    return {"description": description, "required": always, "schema": {"type": kind, **rules}}


_HEADERS: Json = {
    "X-Request-Id": _header("Id of this request in the log and in the audit log."),
    "ETag": _header("Identifies this state, for `If-None-Match`; the ETag of a record is also for `If-Match`."),
    "Location": _header("URL of the new record.", format="uri-reference"),
    "Retry-After": _header("Seconds to wait before the next attempt.", "integer"),
    "WWW-Authenticate": _header('`Bearer realm="larder"`.'),
    "Set-Cookie": _header("The session's cookie, which scripts cannot read."),
    "Content-Disposition": _header("File name, for `text/csv`.", always=False),
    CSRF_HEADER: _header("CSRF token to send with changes that use the session cookie; empty without a session."),
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

    def __init__(self) -> None:
        super().__init__(path="/openapi.json")
        self._lock = asyncio.Lock()
        self._encoded = b""

    async def prepare(self, app: Litestar) -> None:
        """Build the document. Await this before `render` is called."""
        async with self._lock:
            if not self._encoded:
                self._encoded = await asyncio.to_thread(_encoded, app)

    def render(self, request: Any, openapi_schema: Json) -> bytes:
        return self._encoded


def _encoded(app: Litestar) -> bytes:
    return msgspec.json.encode(document(app))


def document(app: Litestar) -> Json:
    """Return the complete OpenAPI document."""
    openapi = app.openapi_schema.to_schema()
    schemas: Json = openapi["components"]["schemas"]
    openapi["info"]["description"] = DESCRIPTION
    openapi["components"]["securitySchemes"] = _SCHEMES
    openapi["components"]["headers"] = _HEADERS
    openapi["security"] = _CHANGE_SECURITY
    handlers = _handlers(app)
    openapi["paths"] = paths = _with_suffixes(openapi["paths"], handlers)
    schemas.update(_bodies(handlers.values()))
    # Litestar leaves out the reference of an inner type.
    schemas[ExportAnswer.__name__]["properties"]["document"] = {"$ref": "#/components/schemas/Document"}
    for path, item in paths.items():
        for method, operation in item.items():
            handler = handlers[operation["operationId"]]
            _patch_body(method, operation, item, schemas, handler.opt)
            _media_types(operation, handler)
            _responses(path, method, operation, handler)
            _parameters(operation)
            _headers(path, method, operation, handler)
            _access(method, operation, handler)
    for name, example in EXAMPLES.items():
        if name in schemas:  # a test checks that the names of EXAMPLES are names of schemas
            schemas[name]["examples"] = [example]
    _put_in_words(openapi)
    openapi["components"]["responses"] = _shared_problems(paths)
    used = {tag for item in paths.values() for operation in item.values() for tag in operation["tags"]}
    openapi["tags"] = [{"name": name, "description": text} for name, text in TAGS.items() if name in used]
    return openapi


def _with_suffixes(paths: Json, handlers: Mapping[str, HTTPRouteHandler]) -> Json:
    """Give each action a path of its own: the path of its route followed by the suffix of the action."""
    suffixed: Json = {}
    for path, item in paths.items():
        for method, operation in item.items():
            for suffix, fields in suffixes(handlers[operation["operationId"]]).items():
                suffixed.setdefault(path + suffix, {})[method] = {**deepcopy(operation), **fields}
    return suffixed


def _handlers(app: Litestar) -> Mapping[str, HTTPRouteHandler]:
    return {
        operation_id: handler
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        if handler.operation_id
        for operation_id in (
            str(handler.operation_id),
            *(fields["operationId"] for fields in suffixes(handler).values() if "operationId" in fields),
        )
    }


def _bodies(handlers: Iterable[HTTPRouteHandler]) -> Json:
    """Return the schemas of all bodies, and of what they are made of, as msgspec describes them: Litestar leaves out
    that other fields are refused, and the bounds of inner types."""
    kinds = {handler.opt[name] for handler in handlers for name in ("body", "patch") if name in handler.opt}
    bodies = [kind for kind in kinds if _is_struct(kind)]
    _, schemas = msgspec.json.schema_components(bodies, ref_template="#/components/schemas/{name}")
    parts = [part for kind in bodies for part in _parts(kind)]
    for part in parts:
        if _is_struct(part):
            _describe(part, schemas[part.__name__]["properties"])
    for kind in bodies:
        _rules(kind, schemas[kind.__name__])
    _order_choices(schemas, {frozenset(get_args(part)): [*get_args(part)] for part in parts if _is_choice(part)})
    schemas["Document"] = {**DOCUMENT, "title": "Document"}
    for section in SECTIONS.values():
        put = schemas[section.put.__name__]
        key = {"type": "string", "pattern": whole(section.names)}
        schemas[section.entry] = {
            **put,
            "title": section.entry,
            "properties": {section.key: key, **put["properties"]},
            "required": [section.key, *put["required"]],
        }
    for schema in schemas.values():
        if "description" in schema:
            schema["description"] = " ".join(schema["description"].split())
        for field in schema.get("properties", {}).values():
            if field.get("default", "") in (None, [], {}):
                del field["default"]
    return schemas


def _parts(hint: Any) -> Iterator[Any]:
    """Yield a declaration, and what it is made of."""
    yield hint
    parts = get_type_hints(hint, include_extras=True).values() if isinstance(hint, type) else get_args(hint)
    for part in parts:
        yield from _parts(part)


def _is_struct(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, msgspec.Struct)


def _is_choice(part: Any) -> bool:
    return get_origin(part) is Literal


def _describe(kind: type[msgspec.Struct], properties: Json) -> None:
    described = descriptions(kind)
    for field in msgspec.structs.fields(kind):
        if field.name in described:
            properties[field.encode_name]["description"] = described[field.name]


def _order_choices(schema: Any, orders: Mapping[frozenset[Any], list[Any]]) -> None:
    """List choices in the order of their declaration, which msgspec does not keep, and say that they are texts."""
    if isinstance(schema, list):
        for part in schema:
            _order_choices(part, orders)
    elif isinstance(schema, dict):
        if isinstance(schema.get("enum"), list) and frozenset(schema["enum"]) in orders:
            schema.update(enum=orders[frozenset(schema["enum"])], type="string")
        for part in schema.values():
            _order_choices(part, orders)


def _rules(kind: type[msgspec.Struct], schema: Json) -> None:
    """Add which fields a body needs beyond those without a default, see `app.schemas.base.fields`."""
    schema["required"] = sorted({*schema.get("required", ()), *getattr(kind, "REQUIRED", ())})
    for rule, keyword in (("AT_LEAST_ONE", "anyOf"), ("EXACTLY_ONE", "oneOf")):
        if hasattr(kind, rule):
            schema[keyword] = [_needed(name, schema["properties"][name]) for name in getattr(kind, rule)]
    if hasattr(kind, "RULES"):
        schema["allOf"] = list(kind.RULES)


def _needed(name: str, schema: Json) -> Json:
    """Return the schema of an object with this field; null does not count where it is the default."""
    counts = {"properties": {name: {"not": {"type": "null"}}}} if "default" in schema else {}
    return {"required": [name], **counts}


def _parameters(operation: Json) -> None:
    """Remove null from the schemas of optional parameters: a header or a query parameter cannot be null. A route that
    changes a record that is there needs its state."""
    for parameter in operation.get("parameters", ()):
        if parameter["name"] == "If-Match" and "404" in operation["responses"]:
            parameter["required"] = True
        schema: Json = parameter["schema"]
        choices = [choice for choice in schema.get("oneOf", ()) if choice != {"type": "null"}]
        if len(choices) == 1:
            del schema["oneOf"]
            schema.update({**choices[0], **schema})
        if "null" in schema.get("type", ()):
            schema["type"] = next(kind for kind in schema["type"] if kind != "null")
            schema["enum"] = [value for value in schema["enum"] if value is not None]


def _patch_body(method: str, operation: Json, item: Json, schemas: Json, opt: Json) -> None:
    """Describe the body of a merge patch: the fields of the record's PUT, all of them optional; null resets a field to
    its default. In `opt`, `kept` is a struct whose fields a patch may not change. A route without a PUT gives
    the struct of the patch as `patch`."""
    content = operation.get("requestBody", {}).get("content", {}).get(MERGE_PATCH)
    if method != "patch" or content is None or "$ref" in content["schema"]:
        return
    if "patch" in opt:
        content["schema"] = {"$ref": f"#/components/schemas/{opt['patch'].__name__}"}
        return
    object_name = item["put"]["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
    fixed = opt["kept"].__struct_fields__ if "kept" in opt else ()
    content["schema"] = {"$ref": _patch_of(object_name, schemas, fixed)}


def _patch_of(object_name: str, schemas: Json, fixed: Collection[str] = ()) -> str:
    """Describe the merge patch of an object, and return the reference to its schema."""
    name = object_name.removesuffix("Put") + "Patch"
    required = schemas[object_name]["required"]
    schemas[name] = {
        "title": name,
        "type": "object",
        "additionalProperties": False,
        "description": "Fields to change; omitted fields keep their values, and null resets a field to its default.",
        "properties": {
            field: patch if field in required else _nullable(patch)
            for field, schema in schemas[object_name]["properties"].items()
            if field not in fixed
            for patch in [_patched(schema, schemas)]
        },
    }
    return f"#/components/schemas/{name}"


def _patched(schema: Json, schemas: Json) -> Json:
    """Return the schema of a patch of a field: an object in it is patched as well, and null removes a member of a map.
    How many members a map may have holds for the result, and not for the patch."""
    if "anyOf" in schema:
        return {**schema, "anyOf": [_patched(choice, schemas) for choice in schema["anyOf"]]}
    if "$ref" in schema:
        return {**schema, "$ref": _patch_of(schema["$ref"].rpartition("/")[2], schemas)}
    if not schema.get("additionalProperties"):
        return schema
    unbounded = {name: value for name, value in schema.items() if name != "maxProperties"}
    return {**unbounded, "additionalProperties": _nullable(_patched(schema["additionalProperties"], schemas))}


def _nullable(schema: Json) -> Json:
    choices = schema.get("anyOf") or [{name: value for name, value in schema.items() if name not in _ANNOTATIONS}]
    if {"type": "null"} in choices:
        return {name: value for name, value in schema.items() if name != "default"}
    described = {name: schema[name] for name in ("description",) if name in schema}
    return {**described, "anyOf": [*choices, {"type": "null"}]}


_ANNOTATIONS = ("default", "description", "examples")


def _media_types(operation: Json, handler: HTTPRouteHandler) -> None:
    """Add the other media types of the answer, all of them text."""
    for kind in handler.opt.get("produces", ()):
        operation["responses"]["200"]["content"][kind] = {"schema": {"type": "string"}}


def _responses(path: str, method: str, operation: Json, handler: HTTPRouteHandler) -> None:
    """Describe the problems that a route can answer, those that it declares first."""
    answers = {status: answer for status, answer in operation["responses"].items() if status < "400"}
    has_body = "requestBody" in operation
    codes = [*handler.opt["problems"], *(_WITH_BODY if has_body else ()), *_OF_EVERY_ROUTE]
    codes += ["server-busy", "stopping"] if has_body else ["stopping"]
    if path.startswith(API):  # see `negotiation`
        codes += ["invalid"] if "204" in answers else ["invalid", "not-acceptable"]
    if method == "put" or "201" in answers:
        codes.append("conflict")  # another client may create it first
    by_status: dict[str, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(str(KINDS[code].status), []).append(f"`{TYPE_PREFIX}{code}`: {KINDS[code].title}")
    for status, texts in by_status.items():
        content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
        answers[status] = {"description": "; ".join(texts), "content": content}
    if _has_etag(path, method, handler):
        answers["304"] = {"description": "The caller already has this state (`If-None-Match`)."}
    operation["responses"] = dict(sorted(answers.items()))


def _has_etag(path: str, method: str, handler: HTTPRouteHandler) -> bool:
    """Return whether the answer has an ETag: a GET of the API that is not a stream, see `conditional`."""
    kind: Any = handler.parsed_fn_signature.return_type.annotation
    return method == "get" and path.startswith(API) and kind is not Stream


def _headers(path: str, method: str, operation: Json, handler: HTTPRouteHandler) -> None:
    parameter_names = {parameter["name"] for parameter in operation.get("parameters", ())}
    is_tagged = _has_etag(path, method, handler)
    for status, response in operation["responses"].items():
        headers = ["X-Request-Id"]
        if status in ("200", "201", "204"):
            headers += _OWN_HEADERS.get(operation["operationId"], ())
        if (is_tagged and status in ("200", "304")) or (
            "If-Match" in parameter_names and method != "delete" and status in ("200", "201")
        ):
            headers.append("ETag")
        if status in ("429", "503"):
            headers.append("Retry-After")
        if status == "401":
            headers.append("WWW-Authenticate")
        response["headers"] = {name: {"$ref": f"#/components/headers/{name}"} for name in headers}
    if is_tagged:
        operation.setdefault("parameters", []).append(
            {
                "name": "If-None-Match",
                "in": "header",
                "required": False,
                "description": "ETags of states that the caller already has.",
                "schema": {"type": "string"},
            }
        )


def _put_in_words(schema: Any) -> None:
    """Say in words what the patterns of fields of records match."""
    if isinstance(schema, list):
        for part in schema:
            _put_in_words(part)
    elif isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str) and schema["pattern"] in _IN_WORDS:
            schema["x-expected"] = _IN_WORDS[schema["pattern"]]
        for part in schema.values():
            _put_in_words(part)


_IN_WORDS = {whole(pattern): words for pattern, words in IN_WORDS.items()}


def _shared_problems(paths: Json) -> Json:
    """Replace the problems that operations answer by references to them, and return them by name: the status and the
    codes."""
    shared: Json = {}
    for item in paths.values():
        for operation in item.values():
            for status, response in operation["responses"].items():
                if MEDIA_TYPE in response.get("content", ()):
                    codes = [text.partition("`")[2].partition("`")[0] for text in response["description"].split("; ")]
                    name = "-".join((status, *(code.removeprefix(TYPE_PREFIX) for code in codes)))
                    shared[name] = response
                    operation["responses"][status] = {"$ref": f"#/components/responses/{name}"}
    return dict(sorted(shared.items()))


def _access(method: str, operation: Json, handler: HTTPRouteHandler) -> None:
    role = handler.opt.get("role", "admin")
    if role == "anyone":
        operation["security"] = []
        note = "Needs no token."
    else:
        limited = handler.opt.get("scoped", False)
        also = handler.opt.get("also")
        if also:
            operation["x-also"] = also
        note = f"Needs the role `{role}`{f' or `{also}`' if also else ''}" + (
            ", which may be limited to tenants." if limited else ", not limited to tenants."
        )
        operation["security"] = _CHANGE_SECURITY if method in _UNSAFE else _READ_SECURITY
        operation["x-role"], operation["x-limited-to-tenants"] = role, limited
        opened_by = handler.opt.get("opened_by")
        if opened_by:
            note = f"Needs no token unless the setting `{opened_by}` is false. Then: {note}"
            operation["security"] = [{}, *_READ_SECURITY]
    operation["description"] = "\n\n".join(filter(None, (operation.get("description"), note)))
