"""Report the gateway's state for `NodeStats.gateway`."""

from __future__ import annotations

from itertools import islice

import msgspec

from dataplane.gateways.lmcache.handlers.clients import GatewayClients
from dataplane.gateways.lmcache.handlers.counters import BUCKETS_S
from dataplane.gateways.lmcache.handlers.parts import GatewayParts
from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS
from dataplane.gateways.lmcache.workers.registry import Instance
from dataplane.protocol.spaces import LMCACHE
from dataplane.protocol.stats.gateways import GatewayInstance, GatewayOperation, GatewayStats

MAX_INSTANCES_SHOWN = 256
MAX_CHARACTERS = 64


def gateway_stats(parts: GatewayParts, clients: GatewayClients, url: str, connections: int, now: float) -> GatewayStats:
    """Return the gateway's current state and its totals since the process started."""
    pool, sessions, counters = parts.pool, parts.sessions, parts.counters
    return GatewayStats(
        gateway=LMCACHE,
        url=url,
        memory_name=pool.name,
        memory_bytes=pool.nbytes,
        problem=pool.problem,
        name_restored=pool.restored,
        memory_short=pool.short,
        chunk_tokens=CHUNK_TOKENS,
        connections=connections,
        lookups=len(sessions),
        lookups_ended=dict(sessions.ended),
        instances=[_shown(instance, now) for instance in islice(parts.registry, MAX_INSTANCES_SHOWN)],
        operations=[
            GatewayOperation(name, tally.requests, dict(tally.failures), round(tally.seconds, 6), list(tally.buckets))
            for name, tally in sorted(counters.operations.items())
        ],
        bounds_s=list(BUCKETS_S),
        unanswered=counters.unanswered,
        clients=clients.shown(),
        **msgspec.structs.asdict(counters.moved),
    )


def _shown(instance: Instance, now: float) -> GatewayInstance:
    registered, chunk_layout = instance.registered, instance.chunk_layout
    return GatewayInstance(
        instance=registered.instance,
        client=instance.client,
        pid=registered.pid,
        model=registered.model_name[:MAX_CHARACTERS],
        world_size=registered.world_size,
        layout=chunk_layout.layout[:MAX_CHARACTERS],
        dtype=chunk_layout.dtype,
        chunk_bytes=chunk_layout.chunk_bytes,
        copies=chunk_layout.copier is not None,
        silent_s=round(max(0.0, now - instance.seen), 3),
        attached=instance.attached,
    )
