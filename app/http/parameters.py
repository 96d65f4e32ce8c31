"""Parameters in paths and queries that several resources share."""

import re
from collections.abc import Iterable
from typing import Annotated, Any

from litestar.params import PathParameter, QueryParameter

from app.errors import Invalid
from app.schemas.base import fields
from app.services.records.progress import MAX_WAIT_S


def in_query(description: str, pattern: str = r"[^\x00]*", **options: Any) -> Any:
    """Return the declaration of a text in the query that matches the pattern as a whole, which the handler's service
    checks; `options` are options of Litestar, such as lengths, which Litestar checks."""
    return QueryParameter(description=description, schema_extra={"pattern": fields.whole(pattern)}, **options)


def in_path(pattern: str = r"[^\x00]+") -> Any:
    """Return the declaration of a text in the path, as `in_query`."""
    return PathParameter(schema_extra={"pattern": fields.whole(pattern)})


def sort_by(field_names: Iterable[str]) -> Any:
    """Return the declaration of a list's order by one of these fields."""
    orders = ["", *(sign + name for name in field_names for sign in ("", "-"))]
    return QueryParameter(
        description="Field to sort by; prefix it with `-` for descending order.", schema_extra={"enum": orders}
    )


def at_seconds(description: str) -> Any:
    """Return the declaration of a time in Unix seconds."""
    return QueryParameter(ge=0, le=1e11, schema_extra={"minimum": 0, "maximum": 1e11}, description=description)


def moment_in_query(name: str, description: str, number: str) -> Any:
    """Return the declaration of a time: a number of this pattern, RFC 3339, or empty."""
    forms = [{"pattern": fields.whole(f"|{number}")}, {"format": "date-time", "pattern": "^(19[7-9]|[2-9])"}]
    return QueryParameter(name=name, max_length=64, description=description, schema_extra={"anyOf": forms})


RecordName = Annotated[str, in_path(fields.NAME)]
TierRecordName = Annotated[str, in_path(fields.TIER_NAME)]
TenantName = Annotated[str, in_path(fields.SALT)]
NewTenantName = Annotated[str, in_path(fields.NEW_TENANT)]
NodeName = Annotated[str, in_path()]
Ident = Annotated[str, in_path()]
Key = Annotated[str, in_path(fields.KEY)]
_LARGEST = (1 << 62) - 1
Number = Annotated[int, PathParameter(ge=0, le=_LARGEST, schema_extra={"minimum": 0, "maximum": _LARGEST})]
Client = Annotated[int, PathParameter(ge=1, le=_LARGEST, schema_extra={"minimum": 1, "maximum": _LARGEST})]
OfTenant = Annotated[str | None, in_query("Only this tenant, as shown.", fields.SALT)]
OfModel = Annotated[
    str | None, in_query("Only this model.", fields.TEXT, min_length=1, max_length=fields.MAX_MODEL_CHARACTERS)
]
OfNode = Annotated[str | None, in_query("Only this node.", max_length=128)]
OfOwner = Annotated[str | None, in_query("Only records of this owner.", fields.OWNER)]
Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="Maximum number of items.")]
Cursor = Annotated[
    str, in_query("`next_cursor` of the previous page; empty for the first page.", "[A-Za-z0-9_-]{0,2048}")
]
DryRun = Annotated[
    bool, QueryParameter(description="Check the change and return the record as it would be; store nothing.")
]


def duration(max_seconds: float) -> str:
    """Return the pattern of no time, or one from 0 to `max_seconds` seconds, which is 3 with zeros."""
    digits, fraction = len(f"{max_seconds:g}") - 1, r"(\.[0-9]{1,6})?"
    seconds = rf"([0-2]?[0-9]{{1,{digits}}}{fraction}|{max_seconds:g}(\.0{{1,6}})?)s?"
    return rf"|{seconds}|([0-2]?[0-9]{{1,{digits + 3}}}{fraction}|{max_seconds:g}000(\.0{{1,6}})?)ms"


Wait = Annotated[
    str,
    in_query(
        "Wait until the nodes have acknowledged the change, for at most this long (`2s`, `500ms`; at most 30 s).",
        duration(MAX_WAIT_S),
    ),
]
_PARTS = re.compile(r"([0-9.]+)(ms|s)?")


def wait_seconds(text: str, max_seconds: float = MAX_WAIT_S) -> float:
    """Return the seconds of `"2s"`, `"500ms"` or `"2"`; 0 for an empty text. Raises Invalid."""
    if not text:
        return 0.0
    parts = _PARTS.fullmatch(text)
    if parts is None or re.fullmatch(duration(max_seconds), text) is None:
        raise Invalid.at(
            "wait", f"expected a time from 0s to {max_seconds:g}s such as '2s' or '500ms', got {text[:20]!r}"
        )
    return float(parts[1]) / (1000 if parts[2] == "ms" else 1)
