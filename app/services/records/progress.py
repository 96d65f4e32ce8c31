"""Progress of a generation: the nodes that applied it, and waiting for them."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.ingest.fleet import Fleet, FleetNode, holds_blocks, keeps_gpu_copies
from app.push.desired import DesiredState
from app.push.states import NodeState, node_state
from app.schemas.base.status import NodeProgress, RecordStatus
from app.services.records.conditions import RecordState, accepted, applied_on, effective_on, no_node, over_all
from dataplane.base.labels import matches
from dataplane.protocol.control.snapshots import SNAPSHOT_TYPES, Fault, SnapshotType
from dataplane.protocol.observed import Observed

MAX_WAIT_S = 30.0
LOOK_S = 0.05
"""Seconds between checks of node stats, which do not notify the change signal."""
_POSITION = re.compile(r"tiers\[(\d+)\]", re.ASCII)


@dataclass(frozen=True)
class GenerationLag:
    """Number of generations of a record type that a node has not applied yet."""

    node: str
    type: str
    generations: int
    drifted: bool
    nacked: bool
    """Whether the node refused the newest generation."""


class RecordProgress:
    """Compares the state of the fleet with the desired state."""

    def __init__(self, fleet: Fleet, desired: DesiredState) -> None:
        self._fleet = fleet
        self._desired = desired

    def state(self, node: FleetNode, kind: SnapshotType | None = None) -> NodeState:
        """Return a node's state for one type, or for all."""
        if kind is None:
            return node_state(node, self._desired.desired(node.labels), SNAPSHOT_TYPES)
        desired = self._desired.desired_of(kind, node.labels)
        return node_state(node, {} if desired is None else {kind: desired}, (kind,))

    def census(self) -> dict[str, int]:
        """Return the number of nodes in each state."""
        counts = dict.fromkeys((state.value for state in NodeState), 0)
        for node in self._fleet.nodes.values():
            counts[self.state(node).value] += 1
        return counts

    def generations(self) -> dict[str, int]:
        """Return the wanted generation by type, as of the last read of the database."""
        return {str(kind): number for kind, number in self._desired.generations.items()}

    def lags(self) -> Iterator[GenerationLag]:
        """Yield how far each node is behind, and whether it drifted or refused the newest, for each type."""
        for node in self._fleet.nodes.values():
            for kind, desired in self._desired.desired(node.labels).items():
                observed = self._observed(node, kind)
                if kind not in node.observed and desired.is_optional:
                    continue
                generation = 0 if observed is None else observed.generation
                drifted = (
                    observed is not None and generation == desired.generation and observed.digest != desired.digest
                )
                nacked = self.state(node, kind) is NodeState.NACKED
                yield GenerationLag(node.name, kind, max(desired.generation - generation, 0), drifted, nacked)

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
        by_node = {
            node.name: self._on_node(node, record, whole=whole, gpu_copies=gpu_copies, resident=resident)
            for node in nodes
        }
        living = [node for node in nodes if not node.lost]
        return RecordStatus(
            accepted=True,
            applied=bool(living) and all(by_node[node.name].conditions[0].status == "True" for node in living),
            nodes=by_node,
            conditions=[
                accepted(record),
                *over_all(
                    record, [(node.name, by_node[node.name].conditions) for node in living], no_node(selector, nodes)
                ),
            ],
        )

    def _on_node(
        self, node: FleetNode, record: RecordState, *, whole: bool, gpu_copies: bool, resident: bool
    ) -> NodeProgress:
        """Return a node's progress. `gpu_copies` and `resident`: at least one node of the record has GPU copies, or has
        blocks of the pin."""
        kind = record.kind
        observed = self._observed(node, kind)
        state = self.state(node, kind)
        is_applied = self._applied(node, kind, record.generation)
        if state is NodeState.IN_SYNC and not is_applied:
            state = NodeState.BEHIND  # committed a moment ago: the push worker has not run yet
        applied = applied_on(node, record, state, is_applied, self.faults(node, kind), whole=whole)
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

    def faults(self, node: FleetNode, kind: SnapshotType) -> list[Fault]:
        """Return why the node refused the newest snapshot; empty if it did not. Paths name tiers instead of their
        positions."""
        refusal = node.refused.get(kind)
        if refusal is None or refusal.generation != self._desired.generations.get(kind):
            return []
        if kind != "tiers":
            return list(refusal.faults)
        return with_names(refusal.faults, self._desired.names(kind, node.labels))

    def _applied(self, node: FleetNode, kind: SnapshotType, generation: int) -> bool:
        observed = self._observed(node, kind)
        desired = self._desired.desired_of(kind, node.labels)
        if kind not in node.observed and desired is not None and desired.is_optional:
            return desired.generation >= generation
        if observed is None or desired is None or observed.generation < generation:
            return False
        # At the newest generation the digest must match, too: the node's labels may have changed meanwhile.
        return observed.generation != desired.generation or observed.digest == desired.digest

    def _observed(self, node: FleetNode, kind: SnapshotType) -> Observed | None:
        """Return what the node has applied, if it comes from this database."""
        observed = node.observed.get(kind)
        if observed is None or kind not in self._desired.generations or observed.store != self._desired.store:
            return None
        return observed

    async def wait(self, kind: SnapshotType, generation: int, timeout_s: float, name: str = "") -> None:
        """Wait until every living node has applied or refused the generation, at most `timeout_s` seconds. For pins,
        also wait until the nodes that applied it have reported how many of the blocks they cache, and for the tier
        `name`, whether it is open."""
        if not timeout_s:
            return
        deadline = time.monotonic() + timeout_s

        def settled() -> bool:
            living = self._fleet.living()
            return bool(living) and all(
                self._applied(node, kind, generation) or self._refused(node, kind, generation) for node in living
            )

        await self._fleet.change_signal.until(settled, timeout_s)
        while (
            (kind == "pins" or (kind == "tiers" and name))
            and not self._reported(kind, generation, name)
            and (left_s := deadline - time.monotonic()) > 0
        ):
            await self._fleet.change_signal.wait(min(LOOK_S, left_s))

    def _reported(self, kind: SnapshotType, generation: int, tier: str) -> bool:
        """Return whether every living node that applied this generation has published stats since, and neither opens
        nor closes the tier."""
        return all(
            node.stats is not None
            and (observed := node.stats.observed.get(kind)) is not None
            and observed.generation >= generation
            and not any(
                tier_stats.name == tier and tier_stats.state in ("opening", "closing")
                for tier_stats in node.stats.tiers
            )
            for node in self._fleet.living()
            if self._applied(node, kind, generation)
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
            reasons.append(f"{behind} of {len(living)} nodes have not applied the current records")
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


def with_names(faults: Sequence[Fault], tier_names: Sequence[str]) -> list[Fault]:
    """Return faults with paths such as `tiers.nvme.budget_bytes` for `tiers[0].budget_bytes`, given the names in the
    order of the snapshot."""

    def named(match: re.Match[str]) -> str:
        number = int(match[1])
        return f"tiers.{tier_names[number]}" if number < len(tier_names) else match[0]

    return [Fault(_POSITION.sub(named, fault.path, 1), fault.code, fault.message) for fault in faults]


def _has_blocks(node: FleetNode, pin: str) -> bool:
    """Return whether the node has blocks of the pin, by its last stats."""
    return not node.lost and pin in node.pins and holds_blocks(node.pins[pin])


def _has_gpu_copies(node: FleetNode) -> bool:
    """Return whether a GPU of the node keeps GPU copies, by its last stats."""
    return node.live_stats is not None and keeps_gpu_copies(node.live_stats.gpu_copy_pools)


def _gateway_problem(node: FleetNode) -> str:
    """Return why new workers cannot map the memory of the node's gateway; empty when they can."""
    stats = node.live_stats
    return "" if stats is None or stats.gateway is None else stats.gateway.problem
