"""What the core of a node counts."""

from __future__ import annotations

from msgspec.structs import replace

from dataplane.core.node import Node
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pool import PolicyStats


def node_stats(node: Node, now: float) -> NodeStats:
    """Return the statistics of the core; `dataplane.report` adds those of the parts around it."""
    pool = node.pool
    for engine in node.engines.values():
        node.engines.read_operations(engine, now)
    pool.measure_lookups()
    tenants, others = pool.tenants.stats(now)
    leased = pool.leases.leased(pool.table.space_of)
    node.gpu_copies.count()
    directory = None if node.tiering is None else node.tiering.catalog.directory
    return NodeStats(
        at=now,
        node=node.options.name,
        epoch=node.options.epoch,
        draining=node.storing.draining,
        uptime_s=now - node.started_at,
        armed=node.intent.armed,
        pool=pool.stats(),
        totals=pool.totals,
        refused=dict(node.storing.refused_blocks),
        tenants=tenants,
        other_tenants=others,
        pins=[pin.stats(len(pool.spaces.of_model(pin.model))) for pin in pool.pins.by_name.values()],
        engines=[engine.stats(leased.get(engine.client, 0), node.engines) for engine in node.engines.values()],
        observed={**node.intent.observed},
        policy=_policy_stats(node, now),
        spaces=pool.space_stats(),
        sweeps=pool.sweeps.stats(len(pool.dead)),
        tier_directory_blocks=0 if directory is None else directory.listed(),
        tier_directory_unlisted=0 if directory is None else directory.unlisted(),
        gpu_copy_pools=node.gpu_copies.stats(),
        gpu_copy_pool_bytes=node.gpu_copies.capacity_bytes,
        id_journal_bytes=pool.table.names.used_bytes,
        id_journal_capacity_bytes=pool.table.names.capacity_bytes,
        operations=node.engines.operations.stats(),
        evicted={reason: replace(evicted) for reason, evicted in pool.evicted.items()},
        evicted_idle=pool.evicted_idle.stats(),
        block_lifetime=pool.lifetimes.stats(),
        reuse_gap=pool.reuse_gaps.stats(),
    )


def _policy_stats(node: Node, now: float) -> PolicyStats:
    spec, admission = node.intent.policy, node.pool.admission
    return PolicyStats(
        algorithm=spec.algorithm,
        admission=spec.admission,
        admission_idle_s=spec.admission_idle_s,
        gate_closed=admission is not None and admission.closed(now),
        victim_idle_s=None if admission is None else admission.victim_idle_s(now),
        admitted_blocks=0 if admission is None else admission.admitted,
        declined_blocks=0 if admission is None else admission.declined,
        high_watermark=spec.high_watermark,
        low_watermark=spec.low_watermark,
    )
