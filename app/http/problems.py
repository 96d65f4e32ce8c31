"""Answer every failure with RFC 9457 problem details. One table maps error codes to statuses."""

import math
from dataclasses import dataclass
from typing import Any, get_args

import msgspec
import structlog
from litestar import Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException, ValidationException

from app.errors import MAX_FAULTS, FieldError, LarderError, NotReady, ServerBusy, TooManyRequests
from app.http.negotiation import allowed, with_head
from app.schemas.base.problems import Problem
from app.schemas.fleet.pushes import PushStateName, TypeName
from app.schemas.records.prefixes import By
from dataplane.base.field_errors import sentence
from dataplane.base.units import format_size
from dataplane.protocol.control.records import Algorithm, Mode, Strength, Tier

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:larder:problem:"
REFUSAL = "refusal"
"""Key in the state of a request for the error that it was answered with."""
CRASHED = "internal error; the log has the details under this request_id"


@dataclass(frozen=True)
class ProblemType:
    status: int
    title: str


KINDS: dict[str, ProblemType] = {
    "malformed": ProblemType(400, "The request is malformed"),
    "foreign-origin": ProblemType(403, "The origin or host of the request is not allowed"),
    "unauthorized": ProblemType(401, "Authentication is required"),
    "forbidden": ProblemType(403, "The caller may not do this"),
    "not-found": ProblemType(404, "Not found"),
    "method-not-allowed": ProblemType(405, "The resource does not support the method"),
    "not-acceptable": ProblemType(406, "No representation that the client accepts"),
    "body-too-slow": ProblemType(408, "The body arrived too slowly"),
    "floors-exceed-capacity": ProblemType(409, "The sum of all floors exceeds the pool of a node"),
    "node-refused": ProblemType(409, "A node refused the request"),
    "conflict": ProblemType(409, "Conflicts with an existing resource"),
    "precondition-failed": ProblemType(412, "The record does not match the precondition"),
    "too-large": ProblemType(413, "The body is too large"),
    "unsupported-media-type": ProblemType(415, "The body is not JSON"),
    "invalid": ProblemType(422, "One or more fields are invalid"),
    "precondition-required": ProblemType(428, "The request needs a precondition"),
    "too-many-requests": ProblemType(429, "Too many requests"),
    "head-too-large": ProblemType(431, "The path, the query or the headers are too large"),
    "client-gone": ProblemType(499, "The client closed the connection"),
    "internal": ProblemType(500, "Internal error"),
    "store-unavailable": ProblemType(503, "The database does not answer"),
    "server-busy": ProblemType(503, "The server cannot serve the request now"),
    "too-many-connections": ProblemType(503, "Too many connections"),
    "not-ready": ProblemType(503, "Some nodes are lost or out of sync"),
    "node-unreachable": ProblemType(503, "The node is not connected or does not answer"),
    "stopping": ProblemType(503, "Larder is stopping"),
}
_BY_STATUS = {
    400: "malformed",
    404: "not-found",
    405: "method-not-allowed",
    413: "too-large",
    415: "unsupported-media-type",
}

# Values of parameters, by the name of the argument of the handler.
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


def problem(code: str, detail: str, path: str, request_id: str, errors: list[FieldError] | None = None) -> Problem:
    """Return the problem for a code of `app.errors`."""
    kind = KINDS[code]
    listed = (errors or [])[:MAX_FAULTS]
    return Problem(TYPE_PREFIX + code, kind.title, kind.status, detail, path, request_id, listed)


def encode(body: Problem) -> bytes:
    return msgspec.json.encode(body)


def headers_of(error: LarderError | None, status: int) -> dict[str, str]:
    """Return the headers of an answer with a problem."""
    if status == 401:
        return {"WWW-Authenticate": 'Bearer realm="larder"'}
    if isinstance(error, TooManyRequests | ServerBusy):
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
    """Answer an error of Litestar: unknown routes, methods, query parameters."""
    if isinstance(error, ValidationException):
        extra = error.extra if isinstance(error.extra, list) else []
        errors = [_parameter_error(item, request) for item in extra]
        detail = f"{errors[0].path}: {errors[0].message}" if errors else error.detail
        return _respond(request, "invalid", detail, errors)
    code = _BY_STATUS.get(error.status_code)
    if code is None:
        return on_crash(request, error)
    headers = dict(error.headers or {})
    if code == "method-not-allowed":
        headers = {"allow": with_head(allowed(request.app, request.scope["path"]))}
    details = {
        "not-found": f"there is nothing at {request.url.path}",
        "method-not-allowed": f"expected one of {headers.get('allow')} at {request.url.path}, got {request.method}",
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


def _parameter_error(item: dict[str, Any], request: AnyRequest) -> FieldError:
    key, query = str(item.get("key", "")), request.query_params
    argument = request.route_handler.parsed_fn_signature.parameters.get(key)
    sent_as = getattr(argument and argument.kwarg_definition, "name", None) or key
    if key == "data":
        return FieldError("body", "expected a JSON object, got nothing")
    if key in _ALLOWED:
        actual = f", got {query[sent_as][:40]!r}" if sent_as in query else ""
        return FieldError(sent_as, f"expected one of {', '.join(_ALLOWED[key])}{actual}")
    message = str(item.get("message", "")).replace(" | null", "")  # a query parameter cannot be null
    return FieldError(sent_as, sentence(message))


def on_crash(request: AnyRequest, error: Exception) -> Response[bytes]:
    """Log an unexpected exception and answer without its details."""
    structlog.get_logger().error("request.crashed", path=request.url.path, exc_info=error)
    return _respond(request, "internal", CRASHED)
