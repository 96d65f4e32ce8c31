"""Events of a data plane: one typed struct for each event name.

On the wire: ZeroMQ PUB, three frames: topic (the event's tag), sequence number (u64 little-endian, from 1, without
gaps), MessagePack of the struct. A gap in the numbers means that events were lost: send a `DescribeNode`. Times are
Unix seconds of the node. Sizes are bytes. Tenants are shown names (`_default` for the empty salt).
"""

from typing import Literal

import msgspec

from dataplane.protocol.spaces import LMCACHE_SCHEDULERS

# ---- state that is published whole, so that one message is enough for a late subscriber


class PoolStats(msgspec.Struct):
    """Use of the pool's bytes. used = ready + reserved + quarantined."""

    capacity_bytes: int = 0
    used_bytes: int = 0
    ready_bytes: int = 0
    reserved_bytes: int = 0
    quarantined_bytes: int = 0
    pinned_bytes: int = 0
    pin_budget_bytes: int = 0
    committed_bytes: int = 0
    """Memory of segments; the rest of the capacity is not yet allocated from the machine."""
    padding_bytes: int = 0
    """Internal fragmentation: bytes of slots beyond their blocks' size."""
    segments: int = 0
    blocks: int = 0
    max_blocks: int = 0
    prefaulted_bytes: int = 0
    """Memory whose pages were allocated ahead of use, for existing and future segments."""
    free_slot_bytes: int = 0
    """External fragmentation: free slots and slabs inside committed segments."""
    huge_pages: bool = False
    locked: bool = False
    """The memory is locked into RAM."""


class Totals(msgspec.Struct):
    """Counters since the process started."""

    requested_blocks: int = 0
    hit_blocks: int = 0
    stored_bytes: int = 0
    """Bytes of committed blocks."""
    read_bytes: int = 0
    """Bytes of blocks that engines acquired."""
    stored_blocks: int = 0
    evicted_blocks: int = 0
    evicted_bytes: int = 0
    evictions_cancelled: int = 0
    """Evictions cancelled because a lease counter was not zero."""
    refused_blocks: int = 0
    aborted_blocks: int = 0
    quarantined_blocks: int = 0
    invalidated_blocks: int = 0
    corrupt_blocks: int = 0
    """Blocks dropped because their bytes did not match their checksum."""
    false_reports: int = 0
    """Reports of corrupt blocks that verification found intact."""
    malformed_messages: int = 0
    ring_dropped: int = 0
    ring_entries_rejected: int = 0
    """Access ring entries that referenced no block, an unknown kind, or another incarnation."""
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
    """Floor in effect: less than `floor_bytes` while the pool cannot hold the sum of all floors."""
    weight: float = 1.0
    pin_budget_bytes: int | None = None
    pinned_bytes: int = 0
    store_rate_bytes: int | None = None
    on_exceed: str = "evict_self"
    mode: str = "enforce"
    would_refuse_blocks: int = 0
    """In mode `observe`: blocks that the limits would have refused."""
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
    """Blocks that the pin covers: its keys times the attached spaces of its model (or its keys if there is no such
    space)."""
    resident: int
    bytes: int
    guaranteed: int
    """Resident blocks within the pin budgets, which are not evicted."""
    expired: bool = False
    strength: str = "guaranteed"
    degraded: int = 0
    """Resident blocks beyond the budgets: kept as under a soft pin."""
    expires_at: float | None = None
    """Unix seconds, including extensions by hits."""
    tier: str = "host"
    gpu_copies: int = 0
    """Copies of its blocks that are now in GPU memory, over all GPUs."""
    gpu_copy_bytes: int = 0
    gpu_copies_wanted: int = 0
    """Copies that the pin would have without a memory limit: one of each resident block on each GPU whose engines read
    it."""


