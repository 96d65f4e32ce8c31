"""Quotas: a tenant's share of every node's pool."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from app.schemas.base.fields import Size, SizeText, TierName, Weight, bounds
from app.schemas.base.listing import Page
from app.schemas.base.records import ManagedBy, Note, Selector
from app.schemas.base.status import RecordStatus
from dataplane.base.units import MAX_SIZE_BYTES
from dataplane.protocol.control.records import MAX_QUOTA_TIERS, Mode, OnExceed, QuotaSpec, TierQuota


class TierQuotaPut(msgspec.Struct, forbid_unknown_fields=True):
    """Share of a tenant in one tier behind memory."""

    floor_bytes: Size = 0
    """Bytes of the tier that no other tenant's blocks may take; at most the limit."""
    limit_bytes: Size | None = None
    """Most bytes that the tenant may hold in the tier of each node; null for no limit."""


class QuotaPut(msgspec.Struct, forbid_unknown_fields=True):
    """A complete quota record; omitted fields get their defaults. At least one field of the share is required. Sizes
    are bytes, or text such as `4GiB`."""

    limit_bytes: Annotated[Size | msgspec.UnsetType | None, Meta(examples=["4GiB"])] = msgspec.UNSET
    """Most bytes that the tenant may hold; null for no limit."""
    floor_bytes: Annotated[Size | msgspec.UnsetType, Meta(examples=["256MiB"])] = msgspec.UNSET
    """Bytes that no other tenant's store may evict; at most the limit, defaults to 0."""
    weight: Annotated[Weight | msgspec.UnsetType, Meta(examples=[2])] = msgspec.UNSET
    """Weight against other tenants in the use of borrowed bytes: 0.01 to 1,000, defaults to 1."""
    pin_budget_bytes: Annotated[Size | msgspec.UnsetType | None, Meta(examples=["128MiB"])] = msgspec.UNSET
    """Bytes that guaranteed pins may hold: at most the floor, if there is one, and at most the limit; null for no
    budget other than the pool's."""
    store_rate_bytes: Annotated[
        Annotated[int, bounds(minimum=1, maximum=MAX_SIZE_BYTES)] | SizeText | msgspec.UnsetType | None,
        Meta(examples=["1MiB"]),
    ] = msgspec.UNSET
    """Bytes per second that the tenant may store, at least 1; null for no limit."""
    on_exceed: OnExceed | msgspec.UnsetType = msgspec.UNSET
    """At the limit: evict the tenant's own blocks (the default), or refuse the store."""
    mode: Mode | msgspec.UnsetType = msgspec.UNSET
    """`enforce` (the default), or `observe`: nothing is enforced, and stores that would be refused are counted."""
    tiers: Annotated[
        Annotated[dict[TierName, TierQuotaPut], bounds(maxProperties=MAX_QUOTA_TIERS)] | msgspec.UnsetType,
        Meta(examples=[{"disk": {"floor_bytes": "10GiB", "limit_bytes": "100GiB"}}]),
    ] = msgspec.UNSET
    """Floors and limits in tiers behind memory, by the name of the tier, at most 8; defaults to none. `weight`,
    `on_exceed` and `mode` apply there, too."""
    note: Note = ""
    managed_by: ManagedBy = ""
    selector: Selector = None

    AT_LEAST_ONE: ClassVar = QuotaSpec.__struct_fields__[1:]


class QuotaRecord(msgspec.Struct, frozen=True):
    """A quota record. Each field is a column of the table."""

    tenant: str
    limit_bytes: int | None
    floor_bytes: int
    weight: float
    pin_budget_bytes: int | None
    store_rate_bytes: int | None
    on_exceed: OnExceed
    mode: Mode
    tiers: dict[str, TierQuota]
    """Floors and limits in tiers behind memory, by the name of the tier; fields at their default are omitted."""
    note: str
    managed_by: str
    selector: dict[str, str] | None
    """Labels of the nodes that the record selects; null for all nodes."""
    generation: int
    """The generation of `quotas` that last changed this record; its ETag is this number in quotes."""


class QuotaAnswer(QuotaRecord, frozen=True):
    """A quota record and the state of its tenant on the nodes. Counts and bytes are sums over nodes."""

    etag: str
    """ETag for `If-Match`."""
    created_at: float
    updated_at: float
    used_bytes: int
    blocks: int
    pinned_bytes: int
    effective_floor_bytes: int | None
    """Floor that is guaranteed on every node: the minimum over nodes; null if no node has reported."""
    over_limit: bool
    would_refuse_blocks: int
    """Blocks that `enforce` would have refused while the mode was `observe`."""
    refused_blocks: int
    refused: dict[str, int]
    """Refused blocks by code name."""
    status: RecordStatus


class QuotaList(Page, frozen=True):
    items: list[QuotaAnswer]
