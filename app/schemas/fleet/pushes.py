"""Pushes: record snapshots sent to nodes, and the answers."""

from typing import Literal

import msgspec

PushStateName = Literal["acked", "nacked", "timed_out", "refused"]
PushReason = Literal["joined", "change", "drift", "retry"]
TypeName = Literal["quotas", "pins", "policies", "tiers"]


class PushFault(msgspec.Struct, frozen=True):
    path: str
    """e.g. `quotas[3].limit_bytes`."""
    code: str
    message: str


class PushAnswer(msgspec.Struct, frozen=True):
    id: int
    type: TypeName
    node: str
    generation: int
    digest: str
    state: PushStateName
    reason: PushReason
    attempt: int
    size_bytes: int
    bodies: int
    """Pin bodies that the node requested."""
    sent_at: float
    answered_at: float | None
    applied_s: float | None
    """Seconds that the node took to validate and apply the push."""
    faults: list[PushFault]


class PushList(msgspec.Struct, frozen=True):
    items: list[PushAnswer]
    total: int
