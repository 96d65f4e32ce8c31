"""Events of a data plane: one typed struct for each event name.

On the wire: ZeroMQ PUB, three frames: topic (the event's tag), sequence number (u64 little-endian, from 1, without
gaps), MessagePack of the struct. A gap in the numbers means that events were lost: send a `DescribeNode`. Times are
Unix seconds of the node. Sizes are bytes. Tenants are shown names (`_default` for the empty salt).
"""

from dataplane.protocol.event import BlockEvent, NodeEvent
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.tiers import MEMORY

# ---- the process


class NodeStarted(NodeEvent, tag="node.started"):
    """A data plane started."""

    node: str
    epoch: str
    pid: int
    capacity_bytes: int


class NodeStopped(NodeEvent, tag="node.stopped"):
    """A data plane is shutting down."""

    severity = "warning"


class MemoryAdopted(NodeEvent, tag="memory.adopted"):
    """A restarted data plane adopted the memory of the previous one."""

    blocks: int
    bytes: int
    quarantined_blocks: int
    engines: int
    """Engines whose leases continue."""
    seconds: float
    """Duration in seconds."""


class CacheStartedCold(NodeEvent, tag="cache.started_cold"):
    """A data plane started with an empty cache although an earlier one had cached blocks."""

    severity = "warning"

    reason: str
    released: bool
    """The memory was released on purpose."""
    lost_blocks: int
    lost_bytes: int


class IdJournalNearlyFilled(NodeEvent, tag="id_journal.nearly_filled"):
    """The journal that a restart reads is nearly full of tenants with blocks. Once it is full, stores of further
    tenants are refused."""

    severity = "warning"

    bytes: int
    """Size of the records in the journal."""
    capacity_bytes: int
    """Size of the journal."""


# ---- engines


class EngineAttached(NodeEvent, tag="engine.attached"):
    """An engine attached."""

    client: int
    pid: int
    group: str
    engine: str
    spaces: list[str]
    """Models of its spaces."""


class EngineDetached(NodeEvent, tag="engine.detached"):
    """The engine's socket closed. Its leases and open writes stay charged until its processes are proven gone."""

    severity = "warning"

    client: int
    pid: int
    group: str
    reason: str
    quarantined_blocks: int


class EngineReleased(NodeEvent, tag="engine.released"):
    """Every process of the engine's group is proven gone; its leases and bytes are released."""

    client: int
    pid: int
    group: str
    released_blocks: int
    """Quarantined blocks that are free again."""
    released_bytes: int
    """Their size."""


class LeaseBroken(NodeEvent, tag="lease.broken"):
    """Leases ended that their holder had not released. Look-ups of the LMCache gateway are summed up each second."""

    severity = "warning"

    client: int
    reason: str
    """`process_gone`: every process of the engine's group is proven gone. Of look-ups of the LMCache gateway:
    `disconnected`, `expired`, `crowded_out` by newer ones, or `taken_back` because room was short."""
    blocks: int
    """Blocks that were held, counted once for each engine or look-up that held them."""


class EngineRefused(NodeEvent, tag="engine.refused"):
    """A process was not allowed to attach."""

    severity = "error"

    pid: int
    uid: int
    """User id of the process."""
    reason: str
    """Name of an error code."""
    message: str
    """The error message that the process received."""


class EngineExpelled(NodeEvent, tag="engine.expelled"):
    """An operator expelled a process: its leases no longer count, and it cannot attach. One event for each
    attachment."""

    severity = "warning"

    client: int
    pid: int
    group: str
    leased_blocks: int
    """Blocks that the process held at that moment, over all its attachments."""


class EngineReadmitted(NodeEvent, tag="engine.readmitted"):
    """An operator lets an expelled process attach again."""

    client: int
    pid: int
    group: str


class EngineKilled(NodeEvent, tag="engine.killed"):
    """The data plane sent SIGKILL to an engine's process at an operator's request."""

    severity = "warning"

    client: int
    pid: int
    group: str


# ---- blocks


class BlocksStored(BlockEvent, tag="blocks.stored"):
    """An engine stored blocks."""

    stored = False

    client: int
    space: str
    """Model of the space."""
    tenant: str
    blocks: int
    bytes: int
    events: int = 1


class BlocksEvicted(BlockEvent, tag="blocks.evicted"):
    """Blocks of a tenant were evicted or dropped."""

    stored = False

    tenant: str
    reason: str
    """`room`, `limit`, `index`, `watermark`, `invalidated`, `corrupt`, `hint` or `moved`."""
    blocks: int
    bytes: int
    events: int = 1


class BlocksRefused(BlockEvent, tag="blocks.refused"):
    """A data plane refused to store blocks of an engine."""

    severity = "error"

    client: int
    tenant: str
    reason: str
    """Name of an error code."""
    blocks: int
    bytes: int
    events: int = 1


class ReservationAborted(BlockEvent, tag="reservation.aborted"):
    """An engine gave up blocks that it had reserved."""

    severity = "warning"
    stored = False

    client: int
    tenant: str
    blocks: int
    bytes: int
    events: int = 1


class ReservationExpired(NodeEvent, tag="reservation.expired"):
    """The deadline of a reservation passed; none of its blocks was published."""

    severity = "warning"
    stored = False

    client: int
    pid: int
    group: str
    blocks: int
    bytes: int


