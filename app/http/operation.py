"""Declarations of routes, which the description of the API shows as operations."""

from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

from litestar import post, put
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec

from app.http.middleware.turns import in_turn
from app.http.problems import MEDIA_TYPE
from app.schemas.base.problems import Problem

_PROBLEM = ResponseSpec(Problem, generate_examples=False, media_type=MEDIA_TYPE)
"""Makes Litestar describe `Problem`; `app.http.description` lists the problems of each route."""


def operation(
    method: type[HTTPRouteHandler],
    path: str,
    *refusals: str,
    role: str,
    scoped: bool = False,
    answers: Mapping[int, ResponseSpec] | None = None,
    opt: Mapping[str, Any] | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Declare a route. The function has the name of its operation, its docstring is the summary.

    `refusals` are the codes of its problems beside those of every route, and of every one with a body. A caller needs
    at least `role`; one that is limited to tenants may ask if it is `scoped`. `answers` are further ones than that of
    success, `options` those of Litestar. A PUT may create its record, a POST answers with 200, and a list with a limit
    is read in turn.
    """

    def declare(handler: Callable[..., Any]) -> HTTPRouteHandler:
        types = get_type_hints(handler)
        metadata: dict[str, Any] = {**(opt or {}), "role": role, "scoped": scoped, "problems": refusals}
        if "data" in types:
            metadata["body"] = types["data"]
        responses = {500: _PROBLEM, **(answers or {})}
        if method is put:
            (record,) = get_args(types["return"])
            responses[201] = ResponseSpec(record, generate_examples=False, description="The record was created.")
        if method is post:
            options.setdefault("status_code", 200)
        if "limit" in types:
            options["middleware"] = [in_turn]
        return method(
            path,
            operation_id=_camel_case(handler.__name__),
            summary=" ".join((handler.__doc__ or "").split()).removesuffix("."),
            opt=metadata,
            responses=responses,
            **options,
        )(handler)

    return declare


def _camel_case(name: str) -> str:
    first, *words = name.split("_")
    return first + "".join(map(str.capitalize, words))
