"""Nodes, as they are known here, and as much of them as callers may see."""

import msgspec

from app.ingest.fleet import Fleet, Node
from app.schemas.nodes import NodeAnswer, NodeFault, NodeGateway, NodeList, NodeNumbers, ObservedState
from app.services import checks, narrowed
from app.services.callers import PLANE, Caller
from app.services.progress import Progress
from dataplane.protocol.events import GatewayStats, NodeStats

MOST_SPACES = 100
MOST_SWEEPS = 100
MOST_REPLICA_POOLS = 64


class Nodes:
    def __init__(self, progress: Progress, fleet: Fleet) -> None:
        self._progress = progress
        self._fleet = fleet

    def get(self, name: str, by: Caller = PLANE) -> NodeAnswer:
        """Raises NotFound."""
        node = self._fleet.nodes.get(name)
        if node is None:
            raise checks.missing("node", name)
        return self._answer(node, by)

    def page(self, by: Caller = PLANE) -> NodeList:
        """All of them, by name."""
        answers = [self._answer(node, by) for _, node in sorted(self._fleet.nodes.items())]
        return NodeList(answers, len(answers))

    def _answer(self, node: Node, by: Caller) -> NodeAnswer:
        whole = self._whole(node)
        return whole if by.salts is None else narrowed.name_of(whole)

    def _whole(self, node: Node) -> NodeAnswer:
        return NodeAnswer(
            name=node.name,
            state=self._progress.state(node).value,
            epoch=node.epoch,
            pid=node.pid,
            release=node.release,
            engine_socket=node.engine_socket,
            control_url=node.control_url,
            events_url=node.events_url,
            public_key=node.public_key,
            joined_by=node.joined_by,
            labels=node.labels,
            told_labels=node.told_labels,
            own_labels=node.own_labels,
            draining=node.draining,
            lets_in=[] if node.stats is None else node.stats.lets_in,
            clock_offset_s=node.clock_offset_s,
            capacity_bytes=node.capacity_bytes,
            seen_at=node.seen_at,
            desired=self._progress.generations(),
            observed={
                kind: ObservedState(seen.generation, seen.digest, seen.store)
                for kind, seen in node.observed.items()
            },
            faults=[
                NodeFault(
                    type=kind, generation=refusal.generation, at=refusal.at, **msgspec.structs.asdict(fault)
                )
                for kind, refusal in node.refused.items()
                for fault in refusal.faults
            ],
            stats=None if node.live_stats is None else _numbers(node.live_stats),
        )


def _numbers(stats: NodeStats) -> NodeNumbers:
    return NodeNumbers(
        at=stats.at,
        uptime_s=stats.uptime_s,
        armed=stats.armed,
        pool=stats.pool,
        totals=stats.totals,
        refused=stats.refused,
        engines=[engine for engine in stats.engines if engine.is_engine],
        policy=stats.policy,
        spaces=stats.spaces[:MOST_SPACES],
        spaces_total=len(stats.spaces),
        sweeps=stats.sweeps[:MOST_SWEEPS],
        adopted_blocks=stats.adopted_blocks,
        draining=stats.draining,
        gateway=None if stats.gateway is None else _gateway(stats.gateway),
        replica_pools=stats.replica_pools[:MOST_REPLICA_POOLS],
        replica_pool_bytes=stats.replica_pool_bytes,
    )


def _gateway(stats: GatewayStats) -> NodeGateway:
    failures: dict[str, int] = {}
    for operation in stats.operations:
        for reason, count in operation.failures.items():
            failures[reason] = failures.get(reason, 0) + count
    return NodeGateway(
        gateway=stats.gateway,
        url=stats.url,
        chunk_tokens=stats.chunk_tokens,
        connections=stats.connections,
        workers=stats.instances,
        lookups=stats.lookups,
        lookups_ended=stats.lookups_ended,
        requests={operation.operation: operation.requests for operation in stats.operations},
        failures=failures,
        unanswered=stats.unanswered,
    )
