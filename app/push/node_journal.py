"""Records the answers of nodes in the database, so that every manager sees them, also after a restart.

Pushes do not wait for this: answers are queued, and `run` writes them in batches. While the database is unavailable,
the queue grows up to a limit. A batch of pushes deletes the oldest ones: a large fleet records hundreds a second.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.ingest.fleet import Address, Fleet, FleetNode, SnapshotRefusal
from app.store.base import notify
from app.store.base.database import Database
from app.store.base.notify import Notification
from app.store.fleet import nodes, pushes
from app.store.records import generations, pins
from app.store.retention import delete_below, newest
from dataplane.protocol.control.snapshots import SNAPSHOT_TYPES, Fault, SnapshotType
from dataplane.protocol.observed import Observed

MAX_WAITING = 1_000
"""Maximum number of queued answers; beyond it the oldest are dropped."""
AT_ONCE = 100
MAX_DELETED = 1_000
"""Maximum number of old pushes that one batch deletes: more than it adds, so that an excess shrinks."""
_STORED = (
    "name",
    "control_url",
    "events_url",
    "epoch",
    "pid",
    "release",
    "engine_socket",
    "capacity_bytes",
    "seen_at",
    "public_key",
    "joined_by",
)
"""Fields of a node that its row has as they are."""


@dataclass(frozen=True)
class _Entry:
    """A node's answer that is yet to be written. The node's state is read when the answer is written."""

    node: FleetNode
    kinds: Sequence[SnapshotType]
    push: dict[str, Any] | None = None
    """Columns of the answered push; None for an answer to a hello."""
    event: Notification | None = None


class NodeJournal:
    """Database records of nodes, their observations, and pushes."""

    def __init__(self, database: Database, max_kept_pushes: int) -> None:
        """`max_kept_pushes`: number of the newest pushes that are kept."""
        self._database = database
        self._max_kept_pushes = max_kept_pushes
        self._pending: deque[_Entry] = deque()
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._may_be_written = False
        """Whether the last attempt to write the queue may have succeeded."""
        self._log = structlog.get_logger()

    async def load(self, fleet: Fleet, now: float) -> None:
        """Load the nodes of earlier runs. They are joining until they answer, and lost if they do not."""
        async with self._database.read() as session:
            for row in await nodes.all_nodes(session):
                fleet.nodes[row.name] = stored_node(row, now)
            for observation in await nodes.all_observations(session):
                node = fleet.nodes[observation.node]
                if observation.store:
                    node.note_applied(observation.type, observation.generation, observation.updated_at)
                    node.observed[observation.type] = Observed(
                        observation.generation, observation.digest, observation.store
                    )
                if observation.nacked_generation is not None:
                    node.refused[observation.type] = _refusal(observation)

    async def catch_up(self, fleet: Fleet, now: float) -> None:
        """Load changes of nodes since: nodes that joined, moved or were forgotten, and their labels and draining. What
        is read while this manager itself changes some may be older than that, and is left for the next time."""
        before = {name: _intent(node) for name, node in fleet.nodes.items()}
        async with self._database.read() as session:
            rows = {row.name: row for row in await nodes.all_nodes(session)}
        if before != {name: _intent(node) for name, node in fleet.nodes.items()}:
            return
        changed = False
        for name, row in rows.items():
            node = fleet.nodes.get(name)
            if node is None or node.public_key != row.public_key:
                if not row.public_key:
                    continue
                fleet.nodes[name] = stored_node(row, now)
                changed = True
                continue
            changed |= apply_row(node, row)
        for node in [node for node in fleet.nodes.values() if node.public_key and node.name not in rows]:
            del fleet.nodes[node.name]
            changed = True
        if changed:
            fleet.change_signal.notify()

    async def run(self) -> None:
        """Write queued answers forever.

        Raises StoreUnavailable when the database is unavailable; the caller then starts it again.
        """
        while True:
            if not self._pending:
                await self._wake.wait()
            self._wake.clear()
            await self.flush()

    def record_join(self, node: FleetNode) -> None:
        """Queue the answer to a hello, with the node's observed state."""
        self._add(_Entry(node, SNAPSHOT_TYPES))

    async def desired_capacity(self, name: str) -> int | None:
        """Return the capacity in bytes to which the node's pool was last resized, if it was."""
        async with self._database.read() as session:
            return await nodes.desired_capacity(session, name)

    def record_push(self, node: FleetNode, kind: SnapshotType, push: pushes.PushRow, event: Notification) -> None:
        """Queue the end of a push and the resulting state. The other managers are notified with the event `event`."""
        self._add(_Entry(node, (kind,), {name: getattr(push, name) for name in pushes.COLUMNS}, event))

    def _add(self, entry: _Entry) -> None:
        self._pending.append(entry)
        if len(self._pending) > MAX_WAITING:
            lost = self._pending.popleft()
            self._log.warning("push.not_recorded", node=lost.node.name, waiting=MAX_WAITING)
        self._wake.set()

    async def flush(self) -> None:
        """Write all queued answers. Raise StoreUnavailable; nothing is lost."""
        async with self._writing:
            while self._pending:
                batch = list(self._pending)[:AT_ONCE]
                may_be_written, self._may_be_written = self._may_be_written, True
                async with self._database.write(light=True) as session:
                    await self._write(session, batch, may_be_written)
                self._may_be_written = False
                for entry in batch:
                    if self._pending and self._pending[0] is entry:  # otherwise it was dropped meanwhile
                        self._pending.popleft()

    async def _write(self, session: AsyncSession, batch: list[_Entry], may_be_written: bool) -> None:
        for entry in batch:
            if entry.push is not None and not (may_be_written and await pushes.exists(session, **entry.push)):
                session.add(pushes.PushRow(**entry.push))
        if any(entry.push is not None for entry in batch):
            oldest = newest(pushes.PushRow.id, self._max_kept_pushes)
            await delete_below(session, pushes.PushRow.id, oldest, MAX_DELETED)
        kinds_by_node: dict[tuple[str, str], tuple[FleetNode, set[SnapshotType]]] = {}
        for entry in batch:
            identity = entry.node.name, entry.node.public_key
            kinds_by_node.setdefault(identity, (entry.node, set()))[1].update(entry.kinds)
        for node, kinds in kinds_by_node.values():
            if not await _save(session, node):
                continue
            for kind in kinds:
                await nodes.save_observation(session, _observation(node, kind))
        await notify.post(session, [entry.event for entry in batch if entry.event is not None])

    async def learn_refusals(self, fleet: Fleet, node: FleetNode) -> None:
        """Load the node's refusals that the leader has recorded. Raise StoreUnavailable."""
        async with self._database.read() as session:
            rows = await nodes.observations(session, node.name)
        refused = {row.type: _refusal(row) for row in rows if row.nacked_generation is not None}
        if refused != node.refused:
            node.refused = refused
            fleet.change_signal.notify()

    async def move_ends(self, pin_ends: dict[str, float], reported_at: float, least_s: float) -> list[str]:
        """Record pin ends that hits have moved, as a new generation, because a process that starts later knows no hits.

        `pin_ends` are Unix seconds by pin name, as of `reported_at`. An end must have moved by `least_s`, or by half
        of the pin's own refresh time if that is more (0: any distance). Returns the names of the updated pins.
        """
        async with self._database.read() as session:
            if not _moved(await pins.refreshing(session), pin_ends, reported_at, least_s):
                return []
        async with self._database.write() as session:
            generation = await generations.lock(session, "pins") + 1
            moved = _moved(await pins.refreshing(session), pin_ends, reported_at, least_s)
            for row, end in moved:
                row.expires_at, row.generation = end, generation
            if moved:
                await generations.advance(session, "pins", generation, time.time())
        return [row.name for row, _ in moved]

    async def overtake(self, kind: SnapshotType, generation: int) -> None:
        """Advance a type's generation beyond one that a node has seen. Needed after a database was restored."""
        async with self._database.write() as session:
            if await generations.lock(session, kind) < generation:
                await generations.advance(session, kind, generation + 1, time.time())