class BlockCorrupted(NodeEvent, tag="block.corrupted"):
    """A block was dropped because its bytes do not match its checksum."""

    severity = "error"

    tenant: str
    space: str
    """Model of the space."""
    bytes: int
    client: int
    """Client number of the engine that found it; 0 for the data plane."""


class SweepEnded(NodeEvent, tag="sweep.ended"):
    """An invalidation or demotion has reached all its blocks."""

    sweep: int
    kind: str
    blocks: int


class VerificationEnded(NodeEvent, tag="verification.ended"):
    """A verification ended."""

    verification: int
    checked: int
    """Blocks that were read."""
    corrupt: int
    """Blocks that did not match their checksum."""
    without_checksum: int
    """Blocks that have no checksum."""


class MoveEnded(NodeEvent, tag="move.ended"):
    """A move of blocks between memory and tiers ended."""

    move: int
    """Number of the move on its node."""
    tier: str
    """Name of the tier that blocks were moved to, or `memory`."""
    moved: int
    """Blocks that were copied or loaded."""
    released: int
    """Blocks that were removed from memory, or from the tier `source`."""
    refused: int
    """Blocks that were not moved, or not removed from memory or from the tier `source`."""
    source: str = MEMORY
    """Name of the tier that blocks were copied from, or `memory`. It is `memory` for a move to memory, too."""
    cancelled: bool = False
    """Whether an operator cancelled it."""


class TierLost(NodeEvent, tag="tier.lost"):
    """A tier of a node is out of service, or could not be opened. Memory is served without it; it is tried again."""

    severity = "error"

    tier: str
    reason: str


class TierRecovered(NodeEvent, tag="tier.recovered"):
    """A tier of a node is in service again."""

    tier: str


# ---- the pool


class SegmentCreated(NodeEvent, tag="segment.created"):
    """A segment was added to the pool."""

    stored = False

    segment: int
    space: str
    bytes: int


class SegmentRetired(NodeEvent, tag="segment.retired"):
    """A segment was removed from the pool."""

    stored = False

    segment: int
    space: str
    bytes: int


class AdmissionChanged(NodeEvent, tag="admission.changed"):
    """The admission gate closed (a key must have been seen before) or opened."""

    stored = False

    closed: bool
    """The gate is now closed."""
    victim_idle_s: float
    """Moving average of the idle time of victims."""


class PoolResized(NodeEvent, tag="pool.resized"):
    """The pool was resized."""

    capacity_bytes: int


# ---- records


class SnapshotApplied(NodeEvent, tag="snapshot.applied"):
    """The node applied a snapshot."""

    stored = False

    type: str
    generation: int
    digest: str
    traceparent: str = ""
    """W3C trace context of the push."""


class SnapshotRefused(NodeEvent, tag="snapshot.refused"):
    """The node refused a snapshot as a whole. `push.nacked` has the faults."""

    severity = "error"
    stored = False

    type: str
    generation: int
    faults: int
    """Number of faults in the snapshot."""


class PinDegraded(NodeEvent, tag="pin.degraded"):
    """Resident blocks of a pin exceed the pin budget: they are kept like unpinned blocks."""

    severity = "warning"

    pin: str
    tenant: str
    blocks: int
    """Blocks beyond the budget."""


class PinExpired(NodeEvent, tag="pin.expired"):
    """A pin expired."""

    severity = "warning"

    pin: str
    tenant: str


# ---- GPU copies and gateways


class GpuCopyPoolCreated(NodeEvent, tag="gpu_copy_pool.created"):
    """The first engine on a GPU requested GPU copies."""

    device: str
    name: str
    """Name of the GPU's model."""
    capacity_bytes: int
    """Memory of the GPU that copies may use."""


class GpuCopyPoolFailed(NodeEvent, tag="gpu_copy_pool.failed"):
    """A GPU refused memory or a copy. Blocks are served from the node's pool, as without GPU copies."""

    severity = "warning"

    device: str
    reason: str


class GatewayNameLost(NodeEvent, tag="gateway.name_lost"):
    """New workers cannot map a gateway's memory, because its name was removed or refers to another file. Registered
    workers continue."""

    severity = "error"

    gateway: str
    reason: str


class GatewayNameRestored(NodeEvent, tag="gateway.name_restored"):
    """The name of a gateway's memory was restored; the contents are unchanged."""

    gateway: str


Event = (
    NodeStats
    | NodeStarted
    | NodeStopped
    | MemoryAdopted
    | CacheStartedCold
    | IdJournalNearlyFilled
    | EngineAttached
    | EngineDetached
    | EngineReleased
    | LeaseBroken
    | EngineRefused
    | EngineExpelled
    | EngineReadmitted
    | EngineKilled
    | BlocksStored
    | BlocksEvicted
    | BlocksRefused
    | ReservationAborted
    | ReservationExpired
    | BlockCorrupted
    | SweepEnded
    | VerificationEnded
    | MoveEnded
    | TierLost
    | TierRecovered
    | SegmentCreated
    | SegmentRetired
    | AdmissionChanged
    | PoolResized
    | SnapshotApplied
    | SnapshotRefused
    | PinDegraded
    | PinExpired
    | GpuCopyPoolCreated
    | GpuCopyPoolFailed
    | GatewayNameLost
    | GatewayNameRestored
)
