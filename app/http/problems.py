"""Every failure as RFC 9457 problem details, by one table from codes to statuses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
import structlog
from litestar import Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.datastructures import ResponseSpec

from app.errors import FieldError, LarderError, NotReady, TooManyRequests
from app.http.answers import with_head
from app.schemas.prefixes import By
from app.schemas.problems import Problem
from app.schemas.pushes import PushStateName, TypeName
from app.services.fields import sentence
from dataplane.protocol.control import Algorithm, Mode, Strength, Tier
from dataplane.protocol.units import format_size

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:larder:problem:"
REFUSAL = "refusal"
"""Where a request's state holds the failure that it was answered with."""
CRASHED = "something went wrong inside; the log has the details under this request_id"


@dataclass(frozen=True)
class Kind:
    status: int
    title: str


KINDS: dict[str, Kind] = {
    "malformed": Kind(400, "The request could not be read"),
    "foreign-origin": Kind(403, "The request comes from a page or a name that is not Larder's"),
    "unauthorized": Kind(401, "It is not known who asks"),
    "forbidden": Kind(403, "The caller may not do this"),
    "not-found": Kind(404, "There is no such thing"),
    "method-not-allowed": Kind(405, "The method does not fit the resource"),
    "not-acceptable": Kind(406, "The answer is of no kind that the caller takes"),
    "body-too-slow": Kind(408, "The body came too slowly"),
    "floors-exceed-capacity": Kind(409, "The floors of all tenants are more than a node holds"),
    "node-refused": Kind(409, "A node will not do what it was asked"),
    "conflict": Kind(409, "Something that is there stands against it"),
    "precondition-failed": Kind(412, "The record is in another state than expected"),
    "too-large": Kind(413, "The body is too large"),
    "unsupported-media-type": Kind(415, "The body is not JSON"),
    "invalid": Kind(422, "Some fields have values that cannot be"),
    "precondition-required": Kind(428, "The request must say which state of the record it knows"),
    "too-many-requests": Kind(429, "Too many requests"),
    "head-too-large": Kind(431, "The path, the query or the headers are too large"),
    "client-gone": Kind(499, "The client did not wait for the answer"),
    "internal": Kind(500, "Larder failed"),
    "store-unavailable": Kind(503, "The database does not answer"),
    "too-many-connections": Kind(503, "There are more connections than Larder holds"),
    "not-ready": Kind(503, "Not every node has what it should have"),
    "node-unreachable": Kind(503, "The node is not connected or does not answer"),
    "stopping": Kind(503, "Larder stops"),
}
_BY_STATUS = {
    400: "malformed",
    404: "not-found",
    405: "method-not-allowed",
    413: "too-large",
    415: "unsupported-media-type",
}

# Parameters whose names here cannot be those of the API.
_AS_SENT = {"kind": "type", "push_state": "state"}
_ALLOWED: dict[str, tuple[str, ...]] = {
    "kind": get_args(TypeName),
    "push_state": get_args(PushStateName),
    "by": get_args(By),
    "strength": get_args(Strength),
    "tier": get_args(Tier),
    "mode": get_args(Mode),
    "algorithm": get_args(Algorithm),
}

AnyRequest = Request[Any, Any, State]


def problem(
    code: str, detail: str, path: str, request_id: str, errors: list[FieldError] | None = None
) -> Problem:
    """The body for a code of `app.errors`."""
    kind = KINDS[code]
    return Problem(TYPE_PREFIX + code, kind.title, kind.status, detail, path, request_id, errors or [])


def encode(body: Problem) -> bytes:
    return msgspec.json.encode(body)


def headers_of(error: LarderError | None, status: int) -> dict[str, str]:
    """What an answer with a problem says besides it."""
    if status == 401:
        return {"WWW-Authenticate": 'Bearer realm="larder"'}
    if isinstance(error, TooManyRequests):
        return {"Retry-After": str(math.ceil(error.retry_after_s))}
    return {"Retry-After": "1"} if status in (429, 503) else {}


