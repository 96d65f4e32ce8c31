"""The only way to change records: records, audit entries and new generations in one transaction, then a notification.

The transaction first locks the generations of its types, in a fixed order. So changes of a type are serialized, and a
generation is exactly the state after its commit. If the process dies after the commit, the generation row causes the
push later.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from app.ingest.fleet import Fleet
from app.observe.events import EventBus
from app.services.base import snapshot_sizes
from app.services.base.principals import Principal
from app.services.base.snapshot_sizes import SnapshotGrowth
from app.store.access import audit
from app.store.access.audit import AuditRow
from app.store.base import notify
from app.store.base.database import Database
from app.store.base.notify import Notification
from app.store.records import bulk, generations, snapshot_size
from app.store.records.snapshot_size import SnapshotSize
from dataplane.protocol.control import MAX_PINNED_KEYS, SNAPSHOT_TYPES, SnapshotType

MAX_EVENTS = 200
"""Largest number of events per change; more would displace all other events from the backlogs of subscribers."""
Action = Literal["create", "update", "delete"]
NOUNS: dict[SnapshotType, str] = {"quotas": "quota", "pins": "pin", "policies": "policy"}


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
    growth: dict[SnapshotType, SnapshotGrowth] = field(default_factory=dict)
    """Growth of each type with a changed record."""

    def made(
        self,
        kind: SnapshotType,
        action: Action,
        name: str,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> None:
        """Record the change of a record of a type that nodes receive."""
        self._add(action, NOUNS[kind], name, before, after, kind)
        self.growth.setdefault(kind, SnapshotGrowth()).add(kind, name, before, after)

    def noted(
        self,
        action: str,
        noun: str,
        name: str,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
    ) -> None:
        """Record another action, which is audited but not sent to nodes."""
        self._add(action, noun, name, before, after, None)

    def _add(
        self,
        action: str,
        noun: str,
        name: str,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
        kind: SnapshotType | None,
    ) -> None:
        row = entry(self.by, self.now, action, noun, name, before, after)
        if kind is not None:
            row.type, row.generation = kind, self.generations[kind]
        self.entries.append(row)


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
        """Size of the records of a type at a generation."""

    @asynccontextmanager
    async def begin(self, by: Principal, *kinds: SnapshotType) -> AsyncIterator[Change]:
        """Open a change of records of these types (none: of records that nodes do not receive). Commits at the end of
        the block. Raises StoreUnavailable; Conflict if the result would be too large to send to nodes."""
        async with self._database.write() as session:
            numbers: dict[SnapshotType, int] = {}
            for kind in SNAPSHOT_TYPES:
                if kind in kinds:
                    numbers[kind] = await generations.lock(session, kind) + 1
            change = Change(session, by, time.time(), numbers)
            yield change
            if not change.entries:
                return
            made = {kind: await self._weighed(change, kind) for kind in numbers if kind in change.growth}
            for kind in numbers:
                if kind in made:
                    await generations.advance(session, kind, numbers[kind], change.now)
            collected = _ChangeEvents()
            while change.entries:  # batches give other tasks a turn and release written rows
                batch = change.entries[: bulk.BATCH]
                del change.entries[: bulk.BATCH]
                await audit.append(session, batch)
                await session.flush()
                collected.add(batch)
            events = collected.events()
            await notify.post(session, events)
        self._weights |= {kind: (numbers[kind], weight) for kind, weight in made.items()}
        self._fleet.change_signal.notify()
        self._publish(events)

    async def _weighed(self, change: Change, kind: SnapshotType) -> SnapshotSize:
        """Return the size of all records of the type after the change. Raises Conflict if it exceeds the limits."""
        growth = change.growth[kind]
        number, known = self._weights.get(kind, (-1, None))
        if known is not None and number == change.generations[kind] - 1:
            after = SnapshotSize(
                known.records + growth.records, known.bytes + growth.bytes, known.keys + growth.keys
            )
        else:
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
        denied: str = "",
    ) -> None:
        """Audit an action that changes no record, before it happens or after its refusal. Raises StoreUnavailable."""
        row = entry(by, time.time(), action, noun, name, None, after, denied=denied)
        collected = _ChangeEvents()
        collected.add([row])
        events = collected.events()
        async with self._database.write() as session:
            await audit.append(session, [row])
            await notify.post(session, events)
        self._publish(events)

    def _publish(self, events: Sequence[Notification]) -> None:
        for event in events:
            self._bus.publish(event.name, event.node, event.actor, at=event.at, **event.fields)


class _ChangeEvents:
    """Collects the events to publish: one for each changed record or, if there are too many, their counts."""

    def __init__(self) -> None:
        self._each: list[Notification] = []
        self._at = 0.0
        self._actor = ""
        self._counts: Counter[tuple[str, int, str]] = Counter()

    def add(self, rows: Iterable[AuditRow]) -> None:
        for row in rows:
            if row.decision == "denied":
                continue
            self._at, self._actor = row.at, row.actor
            self._counts[row.type, row.generation, row.action] += 1
            if len(self._each) <= MAX_EVENTS:
                self._each.append(_event(row))

    def events(self) -> list[Notification]:
        if len(self._each) <= MAX_EVENTS:
            return self._each
        return [
            Notification(
                f"{kind or 'records'}.changed",
                self._at,
                {"action": action, "count": count, "generation": number},
                actor=self._actor,
            )
            for (kind, number, action), count in self._counts.items()
        ]


def _event(row: AuditRow) -> Notification:
    if row.type:
        fields = {"name": row.name, "action": row.action, "generation": row.generation}
        return Notification(f"{row.kind}.changed", row.at, fields, actor=row.actor)
    node = row.name if row.kind == "node" else ""
    return Notification(f"{row.kind}.{row.action}", row.at, {"name": row.name}, node, row.actor)
