"""The node as it is, for whoever asks, and the counts that nothing else keeps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dataplane.core.quotas import wrapped
from dataplane.core.rings import RingReader
from dataplane.protocol.codes import Code
from dataplane.protocol.events import NodeStats, ObservedDigest, PolicyStats

if TYPE_CHECKING:
    from dataplane.core.node import Node


@dataclass(slots=True)
class Counts:
    """Since the process began."""

    events_dropped: int = 0
    """Events that nobody took in time."""
    refused_blocks: dict[str, int] = field(default_factory=dict)
    """By the name of the reason."""
    ring_dropped: int = 0
    """Of the rings of engines that are gone."""
    ring_invalid: int = 0
    """Of the rings of engines that are gone."""

    def refused(self, code: Code, blocks: int) -> None:
        """An engine was refused so many blocks."""
        name = code.name.lower()
        self.refused_blocks[name] = self.refused_blocks.get(name, 0) + blocks

    def ring_gone(self, ring: RingReader) -> None:
        """An engine was forgotten: what its ring counted stays counted."""
        self.ring_dropped = wrapped(self.ring_dropped + ring.dropped)
        self.ring_invalid = wrapped(self.ring_invalid + ring.invalid)


def node_stats(node: Node, now: float) -> NodeStats:
    """Everything that a heartbeat says about a node."""
    pool, counts = node.pool, node.counts
    rings = [engine.ring for engine in node.engines.values()]
    pool.totals.ring_dropped = counts.ring_dropped + sum(ring.dropped for ring in rings)
    pool.totals.ring_invalid = counts.ring_invalid + sum(ring.invalid for ring in rings)
    pool.totals.events_dropped = counts.events_dropped
    tenants, others = pool.tenants.stats(now)
    leased = pool.leases.leased()
    node.replicas.count()
    return NodeStats(
        at=now,
        node=node.options.name,
        epoch=node.options.epoch,
        adopted_blocks=node.adopted_blocks,
        draining=node.storing.draining,
        lets_in=node.lets_in,
        uptime_s=now - node.started_at,
        armed=node.intent.armed,
        pool=pool.stats(),
        totals=pool.totals,
        refused=dict(counts.refused_blocks),
        tenants=tenants,
        other_tenants=others,
        pins=[pin.stats(len(pool.spaces.of_model(pin.model))) for pin in pool.pins.by_name.values()],
        engines=[
            engine.stats(leased.get(engine.client, 0), node.engines) for engine in node.engines.values()
        ],
        observed={
            kind: ObservedDigest(held.generation, held.digest, held.store)
            for kind, held in node.intent.observed.items()
        },
        policy=_policy_stats(node, now),
        spaces=pool.space_stats(),
        sweeps=pool.sweeps.stats(len(pool.doomed)),
        gateway=node.gateway_stats(now),
        replica_pools=node.replicas.stats(),
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
