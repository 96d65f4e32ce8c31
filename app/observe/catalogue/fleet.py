"""Nodes and their engines, pushes, and actions on cached blocks."""

from typing import Any

from app.observe.catalogue.plane_event import PlaneEvent
from dataplane.protocol.tiers import MEMORY

# ---- nodes


class NodeEnrolled(PlaneEvent, tag="node.enrolled"):
    """A node of another machine became part of the fleet."""

    join_token: str


class NodeMoved(PlaneEvent, tag="node.moved"):
    """The addresses of an enrolled node changed."""

    control_url: str
    """Address at which the node accepts connections of managers."""
    events_url: str
    """Address at which the node publishes its events."""


class NodeForgotten(PlaneEvent, tag="node.forgotten"):
    """A node was removed from the fleet."""

    severity = "warning"

    lost_s: float | None = None
    """Seconds for which it was lost, if it was removed for that (`app.retire_nodes_after_s`); null if an operator
    removed it."""


class NodeJoined(PlaneEvent, tag="node.joined"):
    """A node connected."""

    epoch: str
    pid: int
    release: str
    """Release of the data plane."""


class NodeLost(PlaneEvent, tag="node.lost"):
    """A node was silent for `app.node_lost_s`."""

    severity = "error"


class NodeConditionStarted(PlaneEvent, tag="node.condition_started"):
    """A node crashes again and again, evicts blocks unread, or refuses blocks of a tenant at its limit."""

    severity = "warning"

    type: str
    """`crash_loop`, `thrashing` or `tenant_at_limit`."""
    message: str
    """The figures that show the condition, as a sentence."""


class NodeConditionEnded(PlaneEvent, tag="node.condition_ended"):
    """A condition of a node has not been found for a minute."""

    type: str
    """`crash_loop`, `thrashing` or `tenant_at_limit`."""
    seconds: float
    """Duration of the condition."""


class NodeDrifted(PlaneEvent, tag="node.drifted"):
    """A node reports a different snapshot from the one that it acknowledged; Larder pushes again."""

    severity = "warning"

    type: str
    generation: int


class NodeClockSkewed(PlaneEvent, tag="node.clock_skewed"):
    """The clock of a node differs from the manager's by more than 5 s."""

    severity = "warning"

    ahead_s: float
    """Seconds by which the node's clock is ahead; negative if it is behind."""


class NodeClockCorrected(PlaneEvent, tag="node.clock_corrected"):
    """The clock of a node agrees with the manager's again."""

    ahead_s: float
    """Seconds by which the node's clock is ahead; negative if it is behind."""


class NodeRelabeled(PlaneEvent, tag="node.relabeled"):
    """An operator changed the labels of a node."""

    labels: dict[str, str]
    """Labels that operators set on the node."""


class NodeDrainRequested(PlaneEvent, tag="node.drain_requested"):
    """An operator asked a node to drain."""

    severity = "warning"


class NodeUndrainRequested(PlaneEvent, tag="node.undrain_requested"):
    """An operator asked a node to stop draining."""


class NodeDrainStarted(PlaneEvent, tag="node.drain_started"):
    """A node drains: it accepts no new engines and stores no new blocks."""

    severity = "warning"


class NodeDrainEnded(PlaneEvent, tag="node.drain_ended"):
    """A node accepts engines and stores again."""


class NodeResizeRequested(PlaneEvent, tag="node.resize_requested"):
    """An operator asked a node for a larger pool."""

    pool_bytes: int


class NodeResizeCancelled(PlaneEvent, tag="node.resize_cancelled"):
    """An operator withdrew the requested pool size. The pool keeps its size."""


class NodeResizeRefused(PlaneEvent, tag="node.resize_refused"):
    """A node refused the requested pool size."""

    severity = "warning"

    pool_bytes: int
    reason: str


class EngineExpelRequested(PlaneEvent, tag="engine.expel_requested"):
    """An operator asked a node to expel an engine."""

    severity = "warning"

    client: int
    force: bool
    """Expel the engine although it may still be alive."""
    kill: bool
    """Kill the engine's processes."""


