"""Nodes, as far as they are known and the caller may see them."""

from collections import Counter

import msgspec

from app.ingest.fleet import Fleet, FleetNode
from app.ingest.node_conditions import NodeConditions
from app.schemas.fleet.nodes import (
    NodeAnswer,
    NodeFault,
    NodeGateway,
    NodeIpc,
    NodeIpcList,
    NodeList,
    NodeNumbers,
    ObservedState,
)
from app.services.base import redaction
from app.services.base.fields import answer
from app.services.base.principals import PLANE, Principal
from app.services.fleet.cache_start import is_cold
from app.services.fleet.targets import known_node
from app.services.records.progress import RecordProgress
from dataplane.protocol.stats.gateways import GatewayStats
from dataplane.protocol.stats.node import NodeStats

MAX_SPACES = 100
MAX_SWEEPS = 100
MAX_GPU_COPY_POOLS = 64
MAX_TIERS = 16
MAX_IPC = 16


class Nodes:
    def __init__(self, progress: RecordProgress, fleet: Fleet, conditions: NodeConditions) -> None:
        self._progress = progress
        self._conditions = conditions
        self._fleet = fleet

    def get(self, name: str, by: Principal = PLANE) -> NodeAnswer:
        """Return the node. Raises NotFound."""
        return self._answer(known_node(self._fleet, name), by)

    def page(self, by: Principal = PLANE) -> NodeList:
        """Return all nodes, sorted by name."""
        answers = [self._answer(node, by) for _, node in sorted(self._fleet.nodes.items())]
        return NodeList(answers, len(answers))

    def ipc(self) -> NodeIpcList:
        """Return the queues and stores in shared memory that nodes see, sorted by the name of the node."""
        items = []
        for name, node in sorted(self._fleet.nodes.items()):
            ipc = None if node.live_stats is None else node.live_stats.ipc
            if ipc is not None:
                values = msgspec.structs.asdict(ipc)
                values |= {"queues": ipc.queues[:MAX_IPC], "stores": ipc.stores[:MAX_IPC]}
                items.append(NodeIpc(node=name, **values))
        return NodeIpcList(items, len(items))

    def _answer(self, node: FleetNode, by: Principal) -> NodeAnswer:
        whole = answer(
            NodeAnswer,
            node,
            state=self._progress.state(node).value,
            pid=0 if node.lost else node.pid,
            admitted_managers=[] if node.stats is None else node.stats.admitted_managers,
            desired=self._progress.generations(),
            observed={
                kind: ObservedState(state.generation, state.digest, state.store)
                for kind, state in node.observed.items()
            },
            faults=[
                NodeFault(type=kind, generation=refusal.generation, at=refusal.at, **msgspec.structs.asdict(fault))
                for kind, refusal in node.refused.items()
                for fault in refusal.faults
            ],
            conditions=self._conditions.of(node.name),
            stats=None if node.live_stats is None else _numbers(node.live_stats),
        )
        return whole if by.salts is None else redaction.name_of(whole)


def _numbers(stats: NodeStats) -> NodeNumbers:
    return answer(
        NodeNumbers,
        stats,
        engines=[engine for engine in stats.engines if engine.is_engine],
        spaces=stats.spaces[:MAX_SPACES],
        spaces_total=len(stats.spaces),
        sweeps=stats.sweeps[:MAX_SWEEPS],
        cold=is_cold(stats),
        gateway=None if stats.gateway is None else _gateway(stats.gateway),
        gpu_copy_pools=stats.gpu_copy_pools[:MAX_GPU_COPY_POOLS],
        tiers=stats.tiers[:MAX_TIERS],
    )


def _gateway(stats: GatewayStats) -> NodeGateway:
    failures: Counter[str] = Counter()
    for operation in stats.operations:
        failures.update(operation.failures)
    return answer(
        NodeGateway,
        stats,
        workers=stats.instances,
        requests={operation.operation: operation.requests for operation in stats.operations},
        failures=failures,
    )
