"""Nodes: data planes, their desired and observed state, and their statistics."""

from typing import Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from app.schemas.base.fields import LabelKey, LabelValue, Rule, Size, given, implies
from app.schemas.base.status import NodeStateName
from dataplane.protocol.stats.engines import EngineStats
from dataplane.protocol.stats.gateways import GatewayClient, GatewayInstance
from dataplane.protocol.stats.ipc import IpcStats
from dataplane.protocol.stats.pins import GpuCopyPoolStats
from dataplane.protocol.stats.pool import PolicyStats, PoolStats, SpaceStats, SweepStats, Totals
from dataplane.protocol.stats.processes import CacheStart
from dataplane.protocol.stats.tiers import TierStats


class ObservedState(msgspec.Struct, frozen=True):
    """Newest applied state of a type on a node."""

    generation: int
    digest: str
    store: str
    """Id of the database that the state came from."""


class NodeFault(msgspec.Struct, frozen=True):
    """One fault in the newest snapshot that the node refused."""

    type: str
    generation: int
    at: float
    path: str
    code: str
    message: str


ConditionType = Literal["crash_loop", "thrashing", "tenant_at_limit"]


class NodeCondition(msgspec.Struct, frozen=True):
    """A condition of a node that the manager found from events and reports of the last minutes."""

    type: ConditionType
    """`crash_loop`: its data plane ended unexpectedly three times in 10 min. `thrashing`: its pool is full, and blocks
    are evicted unread. `tenant_at_limit`: it refuses blocks of a tenant at its limit."""
    message: str
    since: float
    """Unix seconds."""
    ended_at: float | None
    """Unix seconds; null while it lasts. Conditions that ended are shown for `app.condition_kept_s`."""


class NodeGateway(msgspec.Struct, frozen=True):
    """A node's gateway for engines that use another protocol. Counts are since the data plane started."""

    gateway: str
    """`lmcache`."""
    url: str
    """Address for clients."""
    chunk_tokens: int
    connections: int
    workers: list[GatewayInstance]
    """Registered workers, at most 256."""
    lookups: int
    """Look-ups that hold blocks, or whose result has not been fetched yet."""
    lookups_ended: dict[str, int]
    """Look-ups that ended without their scheduler, by reason: `expired`, `crowded_out`, `disconnected`,
    `taken_back`."""
    requests: dict[str, int]
    """Requests by operation."""
    failures: dict[str, int]
    """Failures of all operations, by reason."""
    unanswered: int
    """Answers whose client had disconnected."""
    problem: str
    """Why new workers cannot map the gateway's memory; empty when they can. `/healthz/fleet` reports it, too."""
    name_restored: int
    """Number of times that the name of its shared memory was removed and restored."""
    memory_short: bool
    """Whether the machine or `/dev/shm` had no memory for the last store that needed more."""
    clients: list[GatewayClient]
    """Connections, those with refused requests first; at most 256."""


class NodeNumbers(msgspec.Struct, frozen=True):
    """Latest statistics of a node, without tenants and pins, which have routes of their own."""

    at: float
    uptime_s: float
    armed: bool
    pool: PoolStats
    totals: Totals
    refused: dict[str, int]
    engines: list[EngineStats]
    """Engines, the gateway's workers included; without the gateway's own attachment."""
    policy: PolicyStats
    """Policy in force."""
    spaces: list[SpaceStats]
    """Cached blocks by space, largest first, at most 100 spaces."""
    spaces_total: int
    """Number of spaces; at most 1,000, because the node reports no more."""
    sweeps: list[SweepStats]
    """Invalidations and demotions in progress, at most 100."""
    adopted_blocks: int
    """Blocks taken over from the previous data plane process."""
    start: CacheStart
    """Whether the cache started with the blocks of the previous process."""
    cold: bool
    """Whether the cache started empty by accident and holds less than half of the lost bytes."""
    draining: bool
    """Whether the node drains, as it reports itself."""
    gateway: NodeGateway | None
    """Null if the node has no gateway or it is disabled."""
    gpu_copy_pools: list[GpuCopyPoolStats]
    """Pools of GPU copies for pins of the tier `gpu`: one for each GPU whose engines asked, at most 64. A pool that
    cannot be used is included; its `problem` says why."""
    gpu_copy_pool_bytes: int
    """Bytes that GPU copies may take on each GPU (`gpu_pool_bytes`); 0 if the node keeps none."""
    tiers: list[TierStats]
    """Tiers behind memory, at most 16, also those that are out of service; `reason` says why."""
    tier_directory_blocks: int
    """Blocks of tiers that the node's tier directory lists, where engines look for them."""
    tier_directory_unlisted: int
    """Times that a block did not fit into the tier directory, since the start; engines do not find such blocks."""
    id_journal_bytes: int
    """Bytes of the records of segments, and of tenants with blocks, in the id journal, which a restart reads."""
    id_journal_capacity_bytes: int
    """Largest size of these records; stores of a tenant whose record does not fit are refused (`too_many_tenants`). 0
    if the node does not report it."""


