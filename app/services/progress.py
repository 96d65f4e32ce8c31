"""How far a generation got: on which nodes it is applied, and waiting for it."""

from collections.abc import Mapping

from app.ingest.fleet import Fleet, Node, keep_replicas
from app.push.desired import Desired
from app.push.states import NodeState, node_state
from app.schemas.status import NodeProgress, RecordStatus
from app.services.conditions import Record, accepted, applied_on, effective_on, over_all
from dataplane.protocol.control import SNAPSHOT_TYPES, Observed, SnapshotType
from dataplane.protocol.labels import matches

MAX_WAIT_S = 30.0


class Progress:
    """Reads the fleet and what is desired."""

    def __init__(self, fleet: Fleet, desired: Desired) -> None:
        self._fleet = fleet
        self._desired = desired

    def state(self, node: Node, kind: SnapshotType | None = None) -> NodeState:
        """A node's state about one type, or about all."""
        wanted = self._desired.wanted(node.labels)
        return node_state(node, wanted, SNAPSHOT_TYPES if kind is None else (kind,))

    def census(self) -> dict[str, int]:
        """Number of nodes in each state."""
        counts = dict.fromkeys((state.value for state in NodeState), 0)
        for node in self._fleet.nodes.values():
            counts[self.state(node).value] += 1
        return counts

    def generations(self) -> dict[str, int]:
        """Wanted generation by type, as of the last look at the database."""
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
        """Where a record stands that was last changed by this generation, at `since` (Unix seconds). `name` is how
        nodes call it: a quota's tenant as it is shown, a pin's or policy's name. Not `whole`: for callers who are
        limited to tenants."""
        record = Record(kind, name, generation, since)
        nodes = [node for node in self._fleet.nodes.values() if matches(node.labels, selector)]
        replicas = kind == "pins" and any(_has_replicas(node) for node in nodes)
        told = {node.name: self._on_node(node, record, whole=whole, replicas=replicas) for node in nodes}
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

    def _on_node(self, node: Node, record: Record, *, whole: bool, replicas: bool) -> NodeProgress:
        """`replicas`: some node that the record is for has them."""
        kind = record.kind
        observed = self._own(node, kind)
        state = self.state(node, kind)
        is_applied = self._applied(node, kind, record.generation)
        if state is NodeState.IN_SYNC and not is_applied:
            state = NodeState.BEHIND  # committed a moment ago: the push worker has not looked yet
        applied = applied_on(node, record, state, is_applied, whole=whole)
        chosen = self._desired.policy_for(node.labels) if kind == "policies" else None
        return NodeProgress(
            None if observed is None else observed.generation,
            state.value,
            [
                applied,
                effective_on(node, record, applied, chosen, replicas_elsewhere=replicas, whole=whole),
            ],
        )

    def _applied(self, node: Node, kind: SnapshotType, generation: int) -> bool:
        observed = self._own(node, kind)
        if observed is None or observed.generation < generation:
            return False
        wanted = self._desired.wanted(node.labels)[kind]
        # Of the newest generation it must be what is wanted of this node: its labels may have changed meanwhile.
        return observed.generation != wanted.generation or observed.digest == wanted.digest

    def _own(self, node: Node, kind: SnapshotType) -> Observed | None:
        """What the node has applied, when it is of our database."""
        observed = node.observed.get(kind)
        if observed is None or kind not in self._desired.generations or observed.store != self._desired.store:
            return None
        return observed

    async def wait(self, kind: SnapshotType, generation: int, timeout_s: float) -> None:
        """Until every living node applied or refused the generation, or the time is over."""

        def settled() -> bool:
            living = self._fleet.living()
            return bool(living) and all(
                self._applied(node, kind, generation) or self._refused(node, kind, generation)
                for node in living
            )

        await self._fleet.pulse.until(settled, timeout_s)

    def _refused(self, node: Node, kind: SnapshotType, generation: int) -> bool:
        refusal = node.refused.get(kind)
        return refusal is not None and refusal.generation >= generation

    def unready_counts(self) -> list[str]:
        """The same as `unready`, for whom the names of nodes are none of their business."""
        living = self._fleet.living()
        if not living:
            return ["no node is connected"]
        behind = sum(self.state(node) is not NodeState.IN_SYNC for node in living)
        return [f"{behind} of {len(living)} nodes do not hold what they should"] if behind else []

    def unready(self) -> list[str]:
        """Why not every known living node is at the current generations; empty when ready."""
        living = self._fleet.living()
        if not living:
            return ["no node is connected"]
        reasons = []
        for node in living:
            for kind in SNAPSHOT_TYPES:
                state = self.state(node, kind)
                if state is not NodeState.IN_SYNC:
                    reasons.append(f"{node.name} is {state.value} with {kind}")
        return reasons


def _has_replicas(node: Node) -> bool:
    """Some GPU of the node keeps replicas, as it last told."""
    return node.live_stats is not None and keep_replicas(node.live_stats.replica_pools)
