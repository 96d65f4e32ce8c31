"""Policies: how a node chooses eviction victims."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from app.schemas.base.records import ManagedBy, Note, Selector
from app.schemas.base.status import RecordStatus
from dataplane.protocol.control import Algorithm
from dataplane.protocol.events import PolicyStats


class PolicyPut(msgspec.Struct, forbid_unknown_fields=True):
    """A complete policy record; omitted fields get their defaults. At least one field of the policy is required."""

    algorithm: Annotated[
        Algorithm | msgspec.UnsetType, Meta(description="In which order blocks go; `lru` when left out.")
    ] = msgspec.UNSET
    admission: Annotated[
        bool | msgspec.UnsetType,
        Meta(
            description="Under pressure, admit a block only when its key was seen before; false when left out."
        ),
    ] = msgspec.UNSET
    admission_idle_s: Annotated[
        float | msgspec.UnsetType,
        Meta(
            description="Pressure: victims were idle for less than this; 1 to 86,400. 240 when left out.",
            examples=[60],
        ),
    ] = msgspec.UNSET
    high_watermark: Annotated[
        float | msgspec.UnsetType,
        Meta(
            description="Above this share of the pool, evict ahead of need; 0.5 to 1. 1 (only at need) when left out.",
            examples=[0.9],
        ),
    ] = msgspec.UNSET
    low_watermark: Annotated[
        float | msgspec.UnsetType,
        Meta(description="Down to this share; 0.5 to the high watermark. 1 when left out.", examples=[0.8]),
    ] = msgspec.UNSET
    note: Note = ""
    managed_by: ManagedBy = ""
    selector: Selector = None
    """Required for every policy except `default`."""
    priority: Annotated[
        int,
        Meta(
            description="Of several that match a node, the highest is in force; 0 to 1,000, of `default` 0.",
            examples=[10],
        ),
    ] = 0


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


class PolicyList(msgspec.Struct, frozen=True):
    items: list[PolicyAnswer]
    total: int
    """Items on all pages."""
    next_cursor: str
    """`cursor` of the next page; empty on the last."""
    in_force: dict[str, PolicyStats]
    """Policy in force, by node; without lost nodes. Not empty even if there is no record."""


@dataclass(frozen=True)
class PolicyFilters:
    """Filters; None matches everything."""

    algorithm: str | None = None
    managed_by: str | None = None
