"""The only way to change records: records, audit entries and new generations in one transaction, then a notification.

The transaction first locks the generations of its types, in a fixed order. So changes of a type are serialized, and a
generation is exactly the state after its commit. If the process dies after the commit, the generation row causes the
push later.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from sqlalchemy.ext.asyncio import AsyncSession

from app.ingest.fleet import Fleet
from app.observe.catalogue import PlaneEvent, name_of
from app.observe.catalogue.records import RecordsChanged
from app.observe.events import EventBus, fields_of
from app.services.base import snapshot_sizes
from app.services.base.principals import Principal
from app.services.base.snapshot_sizes import size_of
from app.store.access import audit
from app.store.access.audit import AuditRow
from app.store.base import notify
from app.store.base.database import Database
from app.store.base.notify import Notification
from app.store.records import bulk, generations, snapshot_size
from app.store.records.snapshot_size import SnapshotSize
from dataplane.base import tracing
from dataplane.protocol.control.records import MAX_PINNED_KEYS
from dataplane.protocol.control.snapshots import SNAPSHOT_TYPES, SnapshotType

MAX_EVENTS = 200
"""Largest number of events per change; more would displace all other events from the backlogs of subscribers."""
Action = Literal["create", "update", "delete"]


class ChangeEvents:
    """Events of one change, with their nodes. If it changes too many records, their numbers replace their events."""

    def __init__(self) -> None:
        self._single: list[tuple[PlaneEvent, str]] = []
        self._records: list[PlaneEvent] = []
        self._counts: Counter[tuple[SnapshotType, int, Action]] = Counter()

    def add(self, event: PlaneEvent, node: str = "") -> None:
        self._single.append((event, node))

    def add_record(self, event: PlaneEvent, kind: SnapshotType, generation: int, action: Action) -> None:
        self._counts[kind, generation, action] += 1
        if len(self._records) <= MAX_EVENTS:
            self._records.append(event)

    def all(self) -> list[tuple[PlaneEvent, str]]:
        records = self._records
        if len(records) > MAX_EVENTS:
            records = [
                RecordsChanged(
                    kind, generation, *(self._counts[kind, generation, action] for action in get_args(Action))
                )
                for kind, generation in dict.fromkeys(key[:2] for key in self._counts)
            ]
        return [*self._single, *((event, "") for event in records)]


@dataclass
class Change:
    """A transaction in progress. A type without a `made` record keeps its generation."""

    session: AsyncSession
    by: Principal
    now: float
    """Unix seconds."""
    generations: dict[SnapshotType, int]
    """The generation that each type gets if one of its records is `made`."""
    entries: list[AuditRow] = field(default_factory=list)
    growth: dict[SnapshotType, SnapshotSize] = field(default_factory=dict)
    """Growth of each type with a changed record."""
    events: ChangeEvents = field(default_factory=ChangeEvents)

    def made(
        self,
        kind: SnapshotType,
        action: Action,
        noun: str,
        name: str,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
        event: PlaneEvent,
    ) -> None:
        """Record the change of a record of a type that nodes receive."""
        row = entry(self.by, self.now, action, noun, name, before, after)
        row.type, row.generation = kind, self.generations[kind]
        self.entries.append(row)
        self.events.add_record(event, kind, self.generations[kind], action)
        growth = size_of(kind, name, after) - size_of(kind, name, before)
        self.growth[kind] = self.growth.get(kind, SnapshotSize()) + growth

    def noted(
        self,
        action: str,
        noun: str,
        name: str,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        *,
        event: PlaneEvent,
        node: str = "",
    ) -> None:
        """Record another action, which is audited but not sent to nodes. `node`: the node that the event is about."""
        self.entries.append(entry(self.by, self.now, action, noun, name, before, after))
        self.events.add(event, node)


def entry(
    by: Principal,
    now: float,
    action: str,
    noun: str,
    name: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    *,
    denied: str = "",
) -> AuditRow:
    """Return an audit entry; `denied` is the reason for a refusal, empty if the action was allowed."""
    return AuditRow(
        at=now,
        actor=by.actor,
        token_id=by.token_id,
        source=by.source,
        action=action,
        kind=noun,
        name=name[:256],
        type="",
        generation=0,
        before=None if before is None else dict(before),
        after=None if after is None else dict(after),
        request_id=by.request_id,
        trace_id=by.trace_id,
        decision="denied" if denied else "allowed",
        reason=denied,
    )


class Changes:
    """Opens changes, and publishes their events after the commit."""

    def __init__(self, database: Database, fleet: Fleet, bus: EventBus) -> None:
        self._database = database
        self._fleet = fleet
        self._bus = bus
        self._weights: dict[SnapshotType, tuple[int, SnapshotSize]] = {}
        """Upper bound of the size of the records of a type at a generation."""

    @asynccontextmanager
    async def begin(self, by: Principal, *kinds: SnapshotType, dry_run: bool = False) -> AsyncIterator[Change]:
        """Open a change of records of these types (none: of records that nodes do not receive). Commits at the end of
        the block; a dry run undoes everything there, and the records of the block stay readable. Raises
        StoreUnavailable; Conflict if the result would be too large to send to nodes."""
        traceparent = tracing.traceparent()
        async with self._database.write() as session:
            numbers: dict[SnapshotType, int] = {}
            for kind in SNAPSHOT_TYPES:
                if kind in kinds:
                    numbers[kind] = await generations.lock(session, kind) + 1
            change = Change(session, by, time.time(), numbers)
            yield change
            sizes = {kind: await self._weighed(change, kind) for kind in numbers if kind in change.growth}
            if dry_run:
                await session.flush()
                session.expunge_all()
                await session.rollback()
                return
            if not change.entries:
                return
            for kind in sizes:
                await generations.advance(session, kind, numbers[kind], change.now, traceparent)
            while change.entries:  # batches give other tasks a turn and release written rows
                batch = change.entries[: bulk.BATCH]
                del change.entries[: bulk.BATCH]
                await audit.append(session, batch)
                await session.flush()
            await self._notify(change)
        self._weights |= {kind: (numbers[kind], weight) for kind, weight in sizes.items()}
        for kind in sizes:
            self._fleet.change_traces.note(kind, numbers[kind], traceparent)
        self._fleet.change_signal.notify()
        self._publish(change)

    async def _weighed(self, change: Change, kind: SnapshotType) -> SnapshotSize:
        """Return an upper bound of the size of all records of the type after the change. Raises Conflict if the size
        exceeds the limits."""
        growth = change.growth[kind]
        number, stored = self._weights.get(kind, (-1, SnapshotSize()))
        added = growth
        if number != change.generations[kind] - 1:  # another manager wrote: what it updated counts twice
            await change.session.flush()
            added = await snapshot_size.weight(change.session, kind, since=number)
        after = stored + added
        if not snapshot_sizes.fits(after):
            await change.session.flush()
            after = await snapshot_size.weight(change.session, kind)
        exact = after
        if after.keys > MAX_PINNED_KEYS and growth.keys > 0:
            await change.session.flush()
            exact = replace(after, keys=await snapshot_size.distinct_keys(change.session))
        snapshot_sizes.check(kind, exact, growth)
        return after

    async def note(
        self,
        action: str,
        noun: str,
        name: str,
        after: Mapping[str, Any] | None,
        by: Principal,
        event: PlaneEvent,
        node: str = "",
    ) -> None:
        """Audit an action that changes no record, before it happens. Raises StoreUnavailable."""
        async with self.begin(by) as change:
            change.noted(action, noun, name, None, after, event=event, node=node)

    async def denied(
        self, action: str, noun: str, name: str, after: Mapping[str, Any] | None, by: Principal, reason: str
    ) -> None:
        """Audit the refusal of an action. It has no event. Raises StoreUnavailable."""
        async with self._database.write() as session:
            await audit.append(session, [entry(by, time.time(), action, noun, name, None, after, denied=reason)])

    async def _notify(self, change: Change) -> None:
        """Notify the other managers with the events of a change."""
        notifications = [
            Notification(name_of(event), change.now, fields_of(event), node, change.by.actor)
            for event, node in change.events.all()
        ]
        await notify.post(change.session, notifications)

    def _publish(self, change: Change) -> None:
        for event, node in change.events.all():
            self._bus.publish(event, node=node, actor=change.by.actor, at=change.now)
