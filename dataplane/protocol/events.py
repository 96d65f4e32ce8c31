"""Facts that happen in a data plane: one typed struct for each event name.

On the wire: ZeroMQ PUB, three frames: topic (the event's tag), sequence number (u64 little-endian, from 1, without
holes), MessagePack of the struct. A hole in the numbers means that events were lost: ask for a `Describe`.
Times are Unix seconds of the node. Sizes are bytes. Tenants are shown names (`_default` for the empty salt).
"""

import msgspec

from dataplane.protocol.spaces import LMCACHE_SCHEDULERS

# ---- state that is published whole, so that a late subscriber is right after one message


class PoolStats(msgspec.Struct):
    """Where the pool's bytes are. used = ready + reserved + quarantined."""

    capacity_bytes: int = 0
    used_bytes: int = 0
    ready_bytes: int = 0
    reserved_bytes: int = 0
    quarantined_bytes: int = 0
    pinned_bytes: int = 0
    pin_budget_bytes: int = 0
    committed_bytes: int = 0
    """Memory given to segments; the rest of the capacity is not yet taken from the machine."""
    padding_bytes: int = 0
    """Internal fragmentation: bytes of slots beyond their blocks' size."""
    segments: int = 0
    blocks: int = 0
    max_blocks: int = 0
    prefaulted_bytes: int = 0
    """Memory whose pages were taken from the machine ahead of use, for segments and for those to come."""
    free_slot_bytes: int = 0
    """External fragmentation: free slots and slabs inside committed segments."""
    huge_pages: bool = False
    locked: bool = False
    """Memory is locked into RAM."""


class Totals(msgspec.Struct):
    """Counters since the process started."""

    requested_blocks: int = 0
    hit_blocks: int = 0
    bytes_in: int = 0
    """Bytes of committed blocks."""
    bytes_out: int = 0
    """Bytes of blocks that engines acquired."""
    stored_blocks: int = 0
    evicted_blocks: int = 0
    evicted_bytes: int = 0
    put_back_blocks: int = 0
    """Evictions called off because a lease counter was up."""
    refused_blocks: int = 0
    aborted_blocks: int = 0
    quarantined_blocks: int = 0
    invalidated_blocks: int = 0
    corrupt_blocks: int = 0
    """Blocks whose bytes did not match their checksum; dropped."""
    false_reports: int = 0
    """Reports of corrupt blocks that were found whole."""
    malformed_messages: int = 0
    ring_dropped: int = 0
    ring_invalid: int = 0
    """Entries of access rings that named no block, no known kind, or another incarnation."""
    events_dropped: int = 0


class TenantStats(msgspec.Struct):
    tenant: str
    bytes: int = 0
    blocks: int = 0
    limit_bytes: int | None = None
    over_limit: bool = False
    managed: bool = False
    """A quota record exists."""
    floor_bytes: int = 0
    effective_floor_bytes: int = 0
    """What is really guaranteed: less than `floor_bytes` while the pool cannot hold the sum of all floors."""
    weight: float = 1.0
    pin_budget_bytes: int | None = None
    pinned_bytes: int = 0
    store_rate_bytes: int | None = None
    on_exceed: str = "evict_self"
    mode: str = "enforce"
    would_refuse_blocks: int = 0
    """In `observe`: blocks that would have been refused."""
    refused: dict[str, int] = {}
    """Refused blocks by code name."""
    requested_blocks: int = 0
    hit_blocks: int = 0
    stored_blocks: int = 0
    evicted_blocks: int = 0
    refused_blocks: int = 0


class PinStats(msgspec.Struct):
    name: str
    resolved: int
    """Blocks that the pin names: its keys times the attached spaces of its model (its keys when there is none)."""
    resident: int
    bytes: int
    guaranteed: int
    """Resident blocks that are inside the pin budgets and will not be evicted."""
    expired: bool = False
    strength: str = "guaranteed"
    degraded: int = 0
    """Resident blocks that the budgets have no room for: kept as under a soft pin."""
    expires_at: float | None = None
    """As hits have moved it."""
    tier: str = "host"
    replicas: int = 0
    """Copies of its blocks that lie in GPUs' memory now, of all GPUs together."""
    replica_bytes: int = 0


