"""The whole state that an agent beside a node, or a controller elsewhere, works from."""

from typing import Any, Generic, TypeVar

import msgspec

from dataplane.protocol.control import SnapshotType

T = TypeVar("T")


class QuotaRecord(msgspec.Struct, frozen=True):
    """A quota as it is recorded."""

    tenant: str
    limit_bytes: int | None
    floor_bytes: int
    weight: float
    pin_budget_bytes: int | None
    store_rate_bytes: int | None
    on_exceed: str
    mode: str
    note: str
    managed_by: str
    selector: dict[str, str] | None
    generation: int
    """The generation of its type that last changed the record; its ETag is this number in quotes."""


class PinRecord(msgspec.Struct, frozen=True):
    """A pin as it is recorded; its keys are named by digest."""

    name: str
    model: str
    tenant: str
    strength: str
    tier: str
    key_count: int
    keys_digest: str
    expires_at: float | None
    """As it was put; hits may have moved it."""
    refresh_s: float | None
    note: str
    managed_by: str
    selector: dict[str, str] | None
    generation: int


class PolicyRecord(msgspec.Struct, frozen=True):
    """A policy as it is recorded."""

    name: str
    algorithm: str
    admission: bool
    admission_idle_s: float
    high_watermark: float
    low_watermark: float
    note: str
    managed_by: str
    selector: dict[str, str] | None
    priority: int
    generation: int


class Records(msgspec.Struct, Generic[T], frozen=True):
    """All records of a type."""

    generation: int
    """The newest generation of the type."""
    digest: str
    """SHA-256 of `items` exactly as they stand in the answer."""
    items: list[T]


class NodeRecord(msgspec.Struct, frozen=True):
    """A node, and what it has applied."""

    name: str
    state: str
    epoch: str
    observed: dict[str, int]
    """Generation by type."""


class Snapshot(msgspec.Struct, frozen=True):
    index: int
    """For `index=` of the next question: grows whenever anything of this changes."""
    quotas: Records[QuotaRecord]
    pins: Records[PinRecord]
    policies: Records[PolicyRecord]
    nodes: list[NodeRecord]


RECORDS: dict[SnapshotType, type[Any]] = {"quotas": QuotaRecord, "pins": PinRecord, "policies": PolicyRecord}