class NodeAnswer(msgspec.Struct, frozen=True):
    """A node. Callers that are limited to tenants see its name, state and size, whether it drains, and when it last
    reported; the other fields are empty."""

    name: str
    state: NodeStateName
    epoch: str
    pid: int
    """Process id of the data plane; 0 while the node is lost, because the process may be gone."""
    release: str
    engine_socket: str
    control_url: str
    events_url: str
    public_key: str
    """CURVE public key of the node (Z85); empty for a node on this machine's own sockets."""
    joined_by: str
    """Id of the join token that it enrolled with; empty for a node on this machine's own sockets."""
    labels: dict[str, str]
    """Labels that selectors match: those that the node reports, overridden by those that operators set."""
    reported_labels: dict[str, str]
    """Labels that the node reports."""
    own_labels: dict[str, str]
    """Labels that operators set."""
    draining: bool
    """Whether the node was asked to accept no new engines and no stores."""
    admitted_managers: list[str]
    """Public keys of the managers that the node accepts, as it last reported."""
    clock_offset_s: float
    """Seconds by which its clock is ahead of the manager's; 0 within the tolerance. Pins end by the node's clock."""
    capacity_bytes: int
    seen_at: float
    desired: dict[str, int]
    """Newest generation by type."""
    observed: dict[str, ObservedState]
    faults: list[NodeFault]
    """Faults of refusals that still apply."""
    conditions: list[NodeCondition]
    stats: NodeNumbers | None
    """Null if the node is lost or has not reported yet."""


class NodeList(msgspec.Struct, frozen=True):
    items: list[NodeAnswer]
    total: int


class NodeIpc(IpcStats, kw_only=True):
    """The latest sample of a node."""

    node: str


class NodeIpcList(msgspec.Struct, frozen=True):
    items: list[NodeIpc]
    """Nodes that are not lost and have sampled, by name."""
    total: int


class DrainPost(msgspec.Struct, forbid_unknown_fields=True):
    on: bool  # false: accept new engines and stores again


class ExpelPost(msgspec.Struct, forbid_unknown_fields=True):
    """Whether to expel, kill or readmit the process of an engine, in all its attachments."""

    on: bool = True  # false: readmit the process
    # Expel the process even while it holds leases: it may then read bytes of other blocks of its spaces in place of
    # the leased ones.
    force: bool = False
    kill: bool = False  # end the process with SIGKILL

    RULES: ClassVar[tuple[Rule, ...]] = (
        implies({"anyOf": [given("force", True), given("kill", True)]}, {"properties": {"on": {"const": True}}}),
    )


class ExpelAnswer(msgspec.Struct, frozen=True):
    """The result of expelling an engine's process."""

    node: str
    pid: int
    """Process id; 0 for a process in another pid namespace."""
    clients: list[int]
    """Client numbers of its attachments."""
    leased_blocks: int
    """Blocks that it held leases on."""
    dropped: bool
    """Whether its leases were dropped."""
    killed: bool
    """Whether SIGKILL was sent to the process."""
    quarantined_bytes: int
    """Bytes of blocks that it was writing, quarantined until the processes of `waits_for_pids` are gone."""
    waits_for_pids: list[int]
    """Living processes of its engine group, at most 8."""


class NodePatch(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON merge patch of the labels that operators set on a node."""

    labels: Annotated[dict[LabelKey, LabelValue | None], Meta(max_length=64, examples=[{"zone": "b"}])]
    """Labels that override those that the node reports; null removes an override."""


class ResizePost(msgspec.Struct, forbid_unknown_fields=True):
    """Requested size of the pool."""

    pool_bytes: Annotated[Size, Meta(examples=["4GiB"])]
    """Bytes, or text such as `4GiB`; pools cannot shrink."""


class ResizeAnswer(msgspec.Struct, frozen=True):
    node: str
    capacity_bytes: int
    """Size of the pool after the resize."""
    max_blocks: int | None
    """Largest number of blocks, fixed at the start of the node; null if the node has not reported it yet."""


class TracedRequest(msgspec.Struct, frozen=True):
    """A request of an engine in the access trace of a node, one line of it. The first four fields are those of
    Mooncake's trace format."""

    timestamp: float
    """Milliseconds since the node started."""
    input_length: int
    """Tokens of the prompt."""
    output_length: int
    """Always 0: nodes do not know it."""
    hash_ids: list[int]
    """Blocks of the prompt, in order. Equal numbers mean equal content, equal prefix and equal space."""
    tenant: str
    """Tenant, as shown; empty without one."""
    model: str
    block_bytes: int
    """Bytes of a chunk in all ranks, pipeline stages and KV groups."""
    hit_blocks: int
    """Blocks that were cached."""
