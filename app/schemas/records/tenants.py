"""Tenants: what nodes report about them, and their records."""

from typing import Annotated

import msgspec
from msgspec import Meta

from app.schemas.base.fields import Size
from app.schemas.base.listing import Page
from app.schemas.base.records import Note
from dataplane.protocol.control.records import TierQuota


class TenantAnswer(msgspec.Struct, frozen=True):
    """A tenant: its statistics and its quota, if it has one. Counts and bytes are sums over nodes."""

    tenant: str
    bytes: int
    blocks: int
    limit_bytes: int | None
    floor_bytes: int
    effective_floor_bytes: int | None
    """Floor that is guaranteed on every node; null if no node has reported."""
    weight: float
    pin_budget_bytes: int | None
    pinned_bytes: int
    lookup_bytes: int
    """Bytes of blocks that look-ups of LMCache clients hold until their retrieve."""
    pins: int
    """Pin records of this tenant."""
    store_rate_bytes: int | None
    on_exceed: str
    mode: str
    tiers: dict[str, TierQuota]
    """Floors and limits of the quota in tiers behind memory, by the name of the tier."""
    would_refuse_blocks: int
    over_limit: bool
    limit_share: float | None
    """Largest share of its limit that it holds on a node; null without a limit."""
    managed: bool
    """Whether a quota record exists."""
    requested_blocks: int
    hit_blocks: int
    hit_ratio: float | None
    """Share of requested blocks that were hits since the nodes started; null if nothing was requested."""
    stored_blocks: int
    evicted_blocks: int
    refused_blocks: int
    refused: dict[str, int]
    """Refused blocks by code name."""
    missed_tokens: dict[str, int]
    """Tokens of requests to vLLM, and of LMCache's clients, that were computed although a cache could have had them, by
    why the first of each request was missing: a reason of `GET /api/v1/requests`, or `other`."""
    note: str


class TenantList(Page, frozen=True):
    items: list[TenantAnswer]


class AdoptPost(msgspec.Struct, forbid_unknown_fields=True):
    """The new quota of an adopted tenant. It has no limit, so no block of the tenant is evicted because of it."""

    floor_bytes: Annotated[Size, Meta(examples=[0])] = 0
    """Bytes that no other tenant's store may evict: an integer, or text such as `1GiB`."""
    note: Note = ""
