"""Check that the API supports a request: the resource has the method, the route has the query parameters, each of them
occurs at most once unless it is a list, and the caller accepts a media type of the answer. The check runs for all
routes of the API, so that none can omit it.

An action on a resource is a `POST` to the name of the resource followed by one of `opt["suffixes"]`. The router does
not know such paths: it sees a resource and its actions as one route. This module separates their methods."""

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from litestar import Litestar
from litestar.exceptions import MethodNotAllowedException, NotFoundException
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.routes import HTTPRoute
from litestar.status_codes import HTTP_204_NO_CONTENT
from litestar.types import Method
from litestar.utils.path import normalize_path

from app.errors import FieldError, Invalid, Malformed, NotAcceptable

JSON = "application/json"
METHODS: tuple[Method, ...] = ("DELETE", "GET", "PATCH", "POST", "PUT")
_QUERIES = "query_parameters"
_NO_ACTION: Mapping[str, Mapping[str, str]] = {"": {}}
_QVALUE = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?", re.ASCII)
"""RFC 9110 §12.4.2."""


class _Parameter(NamedTuple):
    """What a parameter of a query may be."""

    repeatable: bool
    is_text: bool


def negotiate(scope: Any, handler: BaseRouteHandler) -> None:
    """Raise MethodNotAllowedException, Malformed, Invalid or NotAcceptable for an unsupported request."""
    app, path, method = scope["litestar_app"], scope["path"], scope.get("method")
    if (":" in path or "suffixes" in handler.opt) and method not in allowed(app, path):
        raise MethodNotAllowedException
    query = scope["query_string"]
    if query:
        _check_query(query, _parameters_of(app, handler))
    accepted = [value for name, value in scope["headers"] if name == b"accept"]
    if accepted and accepted != [b"*/*"] and has_content(handler):
        text = b", ".join(accepted).decode("latin-1")
        _check_accepted(text, (produced(handler), *handler.opt.get("produces", ())))


def allowed(app: Litestar, path: str) -> list[str]:
    """Return the methods of the resource or the action at a path, without HEAD and OPTIONS."""
    handlers: dict[str, BaseRouteHandler] = {}
    for method in METHODS:
        try:
            handlers[method] = app.asgi_router.handle_routing(path=normalize_path(path), method=method)[1]
        except (MethodNotAllowedException, NotFoundException):
            continue
    path_suffix = max((suffix_of(handler, path) for handler in handlers.values()), key=len, default="")
    return [method for method, handler in handlers.items() if path_suffix in suffixes(handler)]


def suffixes(handler: BaseRouteHandler) -> Mapping[str, Mapping[str, str]]:
    """Return the suffixes of a route's paths, each with what its operation has in place of that of the route. Only
    actions have suffixes that are not empty."""
    declared: Mapping[str, Mapping[str, str]] = handler.opt.get("suffixes", _NO_ACTION)
    return declared


def suffix_of(handler: BaseRouteHandler, path: str) -> str:
    """Return the suffix of a route with which a path ends; empty if there is none."""
    return next((suffix for suffix in suffixes(handler) if path.endswith(suffix)), "")


def with_head(allowed: Iterable[str]) -> str:
    """Return the `Allow` header for these methods and those that every path has, sorted."""
    methods = {*allowed, "OPTIONS"}
    return ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


def has_content(handler: BaseRouteHandler) -> bool:
    """Return whether a successful answer has a body, and thus a media type."""
    return not isinstance(handler, HTTPRouteHandler) or handler.status_code != HTTP_204_NO_CONTENT


def produced(handler: BaseRouteHandler) -> str:
    """Return the media type of a route's answer. `opt["produces"]` holds further media types."""
    kind = handler.media_type if isinstance(handler, HTTPRouteHandler) else None
    return str(kind.value if isinstance(kind, Enum) else kind) if kind else JSON


def _parameters_of(app: Litestar, handler: BaseRouteHandler) -> dict[str, _Parameter]:
    """Return the sorted names of a route's query parameters, and what each may be."""
    if _QUERIES not in app.state:
        app.state[_QUERIES] = {
            route_handler.fn: {
                field.field_alias: _Parameter(
                    field.is_sequence,
                    route_handler.parsed_fn_signature.parameters[field.field_name].has_inner_subclass_of(str),
                )
                for field in sorted(model.expected_query_params, key=lambda field: field.field_alias)
            }
            for route in app.routes
            if isinstance(route, HTTPRoute)
            for route_handler, model in route.route_handler_map.values()
        }
    parameters: dict[str, _Parameter] = app.state[_QUERIES].get(handler.fn, {})
    return parameters


def _check_query(query: bytes, parameters: Mapping[str, _Parameter]) -> None:
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except ValueError:  # includes UnicodeDecodeError
        raise Malformed("the query is not UTF-8") from None
    sent_names = [name for name, _ in pairs]
    expected = f"expected one of {', '.join(parameters)}" if parameters else "expected none here"
    faults = [
        FieldError(name[:64], f"unknown; {expected}") for name in dict.fromkeys(sent_names) if name not in parameters
    ]
    faults += [
        FieldError(name, "expected once")
        for name, parameter in parameters.items()
        if not parameter.repeatable and sent_names.count(name) > 1
    ]
    # The decoder takes `null` for no value, wherever a text cannot be.
    faults += [
        FieldError(name, "expected a value, or no parameter, got null")
        for name, value in pairs
        if value.lower() == "null" and name in parameters and not parameters[name].is_text
    ]
    if faults:
        raise Invalid(f"{faults[0].path}: {faults[0].message}", faults[:20])


def _check_accepted(accepted: str, kinds: tuple[str, ...]) -> None:
    """Raise NotAcceptable if the Accept header admits none of the media types of the route's answer."""
    if accepted.strip() and not any(_admits(accepted, produces) for produces in kinds):
        raise NotAcceptable(f"expected an Accept header that accepts {' or '.join(kinds)}, got {accepted[:80]!r}")


def preferred(accepted: str, offered: tuple[str, ...]) -> str:
    """Return which of the offered values an Accept or Accept-Encoding header names with the highest quality; the first
    if it names none. Wildcards are ignored, because they request no particular value."""
    best, chosen = 0.0, offered[0]
    for part in accepted.lower().split(","):
        media_type, *parameters = (piece.strip() for piece in part.split(";"))
        quality = _quality(parameters)
        if media_type in offered and quality > best:
            best, chosen = quality, media_type
    return chosen


def _quality(parameters: list[str]) -> float:
    """Return the value of `q`: 1 without one, 0 if it is not a number."""
    quality = next(
        (value for name, _, value in (parameter.partition("=") for parameter in parameters) if name == "q"), "1"
    )
    return float(quality) if _QVALUE.fullmatch(quality) else 0.0


def _admits(accepted: str, produces: str) -> bool:
    """Return whether an Accept header admits a media type. The most specific matching range decides (RFC 9110
    §12.5.1)."""
    best, admitted = -1, False
    for part in accepted.split(","):
        coding, *parameters = (piece.strip().lower() for piece in part.split(";"))
        ranges = ("*/*", produces.partition("/")[0] + "/*", produces)
        if coding in ranges and ranges.index(coding) > best:
            best = ranges.index(coding)
            admitted = not any(_is_zero(parameter) for parameter in parameters)
    return admitted


def _is_zero(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    return name.strip() == "q" and value.strip().rstrip("0") in ("", ".", "0.")
