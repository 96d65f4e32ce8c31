"""Facts that happen in a data plane: one typed struct for each event name.

On the wire: ZeroMQ PUB, three frames: topic (the event's tag), sequence number (u64 little-endian, from 1, without
holes), MessagePack of the struct. A hole in the numbers means that events were lost: ask for a `Describe`.
Times are Unix seconds of the node. Sizes are bytes. Tenants are shown names (`_default` for the empty salt).
"""

import msgspec

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
    malformed_messages: int = 0
    ring_dropped: int = 0
    events_dropped: int = 0


class TenantStats(msgspec.Struct):
    tenant: str
    bytes: int = 0
    blocks: int = 0
    limit_bytes: int | None = None
    over_limit: bool = False
    managed: bool = False
    """A quota record exists."""
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
    """Resident blocks that are inside the pin budget and will not be evicted."""
    expired: bool = False


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
    """`room`, `limit` or `index`."""
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
    | SnapshotApplied
    | SnapshotRefused
    | PinDegraded
    | PinExpired
)


def name_of(event: Event) -> str:
    """The event's name, which is also its topic."""
    tag = event.__struct_config__.tag
    assert isinstance(tag, str)
    return tag
