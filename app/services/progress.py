"""How far a generation got: on which nodes it is applied, and waiting for it."""

from app.ingest.fleet import Fleet, Node
from app.push.desired import Desired
from app.push.states import NodeState, node_state
from app.schemas.status import NodeProgress, RecordStatus
from dataplane.protocol.control import SNAPSHOT_TYPES, Observed, SnapshotType

MAX_WAIT_S = 30.0


class Progress:
    """Reads the fleet and what is desired."""

    def __init__(self, fleet: Fleet, desired: Desired) -> None:
        self._fleet = fleet
        self._desired = desired

    def state(self, node: Node, kind: SnapshotType | None = None) -> NodeState:
        """A node's state about one type, or about all."""
        return node_state(node, self._desired.wanted, SNAPSHOT_TYPES if kind is None else (kind,))

    def generations(self) -> dict[str, int]:
        """Wanted generation by type, as of the last look at the database."""
        return {kind: wanted.generation for kind, wanted in self._desired.wanted.items()}

    def status(self, kind: SnapshotType, generation: int) -> RecordStatus:
        """Where a record of this generation stands."""
        living = self._fleet.living()
        return RecordStatus(
            accepted=True,
            applied=bool(living) and all(self._applied(node, kind, generation) for node in living),
            nodes={
                node.name: self._node_progress(node, kind, generation) for node in self._fleet.nodes.values()
            },
        )

    def _node_progress(self, node: Node, kind: SnapshotType, generation: int) -> NodeProgress:
        observed = self._own(node, kind)
        state = self.state(node, kind)
        if state is NodeState.IN_SYNC and not self._applied(node, kind, generation):
            state = NodeState.BEHIND  # committed a moment ago: the push worker has not looked yet
        return NodeProgress(None if observed is None else observed.generation, state.value)

    def _applied(self, node: Node, kind: SnapshotType, generation: int) -> bool:
        observed = self._own(node, kind)
        return observed is not None and observed.generation >= generation

    def _own(self, node: Node, kind: SnapshotType) -> Observed | None:
        """What the node has applied, when it is of our database."""
        observed = node.observed.get(kind)
        wanted = self._desired.wanted.get(kind)
        if observed is None or wanted is None or observed.store != wanted.store:
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
