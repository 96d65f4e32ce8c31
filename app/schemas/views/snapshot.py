"""The complete state, for agents on nodes and for external controllers."""

from typing import Any, Generic, TypeVar

import msgspec

from dataplane.protocol.control import SnapshotType

T = TypeVar("T")


class QuotaRecord(msgspec.Struct, frozen=True):
    """A quota record."""

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
    """A pin record, with the digest of its keys instead of the keys."""

    name: str
    model: str
    tenant: str
    strength: str
    tier: str
    key_count: int
    keys_digest: str
    expires_at: float | None
    """End as it was set; hits may have moved it since."""
    refresh_s: float | None
    note: str
    managed_by: str
    selector: dict[str, str] | None
    generation: int


class PolicyRecord(msgspec.Struct, frozen=True):
    """A policy record."""

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
    """SHA-256 of the bytes of `items` in the answer."""
    items: list[T]


class NodeRecord(msgspec.Struct, frozen=True):
    """A node and the generations that it has applied."""

    name: str
    state: str
    epoch: str
    observed: dict[str, int]
    """Applied generation by type."""


class SnapshotAnswer(msgspec.Struct, frozen=True):
    index: int
    """Value for `index=` of the next request; it grows with every change of the snapshot."""
    quotas: Records[QuotaRecord]
    pins: Records[PinRecord]
    policies: Records[PolicyRecord]
    nodes: list[NodeRecord]


RECORDS: dict[SnapshotType, type[Any]] = {"quotas": QuotaRecord, "pins": PinRecord, "policies": PolicyRecord}
