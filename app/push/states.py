"""States of a push, and states of a node.

    SENT ──need bodies──► FILLING
      │ ack                 │ ack           either: nack ─► NACKED, no answer ─► TIMED_OUT,
      ▼                     ▼                       not understood ─► REFUSED
    ACKED ◄─────────────────┘

A node's state is not stored: it is derived from the wanted snapshots and the node's reports.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum

from app.ingest.fleet import FleetNode
from app.push.plan import DesiredSnapshot, holds
from dataplane.protocol.control.snapshots import SnapshotType


class PushState(IntEnum):
    SENT = 1
    FILLING = 2
    ACKED = 3
    NACKED = 4
    TIMED_OUT = 5
    REFUSED = 6


class PushEvent(IntEnum):
    NEED_BODIES = 1
    ACK = 2
    NACK = 3
    TIMEOUT = 4
    REFUSE = 5


TRANSITIONS: dict[tuple[PushState, PushEvent], PushState] = {
    (PushState.SENT, PushEvent.NEED_BODIES): PushState.FILLING,
    (PushState.SENT, PushEvent.ACK): PushState.ACKED,
    (PushState.SENT, PushEvent.NACK): PushState.NACKED,
    (PushState.SENT, PushEvent.TIMEOUT): PushState.TIMED_OUT,
    (PushState.SENT, PushEvent.REFUSE): PushState.REFUSED,
    (PushState.FILLING, PushEvent.ACK): PushState.ACKED,
    (PushState.FILLING, PushEvent.NACK): PushState.NACKED,
    (PushState.FILLING, PushEvent.TIMEOUT): PushState.TIMED_OUT,
    (PushState.FILLING, PushEvent.REFUSE): PushState.REFUSED,
}


class IllegalPushTransition(Exception):
    """An answer that is impossible in this state, such as a second request for bodies."""


def advance(state: PushState, event: PushEvent) -> PushState:
    """Return the next state. Raise IllegalPushTransition."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalPushTransition(f"{event.name} in state {state.name}") from None


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
