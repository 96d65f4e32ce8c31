"""Gateways, which serve engines that use another protocol."""

from typing import Annotated

import msgspec

from dataplane.protocol.stats.figures import counter, gauge


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


class GatewayClient(msgspec.Struct):
    """A connection of a client."""

    pid: int
    """0 if unknown."""
    release: str
    """Releases of the client's software that send such requests, such as `0.5.5 or 0.5.6`; empty before the first
    request that tells."""
    unknown: str
    """First thing that the client sent and no known release sends; empty if there is none."""
    refused: int
    """Requests that were refused as a whole, because their arguments or their operation are unknown or wrong."""
    reason: str
    """Why the latest of them was refused."""
    connected: bool
    """False once the connection has closed; the last 16 of those with refused requests are kept."""


class GatewayStats(msgspec.Struct):
    """State of a gateway, which serves engines that use another protocol."""

    gateway: str
    """`lmcache`."""
    url: str
    """URL on which the gateway listens."""
    memory_name: str
    """Name of its shared memory, without a slash."""
    memory_bytes: Annotated[int, gauge("larder_gateway_memory_bytes")]
    """Size of the named segment that the gateway's clients map."""
    chunk_tokens: int
    connections: Annotated[int, gauge("larder_gateway_connections")]
    """Connections of the gateway's clients."""
    lookups: Annotated[int, gauge("larder_gateway_lookups")]
    """Look-ups that hold blocks, or whose result has not been fetched yet."""
    lookups_ended: Annotated[dict[str, int], counter("larder_gateway_lookups_ended", "reason")]
    """Look-ups that ended without a request of their scheduler.

    By reason: `expired`, `crowded_out`, `disconnected`, `taken_back`."""
    instances: list[GatewayInstance]
    """At most 256."""
    operations: list[GatewayOperation]
    bounds_s: list[float]
    unanswered: Annotated[int, counter("larder_gateway_unanswered")]
    """Responses that could not be delivered because the client was gone."""
    stored_bytes: Annotated[int, counter("larder_gateway_stored_bytes")] = 0
    """Bytes that clients stored."""
    read_bytes: Annotated[int, counter("larder_gateway_read_bytes")] = 0
    """Bytes that clients read."""
    chunks_in: Annotated[int, counter("larder_gateway_chunks_in")] = 0
    """Chunks that clients stored."""
    chunks_out: Annotated[int, counter("larder_gateway_chunks_out")] = 0
    """Chunks that clients read."""
    requested_chunks: Annotated[int, counter("larder_gateway_requested_chunks")] = 0
    """Chunks that look-ups requested, when they end."""
    hit_chunks: Annotated[int, counter("larder_gateway_hit_chunks")] = 0
    """Chunks that look-ups found and requests used.

    In every rank's space."""
    problem: str = ""
    """Reason why new workers cannot map the gateway's memory; empty if they can."""
    name_restored: Annotated[int, counter("larder_gateway_name_restored")] = 0
    """Number of times that the name of the gateway's memory was removed and restored."""
    memory_short: bool = False
    """The last store that needed more memory failed, because the machine or `/dev/shm` had none."""
    tier_hit_chunks: Annotated[int, counter("larder_gateway_tier_hit_chunks")] = 0
    """Those of the hit chunks that look-ups waited for while tiers behind memory loaded them."""
    clients: list[GatewayClient] = []
    """Connections, those with refused requests first; at most 256."""