class GpuCopyPoolStats(msgspec.Struct):
    """Pool of GPU copies on one GPU; exists once an engine has asked for it."""

    device: str
    """UUID."""
    name: str
    """Name of the GPU model."""
    capacity_bytes: int
    used_bytes: int
    """Bytes of GPU memory, in whole extents."""
    gpu_copies: int
    """GPU copies that engines may read."""
    gpu_copy_bytes: int
    wanted: int
    """Blocks in the node's pool that pins want on this GPU and that its engines could read."""
    copying: int
    leaving_bytes: int = 0
    """Bytes of withdrawn GPU copies that an engine still uses."""
    readers: int = 0
    """Engines that have mapped the pool."""
    copied_blocks: int = 0
    copied_bytes: int = 0
    evicted_blocks: int = 0
    """GPU copies removed to make room for others or because their pin ended."""
    read_blocks: int = 0
    """Blocks that the data plane itself copied from here to engines. Reads by engines are not counted."""
    failed_copies: int = 0
    problem: str = ""
    """Reason why the pool is smaller than its capacity or unusable; empty if there is no problem."""


class PolicyStats(msgspec.Struct):
    """The eviction policy in force."""

    algorithm: str = "lru"
    admission: bool = False
    admission_idle_s: float = 240.0
    gate_closed: bool = False
    """The admission gate now requires that a key was seen before."""
    victim_idle_s: float | None = None
    """Moving average of the idle time of victims; None before the first."""
    admitted_blocks: int = 0
    """Blocks admitted while the gate was closed."""
    declined_blocks: int = 0
    high_watermark: float = 1.0
    low_watermark: float = 1.0


class SpaceStats(msgspec.Struct):
    """Cached contents of one space."""

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
    """Gateway whose engines use the space."""


class SweepStats(msgspec.Struct):
    """An invalidation or demotion whose sweep is in progress."""

    sweep: int
    kind: str
    """`invalidate` or `demote`."""
    blocks: int
    """Blocks swept so far."""
    leased: int
    """Invalidated blocks whose lease has not ended."""


class EngineStats(msgspec.Struct):
    client: int
    pid: int
    group: str
    engine: str
    attached_at: float
    spaces: list[str]
    """Models of the engine's spaces; at most 8 names, each cut to 64 characters."""
    connected: bool
    reserved_bytes: int = 0
    quarantined_bytes: int = 0
    ring_dropped: int = 0
    ring_entries_rejected: int = 0
    leased_blocks: int = 0
    """Blocks that the engine leases, by its own counters."""
    alive: bool = True
    """The process is not proven gone."""
    waits_for_pids: list[int] = []
    """After the connection closed: processes that must be gone before the engine's bytes are released; at most 8."""
    expelled: str = ""
    """`barred`: an operator expelled the process, which may not attach; its leases do not count. `readmitted`: the
    process may attach again; the leases of this attachment still do not count. Empty: neither."""

    @property
    def is_engine(self) -> bool:
        """Whether this is a real engine, not one that a gateway keeps for itself."""
        return bool(self.pid) or self.group != LMCACHE_SCHEDULERS


class GatewayOperation(msgspec.Struct):
    """Counters of one operation of a gateway's protocol, since the process started."""

    operation: str
    """`unknown` stands for all operations that the node does not know."""
    requests: int
    failures: dict[str, int]
    """Failures by reason."""
    seconds: float
    """Seconds in which the node worked on the operation or a copy ran."""
    buckets: list[int]
    """Histogram of durations: requests up to each bound in `GatewayStats.bounds_s`; the last bucket counts those
    beyond."""


class GatewayInstance(msgspec.Struct):
    """A worker registered with a gateway."""

    instance: int
    """Instance number that the worker uses for itself."""
    client: int
    """Client number of its engine."""
    pid: int
    """0 if unknown."""
    model: str
    world_size: int
    layout: str
    dtype: str
    chunk_bytes: int
    copies: bool
    """True if this node copies for the worker; false if the worker copies itself."""
    silent_s: float
    """Seconds since the last message of the worker."""
    attached: bool = True
    """False while its connection is gone, or after a long silence."""