class ReplicaPoolStats(msgspec.Struct):
    """The pool of replicas on one GPU, from when the first engine asked for it."""

    device: str
    """UUID."""
    name: str
    """Of the model of GPU."""
    capacity_bytes: int
    used_bytes: int
    """Of the GPU's memory, in whole extents."""
    replicas: int
    """That engines may read."""
    replica_bytes: int
    wanted: int
    """Blocks in the node's pool that pins want here, and that engines here could read."""
    copying: int
    leaving_bytes: int = 0
    """Withdrawn, but still in use by an engine."""
    readers: int = 0
    """Engines that have mapped it."""
    copied_blocks: int = 0
    copied_bytes: int = 0
    evicted_blocks: int = 0
    """Replicas that made way for others, or whose pin ended."""
    read_blocks: int = 0
    """Blocks that the data plane itself copied to engines from here. Engines' own reads are not counted."""
    failed_copies: int = 0
    problem: str = ""
    """Why it is smaller than its capacity, or of no use; empty when all is well."""


class PolicyStats(msgspec.Struct):
    """The eviction policy in force."""

    algorithm: str = "lru"
    admission: bool = False
    admission_idle_s: float = 240.0
    gate_closed: bool = False
    """Admission is asking for a second sighting now."""
    victim_idle_s: float | None = None
    """Moving average of how long victims had been idle; None before the first."""
    admitted_blocks: int = 0
    """Blocks let in while the gate was closed."""
    declined_blocks: int = 0
    high_watermark: float = 1.0
    low_watermark: float = 1.0


class SpaceStats(msgspec.Struct):
    """What is cached of one space."""

    space: str
    """Identity, 32 hex digits."""
    model: str
    revision: str
    dtype: str
    world_size: int
    rank: int
    block_bytes: int
    blocks: int
    bytes: int
    padding_bytes: int
    segments: int
    gateway: str = ""
    """The gateway whose engines use it."""


class SweepStats(msgspec.Struct):
    """An invalidation or demotion that is still being swept."""

    sweep: int
    kind: str
    """`invalidate` or `demote`."""
    blocks: int
    """So far."""
    leased: int
    """Invalidated blocks that wait for the end of a lease."""


class EngineStats(msgspec.Struct):
    client: int
    pid: int
    group: str
    engine: str
    attached_at: float
    spaces: list[str]
    """Models of its spaces; at most 8 names, cut to 64 characters."""
    connected: bool
    reserved_bytes: int = 0
    quarantined_bytes: int = 0
    ring_dropped: int = 0
    ring_invalid: int = 0
    leased_blocks: int = 0
    """Blocks that it holds, by its own counters."""
    alive: bool = True
    """Its process is not proven gone."""
    waits_for_pids: list[int] = []
    """After its connection closed: processes that must be gone before its bytes come back; at most 8."""

    @property
    def is_engine(self) -> bool:
        """False for what a gateway has for itself."""
        return bool(self.pid) or self.group != LMCACHE_SCHEDULERS


class GatewayOperation(msgspec.Struct):
    """One operation of a gateway's wire, since the process started."""

    operation: str
    """`unknown` stands for all that the node does not know."""
    requests: int
    failures: dict[str, int]
    """By reason."""
    seconds: float
    """In which the node worked on it, or a copy ran."""
    buckets: list[int]
    """Requests by how long they took: each up to its bound in `GatewayStats.bounds_s`, the last one beyond."""


class GatewayInstance(msgspec.Struct):
    """One worker that is registered with a gateway."""

    instance: int
    """As the worker calls itself."""
    client: int
    """Its engine's number."""
    pid: int
    """0 when it is not known."""
    model: str
    world_size: int
    layout: str
    dtype: str
    chunk_bytes: int
    copies: bool
    """This node copies for it; false: it copies by itself."""
    silent_s: float
    """Since it was heard last."""
    attached: bool = True
    """False while its connection is gone, or it has been silent for long."""


