"""The one way a record changes: record, audit entry and new generation in one transaction, then a wake-up.

The lock on the type's generation comes first, so changes of one type are ordered and a generation is exactly the state
after its commit. When the process dies after the commit, the generation row is what makes the push happen later.
"""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy.ext.asyncio import AsyncSession

from app.ingest.fleet import Fleet
from app.observe.facts import FactHub
from app.store import generations
from app.store.audit import AuditRow
from app.store.database import Database
from dataplane.protocol.control import SnapshotType

Action = Literal["create", "update", "delete"]
Deed = Literal["invalidate", "demote", "resize"]


@dataclass(frozen=True)
class Author:
    """Who asks, and by which request."""

    request_id: str
    actor: str = "local"


@dataclass
class Change:
    """A transaction in the making. Without `made`, nothing changes and no generation is used up."""

    session: AsyncSession
    generation: int
    """The generation that this change will be."""
    now: float
    action: Action | None = None
    name: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None

    def made(
        self, action: Action, name: str, before: dict[str, Any] | None, after: dict[str, Any] | None
    ) -> None:
        self.action, self.name, self.before, self.after = action, name, before, after


class Changes:
    """Opens changes, and tells the others once they are committed."""

    def __init__(self, database: Database, fleet: Fleet, hub: FactHub) -> None:
        self._database = database
        self._fleet = fleet
        self._hub = hub

    @asynccontextmanager
    async def begin(
        self, kind: SnapshotType, noun: Literal["quota", "pin", "policy"], by: Author
    ) -> AsyncIterator[Change]:
        """Commits at the end of the block. Raises StoreUnavailable."""
        async with self._database.write() as session:
            change = Change(session, await generations.lock(session, kind) + 1, time.time())
            yield change
            if change.action is None:
                return
            await generations.advance(session, kind, change.generation, change.now)
            session.add(
                AuditRow(
                    at=change.now,
                    actor=by.actor,
                    action=change.action,
                    kind=noun,
                    name=change.name,
                    type=kind,
                    generation=change.generation,
                    before=change.before,
                    after=change.after,
                    request_id=by.request_id,
                )
            )
        self._fleet.pulse.beat()
        self._hub.publish(
            f"{noun}.changed",
            at=change.now,
            name=change.name,
            action=change.action,
            generation=change.generation,
        )

    async def note(
        self, deed: Deed, noun: Literal["blocks", "node"], name: str, asked: dict[str, Any], by: Author
    ) -> None:
        """Write down what is about to be asked of nodes and changes no record. Raises StoreUnavailable."""
        now = time.time()
        async with self._database.write() as session:
            session.add(
                AuditRow(
                    at=now,
                    actor=by.actor,
                    action=deed,
                    kind=noun,
                    name=name,
                    type="",
                    generation=0,
                    before=None,
                    after=asked,
                    request_id=by.request_id,
                )
            )
        self._hub.publish(f"{noun}.{deed}", at=now, name=name)
