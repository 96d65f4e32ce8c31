"""The management planes that share the database: what this one tells of itself, and what all told."""

import asyncio
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from app.errors import StoreUnavailable
from app.ingest.fleet import Fleet
from app.observe.facts import FactHub
from app.push.lead import Lead
from app.schemas.replicas import ReplicaAnswer, ReplicaList
from app.store import notify, replicas
from app.store.database import Database
from app.store.notify import Told
from app.store.replicas import ReplicaRow

BEAT_S = 2.0
ALIVE_S = 10.0


class Replicas:
    """Joins the leadership, the others' notices and the `replicas` table to the rest of the process."""

    def __init__(self, database: Database, lead: Lead, fleet: Fleet, hub: FactHub) -> None:
        self._database = database
        self._lead = lead
        self._fleet = fleet
        self._hub = hub
        self._host = socket.gethostname()[:128]
        self._started_at = time.time()
        self._untold: list[Told] = []
        self.url = ""
        """Set by who binds the socket."""
        lead.turned = self._turned
        database.watch.tell = self._database_turned

    @property
    def id(self) -> str:
        return self._database.origin

    async def page(self) -> ReplicaList:
        """Raises StoreUnavailable."""
        async with self._database.read() as session:
            rows = await replicas.all_replicas(session)
            now = await replicas.clock(session)
        items = [self._answer(row, now) for row in rows]
        return ReplicaList(items, len(items))

    def _answer(self, row: ReplicaRow, now: float) -> ReplicaAnswer:
        alive = now - row.seen_at < ALIVE_S
        return ReplicaAnswer(
            id=row.id,
            host=row.host,
            pid=row.pid,
            url=row.url,
            pushing=row.pushing and alive,
            alive=alive,
            answering=row.id == self.id,
            started_at=row.started_at,
            seen_at=row.seen_at,
        )

    async def run(self) -> None:
        """Tell of ourselves, for ever. Raises StoreUnavailable."""
        while True:
            await self.beat()
            await self._fleet.pulse.until(lambda: bool(self._untold), BEAT_S)

    async def beat(self) -> None:
        """Write down who we are, and tell the others of our turns. Raises StoreUnavailable."""
        told = list(self._untold)
        row = ReplicaRow(
            id=self.id,
            host=self._host,
            pid=os.getpid(),
            url=self.url,
            pushing=self._lead.pushing,
            started_at=self._started_at,
        )
        async with self._database.write() as session:
            await replicas.save(session, row)
            if told:
                await notify.post(session, told)
        del self._untold[: len(told)]

    async def leave(self) -> None:
        """A clean end: nobody needs to wonder what became of us."""
        try:
            async with asyncio.timeout(1.0):
                async with self._database.write() as session:
                    await replicas.remove(session, self.id)
        except (StoreUnavailable, TimeoutError):
            return

    def heard(self, facts: Sequence[Told]) -> None:
        """Another replica committed something."""
        for fact in facts:
            self._hub.relay(fact.name, fact.node, fact.at, fact.fields)
        self.missed()

    def missed(self) -> None:
        """Anything may be different from what we know."""
        self._fleet.pulse.beat()
        self._hub.touch()

    def _turned(self, pushing: bool, reason: str) -> None:
        name = "replica.leading" if pushing else "replica.following"
        fields: dict[str, Any] = {"replica": self.id, "host": self._host, "pid": os.getpid()}
        if reason:
            fields["reason"] = reason
        self._hub.publish(name, **fields)
        self._untold = [*self._untold[-9:], Told(name, time.time(), fields)]
        self._fleet.pulse.beat()

    def _database_turned(self, away: bool, reason: str, seconds: float) -> None:
        if away:
            self._hub.publish("database.away", reason=reason)
        else:
            self._hub.publish("database.back", away_s=round(seconds, 3))
            self._fleet.pulse.beat()