class GatewayStats(msgspec.Struct):
    """A gateway as it is: engines that speak another protocol."""

    gateway: str
    """`lmcache`."""
    url: str
    """Where it listens."""
    memory_name: str
    """Of its shared memory, without a slash."""
    memory_bytes: int
    chunk_tokens: int
    connections: int
    lookups: int
    """That hold something, or whose result nobody took yet."""
    lookups_ended: dict[str, int]
    """Look-ups that ended without their scheduler: `expired`, `crowded_out`, `disconnected`."""
    instances: list[GatewayInstance]
    """At most 256."""
    operations: list[GatewayOperation]
    bounds_s: list[float]
    unanswered: int
    """Answers that their peer was not there to take."""
    bytes_in: int = 0
    """Of chunks that clients stored."""
    bytes_out: int = 0
    """Of chunks that clients read."""
    chunks_in: int = 0
    chunks_out: int = 0
    requested_chunks: int = 0
    """That look-ups asked for."""
    hit_chunks: int = 0
    """That they found, in every rank's space."""


class ObservedDigest(msgspec.Struct):
    generation: int
    digest: str
    store: str


class NodeStats(msgspec.Struct, tag_field="event", tag="node.stats"):
    """The node as it is; published every half second, and the answer to `Describe`."""

    at: float
    node: str
    epoch: str
    uptime_s: float
    armed: bool
    """A quotas snapshot is in force."""
    pool: PoolStats
    totals: Totals
    refused: dict[str, int]
    """Refused blocks by code name."""
    tenants: list[TenantStats]
    """Largest first, at most 1,000; the rest is summed up in `other_tenants`."""
    other_tenants: TenantStats | None
    pins: list[PinStats]
    engines: list[EngineStats]
    observed: dict[str, ObservedDigest]
    """Heartbeat: what is applied, by snapshot type; a digest that differs from the desired one is drift."""
    policy: PolicyStats = msgspec.field(default_factory=PolicyStats)
    spaces: list[SpaceStats] = []
    """Largest first, at most 1,000."""
    sweeps: list[SweepStats] = []
    adopted_blocks: int = 0
    """Blocks taken over from the data plane process before this one."""
    draining: bool = False
    """It takes no new engines and stores nothing more."""
    lets_in: list[str] = []
    """Public keys (Z85) of the management planes that may connect; empty on a node's own sockets."""
    gateway: GatewayStats | None = None
    """None: there is none, or it is off."""
    replica_pools: list[ReplicaPoolStats] = []
    """One for each GPU whose engines asked for replicas."""


# ---- things that happened


class NodeStarted(msgspec.Struct, tag_field="event", tag="node.started"):
    at: float
    node: str
    epoch: str
    pid: int
    capacity_bytes: int


class NodeStopping(msgspec.Struct, tag_field="event", tag="node.stopping"):
    at: float


class EngineAttached(msgspec.Struct, tag_field="event", tag="engine.attached"):
    at: float
    client: int
    pid: int
    group: str
    engine: str
    spaces: list[str]


class EngineDetached(msgspec.Struct, tag_field="event", tag="engine.detached"):
    """The socket closed. Its leases and open writes stay charged until its processes are proven gone."""

    at: float
    client: int
    pid: int
    group: str
    reason: str
    quarantined_blocks: int


class EngineGone(msgspec.Struct, tag_field="event", tag="engine.gone"):
    """Every process of the engine's group is proven gone; nothing of it is left."""

    at: float
    client: int
    pid: int
    group: str
    released_blocks: int
    released_bytes: int


class EngineRefused(msgspec.Struct, tag_field="event", tag="engine.refused"):
    at: float
    pid: int
    uid: int
    code: str
    message: str


class BlocksStored(msgspec.Struct, tag_field="event", tag="blocks.stored"):
    at: float
    client: int
    space: str
    tenant: str
    blocks: int
    bytes: int


class BlocksEvicted(msgspec.Struct, tag_field="event", tag="blocks.evicted"):
    at: float
    tenant: str
    reason: str
    """`room`, `limit`, `index`, `watermark`, `invalidated` or `corrupt`."""
    blocks: int
    bytes: int


