"""What a request asks for must be there: query parameters that the route knows, each once, and an answer of a kind that
the caller takes. A guard of all routes of the API, so that no route can forget it."""

from enum import Enum
from typing import Any
from urllib.parse import parse_qsl

from litestar import Litestar
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.routes import HTTPRoute
from litestar.status_codes import HTTP_204_NO_CONTENT

from app.errors import FieldError, Invalid, Malformed, NotAcceptable

JSON = "application/json"
_QUERIES = "query_parameters"


async def negotiate(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Raises Malformed, Invalid, NotAcceptable. Does not wait, but what is not `async` would be run in a thread."""
    query = connection.scope["query_string"]
    if query:
        _check_query(query, _names(connection.app, handler))
    accepted = connection.headers.get("accept")
    if accepted is not None and accepted != "*/*" and has_content(handler):
        _check_accepted(accepted, (produced(handler), *handler.opt.get("produces", ())))


def has_content(handler: BaseRouteHandler) -> bool:
    """Whether a good answer has a body, which must be of a kind."""
    return not isinstance(handler, HTTPRouteHandler) or handler.status_code != HTTP_204_NO_CONTENT


def produced(handler: BaseRouteHandler) -> str:
    """The media type of a route's answer; `opt["produces"]` has what else it may be."""
    kind = handler.media_type if isinstance(handler, HTTPRouteHandler) else None
    return str(kind.value if isinstance(kind, Enum) else kind) if kind else JSON


def _names(app: Litestar, handler: BaseRouteHandler) -> tuple[str, ...]:
    """Query parameters of a route."""
    if _QUERIES not in app.state:
        app.state[_QUERIES] = {
            known.fn: tuple(sorted(parameter.field_alias for parameter in model.expected_query_params))
            for route in app.routes
            if isinstance(route, HTTPRoute)
            for known, model in route.route_handler_map.values()
        }
    names: tuple[str, ...] = app.state[_QUERIES].get(handler.fn, ())
    return names


def _check_query(query: bytes, names: tuple[str, ...]) -> None:
    try:
        given = [
            name for name, _ in parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
        ]
    except ValueError:  # includes UnicodeDecodeError
        raise Malformed("the query is not UTF-8") from None
    expected = f"expected one of {', '.join(names)}" if names else "expected none here"
    faults = [
        FieldError(name[:64], f"unknown; {expected}") for name in dict.fromkeys(given) if name not in names
    ]
    faults += [FieldError(name, "expected once") for name in names if given.count(name) > 1]
    if faults:
        raise Invalid(f"{faults[0].path}: {faults[0].message}", faults[:20])


def _check_accepted(accepted: str, kinds: tuple[str, ...]) -> None:
    """One of the kinds that a route's answer can have must be taken."""
    if accepted.strip() and not any(_is_taken(accepted, produces) for produces in kinds):
        raise NotAcceptable(
            f"expected an Accept header that takes {' or '.join(kinds)}, got {accepted[:80]!r}"
        )


def _is_taken(accepted: str, produces: str) -> bool:
    """RFC 9110 §12.5.1: the most specific range that fits says whether it is taken."""
    best, taken = -1, False
    for part in accepted.split(","):
        wanted, *parameters = (piece.strip().lower() for piece in part.split(";"))
        ranges = ("*/*", produces.partition("/")[0] + "/*", produces)
        if wanted in ranges and ranges.index(wanted) > best:
            best = ranges.index(wanted)
            taken = not any(_is_zero(parameter) for parameter in parameters)
    return taken


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip().rstrip("0") in ("", ".", "0.")
