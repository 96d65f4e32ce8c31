"""A node as a whole: greeting, description, size, draining, and processes that it expels."""

import msgspec

from dataplane.protocol.bounded import Identity, Text, Whole
from dataplane.protocol.message_bases import ReplyOfNode, RequestToNode
from dataplane.protocol.observed import Observed
from dataplane.protocol.stats.node import NodeStats


class Hello(msgspec.Struct, tag_field="op", tag="hello", forbid_unknown_fields=True):
    version: int
    manager: str


class DescribeNode(RequestToNode, tag="describe"):
    """Ask for the node's full current state; used after a gap in the events."""

    audit: bool = False
    """Also cross-check the node's internal tables; takes milliseconds per 10,000 blocks."""


class Resize(RequestToNode, tag="resize"):
    """Grow the pool. Answered with `Resized`; refused if the pool would shrink or the machine has too little memory."""

    capacity_bytes: int


class Drain(RequestToNode, tag="drain"):
    """Start or stop draining: a draining node accepts no new engines and stores no new blocks, also after a restart.
    Answered with `NodeDrained`."""

    on: bool


class Expel(RequestToNode, tag="expel"):
    """Drop the leases of an engine's process, in all its attachments, and bar the process from attaching until a
    request with `on` false. Refused while the process holds blocks, unless `force` or `kill` is set. Answered with
    `Expelled`."""

    client: int
    """`EngineStats.client` of one of the process's attachments."""
    on: bool = True
    """False: let the process attach again. Its old attachments stay expelled."""
    force: bool = False
    """Expel it even while it, or a process of its engine group, may be reading under its leases."""
    kill: bool = False
    """End the process with SIGKILL. Without `force`, its leases count until its engine group is proven gone."""


class Welcome(msgspec.Struct, tag_field="op", tag="welcome"):
    version: int
    node: Identity
    """Stable name of the node, kept in its state directory."""
    epoch: Identity
    """New at every start of the process, 16 hex digits."""
    pid: Whole
    release: Identity
    engine_socket: Text
    events_url: Text
    capacity_bytes: Whole
    observed: dict[str, Observed]
    labels: dict[str, str] = {}
    """Labels that the node reports for its machine."""
    snapshot_types: tuple[str, ...] = ("quotas", "pins", "policies")
    """Types of snapshots that the node understands; others must not be sent. Older nodes do not send the field."""


class Description(ReplyOfNode, tag="description"):
    seq: int
    """Sequence number of the last event that this state includes."""
    stats: NodeStats
    observed: dict[str, Observed]
    faults: list[str] = msgspec.field(default_factory=list)
    """Contradictions that an audit found; empty if there are none."""


class Resized(ReplyOfNode, tag="resized"):
    capacity_bytes: Whole


class NodeDrained(ReplyOfNode, tag="drained"):
    on: bool


class Expelled(ReplyOfNode, tag="expelled"):
    """The result of `Expel`."""

    pid: int
    """0 if the process is in another pid namespace."""
    clients: list[int]
    """Client numbers of the process's attachments."""
    leased_blocks: int
    """Blocks that the attachments held at that moment. If `dropped`, these leases no longer protect the blocks."""
    dropped: bool
    """The leases of these attachments no longer count."""
    killed: bool
    """SIGKILL was sent."""
    quarantined_bytes: int
    """Bytes of blocks that the attachments were writing, held back until the processes in `waits_for_pids` are gone."""
    waits_for_pids: list[int]
    """Live processes of their engine groups, at most 8."""