class EngineReadmitRequested(PlaneEvent, tag="engine.readmit_requested"):
    """An operator asked a node to let an expelled engine attach again."""

    client: int


# ---- pushes


class PushSent(PlaneEvent, tag="push.sent"):
    """A manager sent a snapshot to a node."""

    stored = False

    type: str
    generation: int
    reason: str


class PushAcked(PlaneEvent, tag="push.acked"):
    """A node applied a snapshot."""

    stored = False

    type: str
    generation: int
    reason: str


class PushNacked(PlaneEvent, tag="push.nacked"):
    """A node refused a snapshot and reported the faults."""

    severity = "error"

    type: str
    generation: int
    reason: str
    faults: list[dict[str, Any]]
    """Faults, each with the path of the field, a code and a message."""


class PushTimedOut(PlaneEvent, tag="push.timed_out"):
    """A node did not answer a snapshot in time."""

    severity = "warning"

    type: str
    generation: int
    reason: str
    faults: list[dict[str, Any]]
    """Description of the failure, as a fault without a path."""


class PushRefused(PlaneEvent, tag="push.refused"):
    """A node did not understand a snapshot."""

    severity = "error"

    type: str
    generation: int
    reason: str
    faults: list[dict[str, Any]]
    """Answer of the node, as a fault without a path."""


# ---- actions on cached blocks


class SweepRequested(PlaneEvent, tag="sweep.requested"):
    """An operator asked nodes to invalidate, demote or clear blocks. Fields that are null do not limit the scope."""

    severity = "warning"

    kind: str
    scope: str
    """Description of the scope."""
    nodes: list[str]
    """Names of the nodes that the request goes to."""
    tenant: str | None = None
    model: str | None = None
    space: str | None = None
    """Identity of the space."""
    key_count: int = 0
    """Number of keys in the scope; 0: all."""


class VerificationRequested(PlaneEvent, tag="verification.requested"):
    """An operator asked nodes to verify blocks against their checksums."""

    scope: str
    """Description of the scope."""
    nodes: list[str]
    """Names of the nodes that the request goes to."""
    tenant: str | None = None
    model: str | None = None
    space: str | None = None
    """Identity of the space."""
    key_count: int = 0
    """Number of keys in the scope; 0: all."""


class MoveRequested(PlaneEvent, tag="move.requested"):
    """An operator asked nodes to move blocks between memory and tiers, or to encode the blocks of a tier again."""

    scope: str
    """Description of the scope."""
    nodes: list[str]
    """Names of the nodes that the request goes to."""
    tier: str
    """Name of the tier, or `memory`."""
    release: bool
    """Whether copied blocks are removed from memory, or from the tier `source`."""
    compress: bool
    """Whether the blocks stay in the tier and are encoded again, instead of being moved."""
    tenant: str | None = None
    model: str | None = None
    space: str | None = None
    """Identity of the space."""
    key_count: int = 0
    """Number of keys in the scope; 0: all."""
    source: str = MEMORY
    """Name of the tier to copy from, or `memory`."""


class MoveCancelled(PlaneEvent, tag="move.cancelled"):
    """An operator asked a node to cancel a move. `move.ended` of the node follows when its copies under way have
    ended."""

    move: int
    """Number of the move on its node."""
    tier: str
    """Name of the tier that blocks are moved to, or `memory`."""
    tenant: str | None = None
    """Tenant whose blocks are moved; null for all tenants."""


class SessionActionRequested(PlaneEvent, tag="session.action_requested"):
    """An operator asked nodes to release, retain or prefetch the blocks of a session."""

    action: str
    """`release`, `retain` or `prefetch`."""
    session: str
    """Name of the session."""
    tenant: str
    nodes: list[str]
    """Names of the nodes that the request goes to."""
    seconds: float
    """How long a retention lasts, or a prefetch waits; 0 for a release."""