def _refusal(row: nodes.ObservationRow) -> SnapshotRefusal:
    faults = msgspec.convert(row.faults or [], list[Fault])
    return SnapshotRefusal(row.nacked_generation or 0, row.nacked_at or 0.0, faults)


async def _save(session: AsyncSession, node: FleetNode) -> bool:
    """Save a node and return whether it is still known.

    A node that joined is first recorded by its enrolment. It may be forgotten while its answer is on the way, and
    another node may join under its name: the row then has another key.
    """
    row = _node_row(node)
    stored = await session.get(nodes.NodeRow, node.name)
    if node.public_key != ("" if stored is None else stored.public_key):
        return False
    await nodes.save_node(session, row)
    return True


def _moved(
    rows: Sequence[pins.PinRow], pin_ends: dict[str, float], reported_at: float, least_s: float
) -> list[tuple[pins.PinRow, float]]:
    """Return rows with their later ends. A hit cannot have moved an end beyond `reported_at` plus the refresh time."""
    moved = []
    for row in rows:
        if row.name not in pin_ends or row.expires_at is None or row.refresh_s is None or row.updated_at > reported_at:
            continue
        end = min(pin_ends[row.name], reported_at + row.refresh_s)
        if end - row.expires_at > (max(least_s, row.refresh_s / 2) if least_s else 0):
            moved.append((row, end))
    return moved


def _node_row(node: FleetNode) -> nodes.NodeRow:
    return nodes.NodeRow(
        **{name: getattr(node, name) for name in _STORED},
        first_seen_at=node.seen_at,
        reported_labels=node.reported_labels or None,
    )


def stored_node(row: nodes.NodeRow, now: float) -> FleetNode:
    """Return a node as recorded in the database."""
    node = FleetNode(
        **{name: getattr(row, name) for name in _STORED}, seen=now, reported_labels=dict(row.reported_labels or {})
    )
    apply_row(node, row)
    return node


def apply_row(node: FleetNode, row: nodes.NodeRow) -> bool:
    """Apply other managers' changes of a node. Return whether anything changed."""
    before = _intent(node)
    if row.public_key:
        node.control_url, node.events_url = row.control_url, row.events_url
    node.own_labels, node.draining = dict(row.labels or {}), row.draining
    if node.address != before[0]:
        node.welcomed = False
    return before != _intent(node)


def _intent(node: FleetNode) -> tuple[Address, str, dict[str, str], bool]:
    """Return what managers change of a node."""
    return node.address, node.events_url, node.own_labels, node.draining


def _observation(node: FleetNode, kind: SnapshotType) -> nodes.ObservationRow:
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