def _respond(
    request: AnyRequest,
    code: str,
    detail: str,
    errors: list[FieldError] | None = None,
    error: LarderError | None = None,
) -> Response[bytes]:
    request_id = structlog.contextvars.get_contextvars().get("request_id", "")
    body = problem(code, detail, request.url.path, request_id, errors)
    headers = headers_of(error, body.status)
    return Response(encode(body), status_code=body.status, media_type=MEDIA_TYPE, headers=headers)


def on_larder_error(request: AnyRequest, error: LarderError) -> Response[bytes]:
    if KINDS[error.code].status >= 500 and not isinstance(error, NotReady):
        structlog.get_logger().warning("request.failed", code=error.code, reason=error.message)
    request.scope["state"][REFUSAL] = error
    return _respond(request, error.code, error.message, error.errors, error)


def on_http_error(request: AnyRequest, error: HTTPException) -> Response[bytes]:
    """What the framework refuses by itself: unknown routes, methods, query parameters."""
    if isinstance(error, ValidationException):
        extra = error.extra if isinstance(error.extra, list) else []
        errors = [_parameter_error(item, request.query_params) for item in extra]
        detail = f"{errors[0].path}: {errors[0].message}" if errors else error.detail
        return _respond(request, "invalid", detail, errors)
    code = _BY_STATUS.get(error.status_code)
    if code is None:
        return on_crash(request, error)
    headers = {
        name: with_head(value) if name.lower() == "allow" else value
        for name, value in (error.headers or {}).items()
    }
    details = {
        "not-found": f"there is nothing at {request.url.path}",
        "method-not-allowed": f"expected one of {headers.get('allow', 'other methods')} at {request.url.path}, "
        f"got {request.method}",
    }
    if code == "too-large":
        details[code] = f"expected a body of at most {_body_limit(request)}"
    response = _respond(request, code, details.get(code, error.detail))
    for name, value in headers.items():
        response.headers[name] = value
    return response


def _body_limit(request: AnyRequest) -> str:
    limit = request.route_handler.resolve_request_max_body_size()
    return format_size(limit) if isinstance(limit, int) else "a size that the server has"


def _parameter_error(item: dict[str, Any], query: Mapping[str, str]) -> FieldError:
    key = str(item.get("key", ""))
    if key == "data":
        return FieldError("body", "expected a JSON object, got nothing")
    if key in _ALLOWED:
        name = _AS_SENT.get(key, key)
        got = f", got {query[name][:40]!r}" if name in query else ""
        return FieldError(name, f"expected one of {', '.join(_ALLOWED[key])}{got}")
    said = str(item.get("message", "")).replace(" | null", "")  # left out, not sent as null
    return FieldError(_AS_SENT.get(key, key), sentence(said))


def on_crash(request: AnyRequest, error: Exception) -> Response[bytes]:
    """A defect: told in the log, not to the client."""
    structlog.get_logger().error("request.crashed", path=request.url.path, exc_info=error)
    return _respond(request, "internal", CRASHED)


def declared(*codes: str) -> dict[int, ResponseSpec]:
    """OpenAPI declarations of the problems that a route can answer, besides those that every route can."""
    by_status: dict[int, list[str]] = {}
    every = (
        "unauthorized",
        "forbidden",
        "foreign-origin",
        "too-many-requests",
        "internal",
        "store-unavailable",
    )
    for code in dict.fromkeys((*codes, *every)):
        by_status.setdefault(KINDS[code].status, []).append(code)
    return {
        status: ResponseSpec(
            data_container=Problem,
            generate_examples=False,
            description="; ".join(f"`{TYPE_PREFIX}{code}`: {KINDS[code].title}" for code in names),
            media_type=MEDIA_TYPE,
        )
        for status, names in by_status.items()
    }
