"""Status of a record: accepted by the management plane, applied on every living node that it selects, and effective."""

from typing import Literal

import msgspec

NodeStateName = Literal["joining", "in_sync", "behind", "nacked", "lost"]
ConditionType = Literal["Accepted", "Applied", "Effective"]
ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(msgspec.Struct, frozen=True):
    """One condition of a record: true, false or unknown."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    """One machine-readable word: `Applied`, `Waiting`, `Refused`, `NodeLost`, `NoNode`, `OverLimit`, …"""
    message: str
    """Human-readable explanation."""
    since: float
    """Unix seconds since which the status holds."""


class NodeProgress(msgspec.Struct, frozen=True):
    """Progress of one node with the record's type."""

    observed_generation: int | None
    """Newest applied generation; null if the node has applied nothing from this database."""
    state: NodeStateName
    conditions: list[Condition] = []
    """Conditions `Applied` and `Effective` on this node."""


class RecordStatus(msgspec.Struct, frozen=True):
    accepted: Literal[True]
    applied: bool
    """Whether every living node that the record selects has applied its generation; false if there is no such node."""
    nodes: dict[str, NodeProgress]
    """Progress by node, for the nodes that the record selects."""
    conditions: list[Condition] = []
    """Conditions `Accepted`, `Applied` and `Effective` over all these nodes; lost nodes do not count."""
