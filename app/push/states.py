"""How a push ended, and the states of a node.

A node's state is not stored: it is derived from the wanted snapshots and the node's reports.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from app.ingest.fleet import FleetNode
from app.push.plan import DesiredSnapshot, holds
from dataplane.protocol.control.snapshots import SnapshotType


class PushState(StrEnum):
    ACKED = "acked"
    NACKED = "nacked"
    TIMED_OUT = "timed_out"
    """The node did not answer in time."""
    REFUSED = "refused"
    """The node did not understand the snapshot, or answered with something else."""


class NodeState(StrEnum):
    JOINING = "joining"
    """Known, but has not yet answered a hello of this manager."""
    IN_SYNC = "in_sync"
    """Has applied the wanted generation of every requested type."""
    BEHIND = "behind"
    NACKED = "nacked"
    """Refused the wanted generation and keeps an older one in force."""
    LOST = "lost"
    """Silent for too long."""


def node_state(
    node: FleetNode, desired: Mapping[SnapshotType, DesiredSnapshot], kinds: Iterable[SnapshotType]
) -> NodeState:
    """Return the state of a node with respect to `kinds`."""
    if node.lost:
        return NodeState.LOST
    if not node.welcomed:
        return NodeState.JOINING
    states = [_type_state(node, kind, desired.get(kind)) for kind in kinds]
    return next((state for state in (NodeState.NACKED, NodeState.BEHIND) if state in states), NodeState.IN_SYNC)


def _type_state(node: FleetNode, kind: SnapshotType, desired: DesiredSnapshot | None) -> NodeState:
    if desired is None:
        return NodeState.BEHIND
    if holds(desired, node.observed.get(kind)):
        return NodeState.IN_SYNC
    refusal = node.refused.get(kind)
    if refusal is not None and refusal.generation == desired.generation:
        return NodeState.NACKED
    return NodeState.BEHIND
