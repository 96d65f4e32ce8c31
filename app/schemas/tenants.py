"""Tenants as they are: what nodes tell of them, and their records."""

from typing import Annotated

import msgspec
from msgspec import Meta


class TenantAnswer(msgspec.Struct, frozen=True):
    """A tenant over all nodes: its numbers, and its quota when it has one. Counts and bytes are sums over nodes."""

    tenant: str
    bytes: int
    blocks: int
    limit_bytes: int | None
    floor_bytes: int
    effective_floor_bytes: int | None
    """What is really guaranteed on every node; null when no node has told."""
    weight: float
    pin_budget_bytes: int | None
    pinned_bytes: int
    pins: int
    """Pin records of this tenant."""
    store_rate_bytes: int | None
    on_exceed: str
    mode: str
    would_refuse_blocks: int
    over_limit: bool
    managed: bool
    """A quota record exists."""
    requested_blocks: int
    hit_blocks: int
    hit_ratio: float | None
    """Hit of requested blocks, since the nodes started; null when nothing was requested."""
    stored_blocks: int
    evicted_blocks: int
    refused_blocks: int
    refused: dict[str, int]
    """Refused blocks by code name."""
    note: str


class TenantList(msgspec.Struct, frozen=True):
    items: list[TenantAnswer]
    total: int
    """Of all pages."""
    next_cursor: str
    """For the next page; empty on the last."""


class AdoptPost(msgspec.Struct, forbid_unknown_fields=True):
    """What the new quota guarantees; it has no cap, so nothing that the tenant keeps goes."""

    floor_bytes: Annotated[
        int | str,
        Meta(
            description="Bytes that no other tenant can take: an integer, or text such as `1GiB`.",
            examples=[0],
        ),
    ] = 0
    note: Annotated[str, Meta(description="For people; at most 1,024 characters.")] = ""
