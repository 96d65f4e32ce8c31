"""Policies: how a node chooses eviction victims."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from app.schemas.base.fields import bounds
from app.schemas.base.listing import Page
from app.schemas.base.records import ManagedBy, Note, Selector
from app.schemas.base.status import RecordStatus
from dataplane.protocol.control.records import Algorithm, PolicySpec
from dataplane.protocol.stats.pool import PolicyStats

MIN_IDLE_S, MAX_IDLE_S = 1.0, 86_400.0
MIN_WATERMARK = 0.5
MAX_PRIORITY = 1000
Watermark = Annotated[float, bounds(minimum=MIN_WATERMARK, maximum=1)]


class PolicyPut(msgspec.Struct, forbid_unknown_fields=True):
    """A complete policy record; omitted fields get their defaults. At least one field of the policy is required."""

    algorithm: Algorithm | msgspec.UnsetType = msgspec.UNSET
    """Order in which blocks are evicted; defaults to `lru`."""
    admission: bool | msgspec.UnsetType = msgspec.UNSET
    """Under pressure, admit a block only if its key was seen before; defaults to false."""
    admission_idle_s: Annotated[
        Annotated[float, bounds(minimum=MIN_IDLE_S, maximum=MAX_IDLE_S)] | msgspec.UnsetType, Meta(examples=[60])
    ] = msgspec.UNSET
    """The pool is under pressure while victims were idle for less than this many seconds; 1 to 86,400, defaults to
    240."""
    high_watermark: Annotated[Watermark | msgspec.UnsetType, Meta(examples=[0.9])] = msgspec.UNSET
    """Share of the pool above which blocks are evicted ahead of need; 0.5 to 1, defaults to 1 (evict only when
    needed)."""
    low_watermark: Annotated[Watermark | msgspec.UnsetType, Meta(examples=[0.8])] = msgspec.UNSET
    """Share of the pool at which eviction ahead of need stops; 0.5 to the high watermark, defaults to 1."""
    note: Note = ""
    managed_by: ManagedBy = ""
    selector: Selector = None  # required for every policy except `default`
    priority: Annotated[int, bounds(minimum=0, maximum=MAX_PRIORITY), Meta(examples=[10])] = 0
    """Of several policies that match a node, the one with the highest priority is in force; 0 to 1,000, and 0 for
    `default`."""

    AT_LEAST_ONE: ClassVar = PolicySpec.__struct_fields__[1:]


class PolicyRecord(msgspec.Struct, frozen=True):
    """A policy record. Each field is a column of the table."""

    name: str
    algorithm: Algorithm
    admission: bool
    admission_idle_s: float
    high_watermark: float
    low_watermark: float
    note: str
    managed_by: str
    selector: dict[str, str] | None
    """Labels of the nodes that the policy selects; null for all nodes that no other policy selects."""
    priority: int
    generation: int
    """The generation of `policies` that last changed this record; its ETag is this number in quotes."""


class PolicyAnswer(PolicyRecord, frozen=True):
    """A policy record, and the policies that nodes report in force."""

    etag: str
    """ETag for `If-Match`."""
    created_at: float
    updated_at: float
    in_force: dict[str, PolicyStats]
    """Policy in force, by node; without lost nodes."""
    status: RecordStatus


class PolicyList(Page, frozen=True):
    items: list[PolicyAnswer]
    in_force: dict[str, PolicyStats]
    """Policy in force, by node; without lost nodes. Not empty even if there is no record."""
