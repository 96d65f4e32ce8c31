"""Responses that the routes of all record types share."""

from typing import Any, Protocol, TypeVar

import msgspec
from litestar import Response
from litestar.openapi.datastructures import ResponseSpec

from app.http.problems import declared

PRECONDITIONS = ("malformed", "invalid", "precondition-failed", "precondition-required")
"""Codes of a DELETE."""
WRITES = (*PRECONDITIONS, "conflict", "unsupported-media-type", "too-large")
"""Codes of a PUT or PATCH."""


class Tagged(Protocol):
    """A record with its ETag."""

    @property
    def etag(self) -> str: ...


A = TypeVar("A", bound=Tagged)


def with_etag(answer: A, *, created: bool = False) -> Response[A]:
    return Response(answer, status_code=201 if created else 200, headers={"ETag": answer.etag})


def declared_put(answer: type[msgspec.Struct], *codes: str) -> dict[int, Any]:
    """Return the OpenAPI declarations of a PUT that answers with this record, or with problems of `codes`."""
    created = ResponseSpec(answer, generate_examples=False, description="The record was created.")
    return {201: created, **declared(*(codes or WRITES))}
