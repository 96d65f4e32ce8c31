"""The complete state, for agents on nodes and for external controllers."""

from typing import Any, Generic, TypeVar

import msgspec

from app.schemas.records.pins import PinRecord
from app.schemas.records.policies import PolicyRecord
from app.schemas.records.quotas import QuotaRecord
from app.schemas.records.tiers import TierRecord
from dataplane.protocol.control.snapshots import SnapshotType

T = TypeVar("T")


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
    tiers: Records[TierRecord]
    nodes: list[NodeRecord]


RECORDS: dict[SnapshotType, type[Any]] = {
    "quotas": QuotaRecord,
    "pins": PinRecord,
    "policies": PolicyRecord,
    "tiers": TierRecord,
}
