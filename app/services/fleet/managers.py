"""The managers that share the database: registers this one, and lists all."""

import os
import socket
import time
from collections.abc import Callable, Sequence

from app.ingest.fleet import Fleet
from app.observe.catalogue import name_of
from app.observe.catalogue.service import ManagerDemoted, ManagerPromoted
from app.observe.events import EventBus, fields_of
from app.schemas.fleet.managers import ManagerAnswer, ManagerList
from app.services.base.fields import answer
from app.store.base import notify
from app.store.base.database import Database
from app.store.base.notify import Notification
from app.store.fleet import managers
from app.store.fleet.managers import ManagerRow

CONFIRM_INTERVAL_S = 2.0
ALIVE_S = 10.0


class Managers:
    """Connects leadership, notifications of other managers and the `managers` table with the rest of the process."""

    def __init__(self, database: Database, pushes: Callable[[], bool], fleet: Fleet, bus: EventBus, url: str) -> None:
        """`pushes` returns whether this manager pushes to the nodes; `url` is that of its API, or empty."""
        self._database = database
        self._pushes = pushes
        self._fleet = fleet
        self._bus = bus
        self._host = socket.gethostname()[:128]
        self._started_at = time.time()
        self._pending: list[Notification] = []
        self._url = url

    @property
    def id(self) -> str:
        return self._database.origin

    async def page(self) -> ManagerList:
        """Return all managers. Raises StoreUnavailable."""
        async with self._database.read() as session:
            rows = await managers.all_managers(session)
            now = await managers.clock(session)
        items = [self._answer(row, now) for row in rows]
        return ManagerList(items, len(items))

    def _answer(self, row: ManagerRow, now: float) -> ManagerAnswer:
        alive = now - row.seen_at < ALIVE_S
        return answer(ManagerAnswer, row, pushing=row.pushing and alive, alive=alive, answering=row.id == self.id)

    async def run(self) -> None:
        """Register this manager periodically, forever. Raises StoreUnavailable."""
        while True:
            await self.notify()
            await self._fleet.change_signal.until(lambda: bool(self._pending), CONFIRM_INTERVAL_S)

    async def notify(self) -> None:
        """Write this manager's row, and notify the others of its changes of leadership. Raises StoreUnavailable."""
        pending = list(self._pending)
        row = ManagerRow(
            id=self.id,
            host=self._host,
            pid=os.getpid(),
            url=self._url,
            pushing=self._pushes(),
            started_at=self._started_at,
        )
        async with self._database.write() as session:
            await managers.save(session, row)
            if pending:
                await notify.post(session, pending)
        del self._pending[: len(pending)]

    async def leave(self) -> None:
        """Remove this manager's row at a clean stop. Raises StoreUnavailable."""
        async with self._database.write() as session:
            await managers.remove(session, self.id)

    def on_notifications(self, events: Sequence[Notification]) -> None:
        """Handle a commit of another manager."""
        for event in events:
            self._bus.relay(event.name, event.node, event.at, event.fields, event.actor)
        self.missed()

    def missed(self) -> None:
        """Wake all waiters: any state may have changed."""
        self._fleet.change_signal.notify()
        self._bus.touch()

    def on_election(self, leads: bool, reason: str) -> None:
        """Publish that this manager begins or stops to lead, and notify the others later."""
        event = (
            ManagerPromoted(self.id, self._host, os.getpid())
            if leads
            else ManagerDemoted(self.id, self._host, os.getpid(), reason)
        )
        self._bus.publish(event)
        self._pending = [*self._pending[-9:], Notification(name_of(event), time.time(), fields_of(event))]
        self._fleet.change_signal.notify()
