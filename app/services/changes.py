"""The one way records change: records, audit entries and new generations in one transaction, then a wake-up.

The locks on the types' generations come first, in one order, so changes of a type come one after another and a
generation is exactly the state after its commit. When the process dies after the commit, the generation row is what
makes the push happen later.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from app.ingest.fleet import Fleet
from app.observe.facts import FactHub
from app.services import snapshot_sizes
from app.services.callers import Caller
from app.services.snapshot_sizes import Growth
from app.store import audit, bulk, generations, notify, weights
from app.store.audit import AuditRow
from app.store.database import Database
from app.store.notify import Told
from app.store.weights import Weight
from dataplane.protocol.control import MAX_PINNED_KEYS, SNAPSHOT_TYPES, SnapshotType

MOST_FACTS = 200
"""Of one change; more would push everything else out of the backlogs of those who watch."""
Action = Literal["create", "update", "delete"]
NOUNS: dict[SnapshotType, str] = {"quotas": "quota", "pins": "pin", "policies": "policy"}


@dataclass
class Change:
    """A transaction in the making. A type of which nothing is `made` keeps its generation."""

    session: AsyncSession
    by: Caller
    now: float
    """Unix seconds."""
    generations: dict[SnapshotType, int]
    """What the generation of each type will be once something of it is made."""
    entries: list[AuditRow] = field(default_factory=list)
    growth: dict[SnapshotType, Growth] = field(default_factory=dict)
    """Of each type of which something was made."""

    def made(
        self,
        kind: SnapshotType,
        action: Action,
        name: str,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> None:
        """A record of a type that nodes are told of was changed."""
        self._add(action, NOUNS[kind], name, before, after, kind)
        self.growth.setdefault(kind, Growth()).add(kind, name, before, after)

    def noted(
        self,
        action: str,
        noun: str,
        name: str,
        before: dict[str, Any] | None = None,
        after: dict[str, Any] | None = None,
    ) -> None:
        """Something else was done that the audit keeps and nodes are not told of."""
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
    by: Caller,
    now: float,
    action: str,
    noun: str,
    name: str,
    before: Mapping[str, Any] | None = None,
    after: Mapping[str, Any] | None = None,
    *,
    denied: str = "",
) -> AuditRow:
    """An entry of the audit; with `denied`, why it was not allowed."""
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
    """Opens changes, and tells the others once they are committed."""

    def __init__(self, database: Database, fleet: Fleet, hub: FactHub) -> None:
        self._database = database
        self._fleet = fleet
        self._hub = hub
        self._weights: dict[SnapshotType, tuple[int, Weight]] = {}
        """Of the records of a type at a generation."""

    @asynccontextmanager
    async def begin(self, by: Caller, *kinds: SnapshotType) -> AsyncIterator[Change]:
        """A change of records of these types (none: of what nodes are not told). Commits at the end of the block.
        Raises StoreUnavailable; Conflict when nodes could not be sent what would be there."""
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
            told = _Told()
            while change.entries:  # in batches: others get a turn in between, and what is written is let go
                batch = change.entries[: bulk.BATCH]
                del change.entries[: bulk.BATCH]
                await audit.append(session, batch)
                await session.flush()
                told.add(batch)
            facts = told.facts()
            await notify.post(session, facts)
        self._weights |= {kind: (numbers[kind], weight) for kind, weight in made.items()}
        self._fleet.pulse.beat()
        self._tell(facts)

    async def _weighed(self, change: Change, kind: SnapshotType) -> Weight:
        """What all records of the type are after the change. Raises Conflict when that is too much."""
        growth = change.growth[kind]
        number, known = self._weights.get(kind, (-1, None))
        if known is not None and number == change.generations[kind] - 1:
            after = Weight(
                known.records + growth.records, known.bytes + growth.bytes, known.keys + growth.keys
            )
        else:
            await change.session.flush()
            after = await weights.weight(change.session, kind)
        exact = after
        if after.keys > MAX_PINNED_KEYS and growth.keys > 0:
            await change.session.flush()
            exact = replace(after, keys=await weights.distinct_keys(change.session))
        snapshot_sizes.check(kind, exact, growth)
        return after

    async def note(
        self, action: str, noun: str, name: str, asked: Mapping[str, Any] | None, by: Caller, denied: str = ""
    ) -> None:
        """Write down what is about to be done, or was refused, and changes no record. Raises StoreUnavailable."""
        row = entry(by, time.time(), action, noun, name, None, asked, denied=denied)
        told = _Told()
        told.add([row])
        facts = told.facts()
        async with self._database.write() as session:
            await audit.append(session, [row])
            await notify.post(session, facts)
        self._tell(facts)

    def _tell(self, facts: Sequence[Told]) -> None:
        for fact in facts:
            self._hub.publish(fact.name, fact.node, at=fact.at, **fact.fields)


class _Told:
    """What everybody who watches may know: each record that was changed, or of very many how many they were."""

    def __init__(self) -> None:
        self._each: list[Told] = []
        self._at = 0.0
        self._counts: Counter[tuple[str, int, str]] = Counter()

    def add(self, rows: Iterable[AuditRow]) -> None:
        for row in rows:
            if row.decision == "denied":
                continue
            self._at = row.at
            self._counts[row.type, row.generation, row.action] += 1
            if len(self._each) <= MOST_FACTS:
                self._each.append(_fact(row))

    def facts(self) -> list[Told]:
        if len(self._each) <= MOST_FACTS:
            return self._each
        return [
            Told(
                f"{kind or 'records'}.changed",
                self._at,
                {"action": action, "count": count, "generation": number},
            )
            for (kind, number, action), count in self._counts.items()
        ]


def _fact(row: AuditRow) -> Told:
    if row.type:
        fields = {"name": row.name, "action": row.action, "generation": row.generation}
        return Told(f"{row.kind}.changed", row.at, fields)
    return Told(f"{row.kind}.{row.action}", row.at, {"name": row.name})
