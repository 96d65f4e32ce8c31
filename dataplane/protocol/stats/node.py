"""The complete state of a node."""

from typing import Annotated

import msgspec

from dataplane.protocol.bounded import Identity, Time
from dataplane.protocol.event import NodeEvent
from dataplane.protocol.observed import Observed
from dataplane.protocol.stats.engines import EngineStats
from dataplane.protocol.stats.figures import gauge
from dataplane.protocol.stats.gateways import GatewayStats
from dataplane.protocol.stats.histogram import Histogram
from dataplane.protocol.stats.ipc import IpcStats
from dataplane.protocol.stats.kv_events import KvEventStats
from dataplane.protocol.stats.pins import GpuCopyPoolStats, PinStats
from dataplane.protocol.stats.pool import Evictions, PolicyStats, PoolStats, SpaceStats, SweepStats, Totals
from dataplane.protocol.stats.processes import CacheStart, ProcessStats
from dataplane.protocol.stats.tenants import TenantStats
from dataplane.protocol.stats.tiers import TierStats


class NodeStats(NodeEvent, tag="node.stats"):
    """State of the node; published every half second, and sent in answer to `DescribeNode`."""

    stored = False

    at: Time
    node: Identity
    epoch: Identity
    uptime_s: float
    armed: bool
    """A quotas snapshot is in force."""
    pool: PoolStats
    totals: Totals
    refused: dict[str, int]
    """Refused blocks by code name."""
    tenants: list[TenantStats]
    """Largest first, at most 1,000."""
    other_tenants: TenantStats | None
    """The other tenants: the sum of their bytes and blocks, and the counts of all tenants from times when they were not
    listed. A counter never falls, whichever tenants are listed."""
    pins: list[PinStats]
    engines: list[EngineStats]
    observed: dict[str, Observed]
    """Heartbeat: the applied snapshot of each type. A digest that differs from the desired one is drift."""
    policy: PolicyStats = msgspec.field(default_factory=PolicyStats)
    spaces: list[SpaceStats] = msgspec.field(default_factory=list)
    """Largest first, at most 1,000."""
    sweeps: list[SweepStats] = msgspec.field(default_factory=list)
    adopted_blocks: Annotated[int, gauge("larder_adopted_blocks")] = 0
    """Blocks taken over from the previous process."""
    draining: bool = False
    """The node accepts no new engines and stores no new blocks."""
    admitted_managers: list[str] = msgspec.field(default_factory=list)
    """Public keys (Z85) of the managers that may connect; empty on a node that has not joined a fleet."""
    gateway: GatewayStats | None = None
    """None if there is no gateway, or it is off."""
    gpu_copy_pools: list[GpuCopyPoolStats] = msgspec.field(default_factory=list)
    """One for each GPU whose engines asked for GPU copies, including unusable ones: `problem` says why."""
    gpu_copy_pool_bytes: int = 0
    """Bytes of each GPU that GPU copies may use; 0: the node keeps none."""
    start: CacheStart = msgspec.field(default_factory=CacheStart)
    """Whether this process started with a warm or a cold cache."""
    id_journal_bytes: Annotated[int, gauge("larder_id_journal_bytes")] = 0
    """Size of the records of segments, and of tenants with blocks, in the id journal."""
    id_journal_capacity_bytes: Annotated[int, gauge("larder_id_journal_capacity_bytes")] = 0
    """Maximum size of these records; stores of a tenant that does not fit are refused.

    The code is `too_many_tenants`. 0: the node does not report it."""
    tiers: list[TierStats] = msgspec.field(default_factory=list)
    """Tiers behind memory."""
    tier_directory_blocks: int = 0
    """Blocks of tiers that the tier directory lists, where engines look for them."""
    tier_directory_unlisted: int = 0
    """Times that a block did not fit into the tier directory, since the start. Engines do not find such blocks."""
    kv_events: KvEventStats | None = None
    """None if the node publishes no KV events."""
    otel_spans_dropped: int = 0
    """Spans of this process that were not exported."""
    operations: dict[str, Histogram] = msgspec.field(default_factory=dict)
    """Durations in seconds of operations of engines, measured by Larder's client."""
    evicted: dict[str, Evictions] = msgspec.field(default_factory=dict)
    """By reason, as in `blocks.evicted`."""
    evicted_idle: Histogram | None = None
    """Seconds since the last use of blocks that were evicted to make room."""
    block_lifetime: Histogram | None = None
    """Seconds between the reservation of a block and its eviction to make room."""
    reuse_gap: Histogram | None = None
    """Seconds between consecutive uses of a block. Uses within one tick of the node count as one."""
    events_dropped: dict[str, int] = msgspec.field(default_factory=dict)
    """Events that the node could not publish, by name."""
    process: ProcessStats | None = None
    ipc: IpcStats | None = None
    """None before the first sample, and if `dataplane.ipc_interval_s` is 0."""
    tier_load_seconds: dict[str, Histogram] = msgspec.field(default_factory=dict)
    """Durations in seconds of calls that load blocks from tiers, without the wait for their turn, by tier."""
