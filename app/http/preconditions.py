"""The headers `ETag` of a record, and `If-Match` and `If-None-Match` of requests that change it."""

import re
from typing import Annotated, Protocol, TypeVar

from litestar import Response
from litestar.params import HeaderParameter

from app.errors import Malformed
from app.schemas.base.fields import whole
from app.services.base.preconditions import MAX_TAGS, Precondition

_ETAG = r'(W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_ETAGS = rf"{_ETAG}(\s*,\s*{_ETAG}){{0,{MAX_TAGS - 1}}}"
IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        description="The record's ETag (several, separated by commas), or `*` for any state of it. Needed to change a "
        "record that is there.",
        schema_extra={"pattern": whole(rf"\*|{_ETAGS}")},
    ),
]
IfNoneMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-None-Match", description="`*`: only if the record does not exist yet.", schema_extra={"enum": ["*"]}
    ),
]
PRECONDITIONS = ("malformed", "invalid", "precondition-failed", "precondition-required")
"""Codes of a change of a record."""


class Tagged(Protocol):
    """A record with its ETag."""

    @property
    def etag(self) -> str: ...


A = TypeVar("A", bound=Tagged)


def with_etag(answer: A, *, created: bool = False) -> Response[A]:
    return Response(answer, status_code=201 if created else 200, headers={"ETag": answer.etag})


def expected(if_match: str | None, if_none_match: str | None = None) -> Precondition:
    """Return the precondition that the headers state. Raises Malformed."""
    if if_none_match is not None and if_none_match.strip() != "*":
        raise _malformed("If-None-Match", "expected *", if_none_match)
    absent = if_none_match is not None
    if if_match is None:
        return Precondition(absent=absent)
    if if_match.strip() == "*":
        return Precondition(exists=True, absent=absent)
    return Precondition(tags=_tags(if_match), absent=absent)


def _tags(text: str) -> frozenset[str]:
    if re.fullmatch(_ETAGS, text.strip()) is None:
        raise _malformed("If-Match", 'expected an ETag such as "7", several separated by commas, or *', text)
    return frozenset(tag[0] for tag in re.finditer(_ETAG, text))


def _malformed(name: str, expected: str, actual: str) -> Malformed:
    return Malformed.at(name, f"{expected}, got {actual[:40]!r}")
