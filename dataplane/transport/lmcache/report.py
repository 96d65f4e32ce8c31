"""The gateway's state for people: what `NodeStats.gateway` says."""

from __future__ import annotations

from itertools import islice

from dataplane.protocol.events import GatewayInstance, GatewayOperation, GatewayStats
from dataplane.protocol.spaces import LMCACHE
from dataplane.transport.lmcache.cache import Pool
from dataplane.transport.lmcache.chains import CHUNK_TOKENS
from dataplane.transport.lmcache.counters import BUCKETS_S, Counters
from dataplane.transport.lmcache.instances import Instance, Instances
from dataplane.transport.lmcache.sessions import Sessions

MAX_INSTANCES_SHOWN = 256
MAX_CHARACTERS = 64


def gateway_stats(
    url: str,
    pool: Pool,
    connections: int,
    sessions: Sessions,
    instances: Instances,
    counters: Counters,
    now: float,
) -> GatewayStats:
    """What it is doing, and what it did since the process started."""
    moved = counters.moved
    return GatewayStats(
        gateway=LMCACHE,
        url=url,
        memory_name=pool.name,
        memory_bytes=pool.nbytes,
        chunk_tokens=CHUNK_TOKENS,
        connections=connections,
        lookups=len(sessions),
        lookups_ended=dict(sessions.ended),
        instances=[_shown(instance, now) for instance in islice(instances, MAX_INSTANCES_SHOWN)],
        operations=[
            GatewayOperation(
                name, tally.requests, dict(tally.failures), round(tally.seconds, 6), list(tally.buckets)
            )
            for name, tally in sorted(counters.tallies.items())
        ],
        bounds_s=list(BUCKETS_S),
        unanswered=counters.unanswered,
        bytes_in=moved.bytes_in,
        bytes_out=moved.bytes_out,
        chunks_in=moved.chunks_in,
        chunks_out=moved.chunks_out,
        requested_chunks=moved.requested_chunks,
        hit_chunks=moved.hit_chunks,
    )


def _shown(instance: Instance, now: float) -> GatewayInstance:
    registered, form = instance.registered, instance.form
    return GatewayInstance(
        instance=registered.instance,
        client=instance.client,
        pid=registered.pid,
        model=registered.model_name[:MAX_CHARACTERS],
        world_size=registered.world_size,
        layout=form.layout[:MAX_CHARACTERS],
        dtype=form.dtype,
        chunk_bytes=form.chunk_bytes,
        copies=form.copier is not None,
        silent_s=round(max(0.0, now - instance.seen), 3),
        attached=instance.attached,
    )
