"""Ceilings: bounds for changes that callers limited to a tenant make to its quota and pins."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from app.schemas.base.fields import Size, TtlS, Weight
from app.schemas.base.listing import Page
from app.schemas.base.records import Note
from dataplane.protocol.control.records import Strength

NoBound = Literal[
    "max_limit_bytes", "max_floor_bytes", "max_weight", "max_pin_budget_bytes", "max_store_rate_bytes", "max_ttl_s"
]
_LEFT_OUT = "without one, the value may not be raised, unless `no_bound` names the field"
_Size = Annotated[Size | None, Meta(description=f"Bytes, or text such as `4GiB`; {_LEFT_OUT}.")]


class CeilingPut(msgspec.Struct, forbid_unknown_fields=True):
    """The ceiling of a tenant. If a field is omitted, the tenant's own operators may lower the value in the quota but
    not raise it. A quota field that means "unbounded" exceeds every ceiling."""

    max_limit_bytes: _Size = None
    max_floor_bytes: _Size = None
    max_weight: Annotated[Weight | None, Meta(description=f"0.01 to 1,000; {_LEFT_OUT}.")] = None
    max_pin_budget_bytes: _Size = None
    max_store_rate_bytes: _Size = None
    max_ttl_s: TtlS | None = None
    """Longest time to live of a pin in seconds, by default without a limit."""
    strengths: list[Strength] | None = None
    """Strengths that pins may have, by default `soft` and `guaranteed`."""
    no_bound: list[NoBound] = []
    """Fields without any bound; `max_ttl_s` is always one of them if it is null."""
    note: Note = ""


class CeilingAnswer(msgspec.Struct, frozen=True):
    tenant: str
    max_limit_bytes: int | None
    max_floor_bytes: int | None
    max_weight: float | None
    max_pin_budget_bytes: int | None
    max_store_rate_bytes: int | None
    max_ttl_s: float | None
    strengths: list[Strength] | None
    no_bound: list[NoBound]
    """The null fields that have no bound; other null fields may not be raised."""
    note: str
    """Empty for callers that are limited to tenants."""
    etag: str
    """ETag for `If-Match`."""
    revision: int
    created_at: float
    updated_at: float


class CeilingList(Page, frozen=True):
    items: list[CeilingAnswer]
