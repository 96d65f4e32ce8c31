"""Writes down what nodes answered, so that it is seen by every replica and after a restart."""

import time
from collections.abc import Sequence

import msgspec

from app.ingest.fleet import Fleet, Node, Refusal
from app.store import generations, nodes, pins, pushes
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

    async def wanted_capacity(self, name: str) -> int | None:
        """What the node's pool was last made to grow to, in bytes."""
        async with self._database.read() as session:
            return await nodes.wanted_capacity(session, name)

    async def ended(self, node: Node, kind: SnapshotType, push: pushes.PushRow) -> None:
        """A push and what it left the node with, in one transaction."""
        async with self._database.write() as session:
            await pushes.add(session, push)
            await nodes.save_node(session, _node_row(node))
            await nodes.save_observation(session, _observation(node, kind))

    async def move_ends(self, ends: dict[str, float], heard_at: float, least_s: float) -> list[str]:
        """Write down the ends of pins that hits have moved, as a new generation: a process that starts later knows no
        hits. `ends` are Unix seconds by name, as of `heard_at`; `least_s` is how far an end must have moved, or half of
        the pin's own refresh time if that is more (0: any). Names of the pins that were moved."""
        async with self._database.read() as session:
            if not _moved(await pins.refreshing(session), ends, heard_at, least_s):
                return []
        async with self._database.write() as session:
            generation = await generations.lock(session, "pins") + 1
            moved = _moved(await pins.refreshing(session), ends, heard_at, least_s)
            for row, end in moved:
                row.expires_at, row.generation = end, generation
            if moved:
                await generations.advance(session, "pins", generation, time.time())
        return [row.name for row, _ in moved]

    async def overtake(self, kind: SnapshotType, generation: int) -> None:
        """Our database was set back: number its state above what the node has seen."""
        async with self._database.write() as session:
            if await generations.lock(session, kind) <= generation:
                await generations.advance(session, kind, generation + 1, time.time())


def _moved(
    rows: Sequence[pins.PinRow], ends: dict[str, float], heard_at: float, least_s: float
) -> list[tuple[pins.PinRow, float]]:
    """Rows and their later ends. No hit can have moved an end further than the refresh time from when it was told."""
    found = []
    for row in rows:
        if (
            row.name not in ends
            or row.expires_at is None
            or row.refresh_s is None
            or row.updated_at > heard_at
        ):
            continue
        end = min(ends[row.name], heard_at + row.refresh_s)
        if end - row.expires_at > (max(least_s, row.refresh_s / 2) if least_s else 0):
            found.append((row, end))
    return found


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