class GatewayStats(msgspec.Struct):
    """State of a gateway, which serves engines that use another protocol."""

    gateway: str
    """`lmcache`."""
    url: str
    """URL on which the gateway listens."""
    memory_name: str
    """Name of its shared memory, without a slash."""
    memory_bytes: int
    chunk_tokens: int
    connections: int
    lookups: int
    """Look-ups that hold blocks, or whose result has not been collected yet."""
    lookups_ended: dict[str, int]
    """Look-ups that ended without a request of their scheduler: `expired`, `crowded_out`, `disconnected`."""
    instances: list[GatewayInstance]
    """At most 256."""
    operations: list[GatewayOperation]
    bounds_s: list[float]
    unanswered: int
    """Answers that could not be delivered because the peer was gone."""
    stored_bytes: int = 0
    """Bytes of chunks that clients stored."""
    read_bytes: int = 0
    """Bytes of chunks that clients read."""
    chunks_in: int = 0
    chunks_out: int = 0
    requested_chunks: int = 0
    """Chunks that look-ups asked for."""
    hit_chunks: int = 0
    """Chunks that look-ups found, in every rank's space."""
    problem: str = ""
    """Reason why new workers cannot map the gateway's memory; empty if they can."""
    name_restored: int = 0
    """Number of times that the name of the memory was removed and restored."""
    memory_short: bool = False
    """The last store that needed more memory failed, because the machine or `/dev/shm` had none."""


class ObservedDigest(msgspec.Struct):
    generation: int
    digest: str
    store: str


StartKind = Literal["unknown", "first", "warm", "cold"]


class CacheStart(msgspec.Struct):
    """How a data plane process started: with the memory of the previous process, or with an empty cache."""

    kind: StartKind = "unknown"
    """`first`: no earlier process cached anything in this state directory. `warm`: this process took over the memory of
    its predecessor. `cold`: it could not, and the cache started empty. `unknown`: the data plane is of an older
    release.
    """
    at: float = 0.0
    """Unix seconds."""
    reason: str = ""
    """One sentence that says why the start is cold."""
    released: bool = False
    """The memory was released on purpose (`larder down`, `larder up --fresh`, `keep_memory_s = 0`), not lost."""
    blocks: int = 0
    """Blocks that were taken over."""
    bytes: int = 0
    """Bytes that were taken over."""
    lost_blocks: int = 0
    """Blocks of the previous process that are no longer cached, as far as it recorded them."""
    lost_bytes: int = 0


class NodeStats(msgspec.Struct, tag_field="event", tag="node.stats"):
    """State of the node; published every half second, and sent in answer to `DescribeNode`."""

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
    """Largest first, at most 1,000; `other_tenants` sums up the rest."""
    other_tenants: TenantStats | None
    pins: list[PinStats]
    engines: list[EngineStats]
    observed: dict[str, ObservedDigest]
    """Heartbeat: the applied snapshot of each type. A digest that differs from the desired one is drift."""
    policy: PolicyStats = msgspec.field(default_factory=PolicyStats)
    spaces: list[SpaceStats] = []
    """Largest first, at most 1,000."""
    sweeps: list[SweepStats] = []
    adopted_blocks: int = 0
    """Blocks taken over from the previous data plane process."""
    draining: bool = False
    """The node accepts no new engines and stores no new blocks."""
    admitted_managers: list[str] = []
    """Public keys (Z85) of the managers that may connect; empty on a node that has not joined a fleet."""
    gateway: GatewayStats | None = None
    """None if there is no gateway, or it is off."""
    gpu_copy_pools: list[GpuCopyPoolStats] = []
    """One for each GPU whose engines asked for GPU copies, including unusable ones: `problem` says why."""
    gpu_copy_pool_bytes: int = 0
    """Bytes of each GPU that GPU copies may use; 0: the node keeps none."""
    start: CacheStart = msgspec.field(default_factory=CacheStart)
    """Whether this process started with a warm or a cold cache."""
    id_journal_bytes: int = 0
    """Size of the records of tenants with blocks, and of segments, in the journal that a restart reads."""
    id_journal_capacity_bytes: int = 0
    """Limit of `id_journal_bytes`; stores of a tenant that does not fit are refused (`too_many_tenants`). 0: the node
    does not report it."""


# ---- events


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
    """The engine's socket closed. Its leases and open writes stay charged until its processes are proven gone."""

    at: float
    client: int
    pid: int
    group: str
    reason: str
    quarantined_blocks: int


class EngineGone(msgspec.Struct, tag_field="event", tag="engine.gone"):
    """Every process of the engine's group is proven gone; its leases and bytes are released."""

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