class BlocksRefused(msgspec.Struct, tag_field="event", tag="blocks.refused"):
    at: float
    client: int
    tenant: str
    code: str
    blocks: int
    bytes: int


class ReservationAborted(msgspec.Struct, tag_field="event", tag="reservation.aborted"):
    at: float
    client: int
    tenant: str
    blocks: int
    bytes: int


class ReservationExpired(msgspec.Struct, tag_field="event", tag="reservation.expired"):
    at: float
    client: int
    pid: int
    group: str
    blocks: int
    bytes: int


class SegmentCreated(msgspec.Struct, tag_field="event", tag="segment.created"):
    at: float
    segment: int
    space: str
    bytes: int


class SegmentRetired(msgspec.Struct, tag_field="event", tag="segment.retired"):
    at: float
    segment: int
    space: str
    bytes: int


class MemoryAdopted(msgspec.Struct, tag_field="event", tag="memory.adopted"):
    """A restarted data plane goes on with the memory of the one before."""

    at: float
    blocks: int
    bytes: int
    quarantined_blocks: int
    engines: int
    seconds: float


class BlockCorrupt(msgspec.Struct, tag_field="event", tag="block.corrupt"):
    """A block's bytes do not match its checksum: it was dropped."""

    at: float
    tenant: str
    space: str
    bytes: int
    client: int
    """Who found it; 0 for the data plane."""


class SweepDone(msgspec.Struct, tag_field="event", tag="sweep.done"):
    at: float
    sweep: int
    kind: str
    blocks: int


class VerifyDone(msgspec.Struct, tag_field="event", tag="verify.done"):
    """A verification came to its end."""

    at: float
    verification: int
    checked: int
    corrupt: int
    without_checksum: int


class AdmissionChanged(msgspec.Struct, tag_field="event", tag="admission.changed"):
    """The admission gate closed (asks for a second sighting) or opened."""

    at: float
    closed: bool
    victim_idle_s: float


class PoolResized(msgspec.Struct, tag_field="event", tag="pool.resized"):
    at: float
    capacity_bytes: int


class SnapshotApplied(msgspec.Struct, tag_field="event", tag="snapshot.applied"):
    at: float
    type: str
    generation: int
    digest: str
    traceparent: str = ""


class SnapshotRefused(msgspec.Struct, tag_field="event", tag="snapshot.refused"):
    at: float
    type: str
    generation: int
    faults: int


class PinDegraded(msgspec.Struct, tag_field="event", tag="pin.degraded"):
    """Blocks of a pin are resident beyond the pin budget: they are kept like any other block."""

    at: float
    name: str
    blocks: int


class PinExpired(msgspec.Struct, tag_field="event", tag="pin.expired"):
    at: float
    name: str


class ReplicaPoolMade(msgspec.Struct, tag_field="event", tag="replica_pool.made"):
    """The first engine of a GPU asked for replicas."""

    at: float
    device: str
    name: str
    capacity_bytes: int


class ReplicaPoolFailed(msgspec.Struct, tag_field="event", tag="replica_pool.failed"):
    """A GPU refused memory or a copy. The blocks are served from the node's pool, as without replicas."""

    at: float
    device: str
    problem: str


Event = (
    NodeStats
    | NodeStarted
    | NodeStopping
    | EngineAttached
    | EngineDetached
    | EngineGone
    | EngineRefused
    | BlocksStored
    | BlocksEvicted
    | BlocksRefused
    | ReservationAborted
    | ReservationExpired
    | SegmentCreated
    | SegmentRetired
    | MemoryAdopted
    | BlockCorrupt
    | SweepDone
    | VerifyDone
    | AdmissionChanged
    | PoolResized
    | SnapshotApplied
    | SnapshotRefused
    | PinDegraded
    | PinExpired
    | ReplicaPoolMade
    | ReplicaPoolFailed
)


def name_of(event: Event) -> str:
    """The event's name, which is also its topic."""
    tag = event.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
