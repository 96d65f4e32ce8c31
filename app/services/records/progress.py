"""Progress of a generation: the nodes that applied it, and waiting for them."""

import time
from collections.abc import Mapping

from app.ingest.fleet import Fleet, FleetNode, keeps_gpu_copies
from app.push.desired import DesiredState
from app.push.states import NodeState, node_state
from app.schemas.base.status import NodeProgress, RecordStatus
from app.services.records.conditions import RecordState, accepted, applied_on, effective_on, over_all
from dataplane.base.labels import matches
from dataplane.protocol.control import SNAPSHOT_TYPES, Observed, SnapshotType

MAX_WAIT_S = 30.0
LOOK_S = 0.05
"""Seconds between checks of node stats, which do not notify the fleet's pulse."""


class RecordProgress:
    """Compares the state of the fleet with the desired state."""

    def __init__(self, fleet: Fleet, desired: DesiredState) -> None:
        self._fleet = fleet
        self._desired = desired

    def state(self, node: FleetNode, kind: SnapshotType | None = None) -> NodeState:
        """Return a node's state for one type, or for all."""
        wanted = self._desired.wanted(node.labels)
        return node_state(node, wanted, SNAPSHOT_TYPES if kind is None else (kind,))

    def census(self) -> dict[str, int]:
        """Return the number of nodes in each state."""
        counts = dict.fromkeys((state.value for state in NodeState), 0)
        for node in self._fleet.nodes.values():
            counts[self.state(node).value] += 1
        return counts

    def generations(self) -> dict[str, int]:
        """Return the wanted generation by type, as of the last read of the database."""
        return {str(kind): number for kind, number in self._desired.generations.items()}

    def status(
        self,
        kind: SnapshotType,
        generation: int,
        *,
        name: str = "",
        selector: Mapping[str, str] | None = None,
        since: float = 0.0,
        whole: bool = True,
    ) -> RecordStatus:
        """Return the status of a record that was last changed by this generation, at `since` (Unix seconds). `name` is
        the name that nodes use: a quota's tenant (shown name), a pin's or policy's name. `whole` is false for callers
        who are limited to tenants."""
        record = RecordState(kind, name, generation, since)
        nodes = [node for node in self._fleet.nodes.values() if matches(node.labels, selector)]
        gpu_copies = kind == "pins" and any(_has_gpu_copies(node) for node in nodes)
        resident = kind == "pins" and any(_has_blocks(node, name) for node in nodes)
        told = {
            node.name: self._on_node(node, record, whole=whole, gpu_copies=gpu_copies, resident=resident)
            for node in nodes
        }
        living = [told[node.name] for node in nodes if not node.lost]
        return RecordStatus(
            accepted=True,
            applied=bool(living) and all(each.conditions[0].status == "True" for each in living),
            nodes=told,
            conditions=[
                accepted(record),
                *over_all(
                    record, [(node.name, told[node.name].conditions) for node in nodes if not node.lost]
                ),
            ],
        )

    def _on_node(
        self, node: FleetNode, record: RecordState, *, whole: bool, gpu_copies: bool, resident: bool
    ) -> NodeProgress:
        """Return a node's progress. `gpu_copies` and `resident`: at least one node of the record has GPU copies, or has
        blocks of the pin."""
        kind = record.kind
        observed = self._own(node, kind)
        state = self.state(node, kind)
        is_applied = self._applied(node, kind, record.generation)
        if state is NodeState.IN_SYNC and not is_applied:
            state = NodeState.BEHIND  # committed a moment ago: the push worker has not run yet
        applied = applied_on(node, record, state, is_applied, whole=whole)
        chosen = self._desired.policy_for(node.labels) if kind == "policies" else None
        return NodeProgress(
            None if observed is None else observed.generation,
            state.value,
            [
                applied,
                effective_on(
                    node,
                    record,
                    applied,
                    chosen,
                    gpu_copies_elsewhere=gpu_copies,
                    resident_elsewhere=resident,
                    whole=whole,
                ),
            ],
        )

    def _applied(self, node: FleetNode, kind: SnapshotType, generation: int) -> bool:
        observed = self._own(node, kind)
        if observed is None or observed.generation < generation:
            return False
        wanted = self._desired.wanted(node.labels)[kind]
        # At the newest generation the digest must match, too: the node's labels may have changed meanwhile.
        return observed.generation != wanted.generation or observed.digest == wanted.digest

    def _own(self, node: FleetNode, kind: SnapshotType) -> Observed | None:
        """Return what the node has applied, if it comes from this database."""
        observed = node.observed.get(kind)
        if observed is None or kind not in self._desired.generations or observed.store != self._desired.store:
            return None
        return observed

    async def wait(self, kind: SnapshotType, generation: int, timeout_s: float) -> None:
        """Wait until every living node has applied or refused the generation, at most `timeout_s` seconds. For pins,
        also wait until the nodes that applied it have reported how many of the blocks they cache."""
        if not timeout_s:
            return
        deadline = time.monotonic() + timeout_s

        def settled() -> bool:
            living = self._fleet.living()
            return bool(living) and all(
                self._applied(node, kind, generation) or self._refused(node, kind, generation)
                for node in living
            )

        await self._fleet.change_signal.until(settled, timeout_s)
        while (
            kind == "pins" and not self._counted(generation) and (left_s := deadline - time.monotonic()) > 0
        ):
            await self._fleet.change_signal.wait(min(LOOK_S, left_s))

    def _counted(self, generation: int) -> bool:
        """Return whether every living node that applied this generation of pins has published stats since."""
        return all(
            node.stats is not None
            and (told := node.stats.observed.get("pins")) is not None
            and told.generation >= generation
            for node in self._fleet.living()
            if self._applied(node, "pins", generation)
        )

    def _refused(self, node: FleetNode, kind: SnapshotType, generation: int) -> bool:
        refusal = node.refused.get(kind)
        return refusal is not None and refusal.generation >= generation

    def unready_counts(self) -> list[str]:
        """Return the same as `unready`, as counts, for callers who may not see the names of nodes."""
        living = self._fleet.living()
        lost = len(self._fleet.nodes) - len(living)
        reasons = [f"{lost} of {len(self._fleet.nodes)} nodes are lost"] if lost else []
        if not living:
            return ["no node is connected", *reasons]
        behind = sum(self.state(node) is not NodeState.IN_SYNC for node in living)
        if behind:
            reasons.append(f"{behind} of {len(living)} nodes do not hold what they should")
        closed = sum(bool(_gateway_problem(node)) for node in living)
        if closed:
            reasons.append(f"the gateway of {closed} of {len(living)} nodes cannot serve new workers")
        return reasons

    def unready(self) -> list[str]:
        """Return which nodes are lost, why a living node is not at the current generations, or why its gateway cannot
        serve new workers; empty when all are ready."""
        living = self._fleet.living()
        reasons = [f"{node.name} is lost" for node in self._fleet.nodes.values() if node.lost]
        if not living:
            return ["no node is connected", *reasons]
        for node in living:
            for kind in SNAPSHOT_TYPES:
                state = self.state(node, kind)
                if state is not NodeState.IN_SYNC:
                    reasons.append(f"{node.name} is {state.value} with {kind}")
            problem = _gateway_problem(node)
            if problem:
                reasons.append(f"{node.name}: its gateway cannot serve new workers: {problem}")
        return reasons


def _has_blocks(node: FleetNode, pin: str) -> bool:
    """Return whether the node caches blocks of the pin, by its last stats."""
    return not node.lost and pin in node.pins and node.pins[pin].resident > 0


def _has_gpu_copies(node: FleetNode) -> bool:
    """Return whether a GPU of the node keeps GPU copies, by its last stats."""
    return node.live_stats is not None and keeps_gpu_copies(node.live_stats.gpu_copy_pools)


def _gateway_problem(node: FleetNode) -> str:
    """Return why new workers cannot map the memory of the node's gateway; empty when they can."""
    stats = node.live_stats
    return "" if stats is None or stats.gateway is None else stats.gateway.problem
