"""How far a record got: accepted here, applied on every living node that it is for, and whether it has its effect."""

from typing import Literal

import msgspec

NodeStateName = Literal["joining", "in_sync", "behind", "nacked", "lost"]
ConditionType = Literal["Accepted", "Applied", "Effective"]
ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(msgspec.Struct, frozen=True):
    """One thing that is true of a record, or not, or not known."""

    type: ConditionType
    status: ConditionStatus
    reason: str
    """One word, for machines: `Applied`, `Waiting`, `Refused`, `NodeLost`, `NoNode`, `OverLimit`, …"""
    message: str
    """For people."""
    since: float
    """Unix seconds from which it is so."""


class NodeProgress(msgspec.Struct, frozen=True):
    """One node and the type of the record."""

    observed_generation: int | None
    """Null when the node has applied nothing of this database."""
    state: NodeStateName
    conditions: list[Condition] = []
    """`Applied` and `Effective` on this node."""


class RecordStatus(msgspec.Struct, frozen=True):
    accepted: Literal[True]
    applied: bool
    """Every living node that the record is for has applied its generation, and there is one."""
    nodes: dict[str, NodeProgress]
    """Nodes that the record is for."""
    conditions: list[Condition] = []
    """`Accepted`, `Applied` and `Effective` over all of them; lost nodes do not count."""
