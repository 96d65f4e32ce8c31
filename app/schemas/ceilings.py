"""Ceilings: how far callers that are limited to a tenant may go with its quota and its pins."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dataplane.protocol.control import Strength

_Size = Annotated[int | str | None, Meta(description="Bytes, or text such as `4GiB`; null: no ceiling.")]


class CeilingPut(msgspec.Struct, forbid_unknown_fields=True):
    """What is left out has no ceiling. A quota's field that means unbounded is above every ceiling."""

    max_limit_bytes: _Size = None
    max_floor_bytes: _Size = None
    max_weight: Annotated[float | None, Meta(description="0.01 to 1,000; null: no ceiling.")] = None
    max_pin_budget_bytes: _Size = None
    max_store_rate_bytes: _Size = None
    max_ttl_s: Annotated[
        float | None, Meta(description="Pins must end within this time; null: they may stay for ever.")
    ] = None
    strengths: Annotated[
        list[Strength] | None, Meta(description="Of pins that may be made; null: `soft` and `guaranteed`.")
    ] = None
    note: Annotated[str, Meta(description="For people; at most 1,024 characters.")] = ""


class CeilingAnswer(msgspec.Struct, frozen=True):
    tenant: str
    max_limit_bytes: int | None
    max_floor_bytes: int | None
    max_weight: float | None
    max_pin_budget_bytes: int | None
    max_store_rate_bytes: int | None
    max_ttl_s: float | None
    strengths: list[Strength] | None
    note: str
    etag: str
    """For `If-Match`."""
    revision: int
    created_at: float
    updated_at: float


class CeilingList(msgspec.Struct, frozen=True):
    items: list[CeilingAnswer]
    total: int
    next_cursor: str
    """For the next page; empty on the last."""
