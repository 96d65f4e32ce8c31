"""How far a record got: accepted here, applied on every living node."""

from typing import Literal

import msgspec

NodeStateName = Literal["joining", "in_sync", "behind", "nacked", "lost"]


class NodeProgress(msgspec.Struct, frozen=True):
    """One node and the type of the record."""

    observed_generation: int | None
    """Null when the node has applied nothing of this database."""
    state: NodeStateName


class RecordStatus(msgspec.Struct, frozen=True):
    accepted: Literal[True]
    applied: bool
    """Every living node has applied the record's generation, and there is one."""
    nodes: dict[str, NodeProgress]