class EngineExpelled(msgspec.Struct, tag_field="event", tag="engine.expelled"):
    """An operator expelled a process: its leases no longer count, and it cannot attach. One event for each
    attachment."""

    at: float
    client: int
    pid: int
    group: str
    leased_blocks: int
    """Blocks that the process held at that moment, over all its attachments."""


class EngineReadmitted(msgspec.Struct, tag_field="event", tag="engine.readmitted"):
    """An operator lets an expelled process attach again."""

    at: float
    client: int
    pid: int
    group: str


class EngineKilled(msgspec.Struct, tag_field="event", tag="engine.killed"):
    """The data plane sent SIGKILL to an engine's process at an operator's request."""

    at: float
    client: int
    pid: int
    group: str


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
    """A restarted data plane adopted the memory of the previous one."""

    at: float
    blocks: int
    bytes: int
    quarantined_blocks: int
    engines: int
    seconds: float


class CacheCold(msgspec.Struct, tag_field="event", tag="cache.cold"):
    """A data plane started with an empty cache although an earlier one had cached blocks."""

    at: float
    reason: str
    released: bool
    """The memory was released on purpose."""
    lost_blocks: int
    lost_bytes: int


class IdJournalFilling(msgspec.Struct, tag_field="event", tag="id_journal.filling"):
    """The journal that a restart reads is nearly full of tenants with blocks. Once it is full, stores of further
    tenants are refused."""

    at: float
    bytes: int
    capacity_bytes: int


class BlockCorrupt(msgspec.Struct, tag_field="event", tag="block.corrupt"):
    """A block was dropped because its bytes do not match its checksum."""

    at: float
    tenant: str
    space: str
    bytes: int
    client: int
    """Client that found it; 0 for the data plane."""


class SweepDone(msgspec.Struct, tag_field="event", tag="sweep.done"):
    at: float
    sweep: int
    kind: str
    blocks: int


class VerifyDone(msgspec.Struct, tag_field="event", tag="verify.done"):
    """A verification ended."""

    at: float
    verification: int
    checked: int
    corrupt: int
    without_checksum: int


class AdmissionChanged(msgspec.Struct, tag_field="event", tag="admission.changed"):
    """The admission gate closed (a key must have been seen before) or opened."""

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
    """Resident blocks of a pin exceed the pin budget: they are kept like unpinned blocks."""

    at: float
    name: str
    blocks: int


class PinExpired(msgspec.Struct, tag_field="event", tag="pin.expired"):
    at: float
    name: str


class GpuCopyPoolMade(msgspec.Struct, tag_field="event", tag="gpu_copy_pool.made"):
    """The first engine of a GPU asked for GPU copies."""

    at: float
    device: str
    name: str
    capacity_bytes: int


class GpuCopyPoolFailed(msgspec.Struct, tag_field="event", tag="gpu_copy_pool.failed"):
    """A GPU refused memory or a copy. Blocks are served from the node's pool, as without GPU copies."""

    at: float
    device: str
    problem: str


class GatewayNameLost(msgspec.Struct, tag_field="event", tag="gateway.name_lost"):
    """New workers cannot map a gateway's memory, because its name was removed or refers to another file. Registered
    workers continue."""

    at: float
    gateway: str
    reason: str


class GatewayNameRestored(msgspec.Struct, tag_field="event", tag="gateway.name_restored"):
    """The name refers to the memory again, with unchanged contents."""

    at: float
    gateway: str


Event = (
    NodeStats
    | NodeStarted
    | NodeStopping
    | EngineAttached
    | EngineDetached
    | EngineGone
    | EngineRefused
    | EngineExpelled
    | EngineReadmitted
    | EngineKilled
    | BlocksStored
    | BlocksEvicted
    | BlocksRefused
    | ReservationAborted
    | ReservationExpired
    | SegmentCreated
    | SegmentRetired
    | MemoryAdopted
    | CacheCold
    | IdJournalFilling
    | BlockCorrupt
    | SweepDone
    | VerifyDone
    | AdmissionChanged
    | PoolResized
    | SnapshotApplied
    | SnapshotRefused
    | PinDegraded
    | PinExpired
    | GpuCopyPoolMade
    | GpuCopyPoolFailed
    | GatewayNameLost
    | GatewayNameRestored
)


def name_of(event: Event) -> str:
    """Return the event's name, which is also its topic."""
    tag = event.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
