"""Writes down what nodes answered, so that it is seen by every replica and after a restart."""

import time

import msgspec

from app.ingest.fleet import Fleet, Node, Refusal
from app.store import generations, nodes, pushes
from app.store.database import Database
from dataplane.protocol.control import SNAPSHOT_TYPES, Fault, Observed, SnapshotType


class Ledger:
    """Nodes, what they observed, and pushes, in the database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self, fleet: Fleet, now: float) -> None:
        """Nodes of earlier runs: joining until they answer, lost when they don't."""
        async with self._database.read() as session:
            for row in await nodes.all_nodes(session):
                fleet.nodes[row.name] = Node(
                    name=row.name,
                    control_url=row.control_url,
                    events_url=row.events_url,
                    epoch=row.epoch,
                    pid=row.pid,
                    release=row.release,
                    engine_socket=row.engine_socket,
                    capacity_bytes=row.capacity_bytes,
                    seen=now,
                    seen_at=row.seen_at,
                )
            for seen in await nodes.all_observations(session):
                node = fleet.nodes[seen.node]
                if seen.store:
                    node.observed[seen.type] = Observed(seen.generation, seen.digest, seen.store)
                if seen.nacked_generation is not None:
                    faults = msgspec.convert(seen.faults or [], list[Fault])
                    node.refused[seen.type] = Refusal(seen.nacked_generation, seen.nacked_at or 0.0, faults)

    async def joined(self, node: Node) -> None:
        async with self._database.write() as session:
            await nodes.save_node(session, _node_row(node))
            for kind in SNAPSHOT_TYPES:
                await nodes.save_observation(session, _observation(node, kind))

    async def ended(self, node: Node, kind: SnapshotType, push: pushes.PushRow) -> None:
        """A push and what it left the node with, in one transaction."""
        async with self._database.write() as session:
            await pushes.add(session, push)
            await nodes.save_node(session, _node_row(node))
            await nodes.save_observation(session, _observation(node, kind))

    async def overtake(self, kind: SnapshotType, generation: int) -> None:
        """Our database was set back: number its state above what the node has seen."""
        async with self._database.write() as session:
            if await generations.lock(session, kind) <= generation:
                await generations.advance(session, kind, generation + 1, time.time())


def _node_row(node: Node) -> nodes.NodeRow:
    return nodes.NodeRow(
        name=node.name,
        control_url=node.control_url,
        events_url=node.events_url,
        epoch=node.epoch,
        pid=node.pid,
        release=node.release,
        engine_socket=node.engine_socket,
        capacity_bytes=node.capacity_bytes,
        first_seen_at=node.seen_at,
        seen_at=node.seen_at,
    )


def _observation(node: Node, kind: SnapshotType) -> nodes.ObservationRow:
    observed = node.observed.get(kind) or Observed(0, "", "")
    refusal = node.refused.get(kind)
    return nodes.ObservationRow(
        node=node.name,
        type=kind,
        store=observed.store,
        generation=observed.generation,
        digest=observed.digest,
        nacked_generation=refusal.generation if refusal else None,
        nacked_at=refusal.at if refusal else None,
        faults=[msgspec.structs.asdict(fault) for fault in refusal.faults] if refusal else None,
        updated_at=time.time(),
    )
