"""Nodes: data planes, what they should hold and what they hold."""

from typing import Annotated

import msgspec
from msgspec import Meta

from app.schemas.status import NodeStateName
from dataplane.protocol.events import (
    EngineStats,
    GatewayInstance,
    PolicyStats,
    PoolStats,
    ReplicaPoolStats,
    SpaceStats,
    SweepStats,
    Totals,
)


class ObservedState(msgspec.Struct, frozen=True):
    """What a node has applied of a type."""

    generation: int
    digest: str
    store: str
    """The database it came from."""


class NodeFault(msgspec.Struct, frozen=True):
    """One fault that the node found in the newest refused snapshot."""

    type: str
    generation: int
    at: float
    path: str
    code: str
    message: str


class NodeGateway(msgspec.Struct, frozen=True):
    """A node's gateway for engines that speak another protocol. Counts are since the data plane started."""

    gateway: str
    """`lmcache`."""
    url: str
    """Where it listens, for clients."""
    chunk_tokens: int
    connections: int
    workers: list[GatewayInstance]
    """That are registered, at most 256."""
    lookups: int
    """That hold something, or whose result nobody took yet."""
    lookups_ended: dict[str, int]
    """Look-ups that ended without their scheduler: `expired`, `crowded_out`, `disconnected`."""
    requests: dict[str, int]
    """By operation."""
    failures: dict[str, int]
    """By reason, of all operations."""
    unanswered: int
    """Answers that their client was not there to take."""


class NodeNumbers(msgspec.Struct, frozen=True):
    """The node's latest numbers, without tenants and pins, which have places of their own."""

    at: float
    uptime_s: float
    armed: bool
    pool: PoolStats
    totals: Totals
    refused: dict[str, int]
    engines: list[EngineStats]
    """Also those of the gateway's workers; without what a gateway has for itself."""
    policy: PolicyStats
    """In force."""
    spaces: list[SpaceStats]
    """What is cached of each space, largest first, at most 100."""
    spaces_total: int
    """At most 1,000: the node tells no more."""
    sweeps: list[SweepStats]
    """Invalidations and demotions under way, at most 100."""
    adopted_blocks: int
    """Blocks taken over from the data plane process before this one."""
    draining: bool
    """As the node itself says."""
    gateway: NodeGateway | None
    """Null: there is none, or it is off."""
    replica_pools: list[ReplicaPoolStats]
    """What GPUs keep of pins of the tier `gpu`, one for each GPU whose engines asked, at most 64; also where it cannot
    be used: `problem` says why."""
    replica_pool_bytes: int
    """What replicas may take of each GPU (`gpu_pool_bytes`); 0: the node keeps none."""


class NodeAnswer(msgspec.Struct, frozen=True):
    """A node. Callers who are limited to tenants see its name, state and size, whether it drains, and when it was
    heard; the rest is empty."""

    name: str
    state: NodeStateName
    epoch: str
    pid: int
    release: str
    engine_socket: str
    control_url: str
    events_url: str
    public_key: str
    """CURVE key that the node proves (Z85); empty for a node on this machine's own sockets."""
    joined_by: str
    """Id of the join token that let it in; empty for such a node."""
    labels: dict[str, str]
    """By which records find it: what the node tells, and over it what operators say."""
    told_labels: dict[str, str]
    own_labels: dict[str, str]
    """What operators say."""
    draining: bool
    """It is to take no new engines and store nothing more."""
    lets_in: list[str]
    """Public keys of the management planes that it lets in, as it last told."""
    clock_offset_s: float
    """By how much its clock is ahead of ours, in seconds; 0 when it is near enough. Pins end by its clock."""
    capacity_bytes: int
    seen_at: float
    desired: dict[str, int]
    """Generation by type."""
    observed: dict[str, ObservedState]
    faults: list[NodeFault]
    """Of NACKs that are still true."""
    stats: NodeNumbers | None
    """Null when the node is lost or has not told yet."""


class NodeList(msgspec.Struct, frozen=True):
    items: list[NodeAnswer]
    total: int


class DrainPost(msgspec.Struct, forbid_unknown_fields=True):
    on: bool
    """False: take new engines and store again."""


class NodePatch(msgspec.Struct, forbid_unknown_fields=True):
    """A JSON merge patch of what operators say about a node."""

    labels: Annotated[
        Annotated[dict[str, str | None], Meta(max_length=64)],
        Meta(
            description="Laid over what the node tells; null takes one of ours back.",
            examples=[{"zone": "b"}],
        ),
    ]


class ResizePost(msgspec.Struct, forbid_unknown_fields=True):
    """What the pool should hold."""

    pool_bytes: Annotated[
        int | str, Meta(description="Bytes, or text such as `4GiB`; pools only grow.", examples=["4GiB"])
    ]


class ResizeAnswer(msgspec.Struct, frozen=True):
    node: str
    capacity_bytes: int
    """As the node now has it."""
    max_blocks: int | None
    """Most blocks that it can name, fixed when it starts; null when it has not told yet."""
