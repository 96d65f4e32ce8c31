"""Expiries of tokens: an event for each, also for those while no manager was running, and the next ones for metrics, so
that an alert can fire before callers lose access."""

import time

from app.observe.catalogue import name_of
from app.observe.catalogue.access import TokenExpired
from app.observe.events import EventBus, fields_of
from app.schemas.base.listing import PageRequest
from app.schemas.views.events import EventFilters
from app.store.access import tokens
from app.store.base import notify
from app.store.base.database import Database
from app.store.base.notify import Notification
from app.store.views import events

LATE_S = 86_400.0
"""Age in seconds beyond which an expiry is no longer published."""
MOST = 1_000
SHOWN = 50
PAST_S = 86_400.0
"""Seconds for which an expired token is still among those that expire next."""


class TokenExpiries:
    """Call `read` on every manager, and `publish` on the leader."""

    def __init__(self, database: Database, bus: EventBus) -> None:
        self._database = database
        self._bus = bus
        self._published: set[tuple[str, float]] = set()
        """Token ids and expiry times of the published events."""
        self.next: list[tuple[str, float]] = []
        """Names of tokens and the Unix seconds at which they expire, soonest first."""

    async def read(self) -> None:
        """Read the tokens that expire next. Raises StoreUnavailable."""
        async with self._database.read() as session:
            self.next = await tokens.ending(session, time.time() - PAST_S, SHOWN)

    async def publish(self, now: float) -> None:
        """Publish the expiries that have no event yet. Raises StoreUnavailable."""
        name, since = name_of(TokenExpired), now - LATE_S
        async with self._database.read() as session:
            expired = {(row.id, row.expires_at): row.name for row in await tokens.expired(session, since, now)}
            if expired.keys() <= self._published:
                return
            stored = await events.page(session, PageRequest(MOST), EventFilters(name, since=since))
        self._published |= {(str(row.fields.get("token_id")), row.at) for row in stored.rows}
        expiries = [
            (TokenExpired(token, token_id), at)
            for (token_id, at), token in expired.items()
            if (token_id, at) not in self._published
        ]
        async with self._database.write(light=True) as session:
            notifications = [Notification(name, at, fields_of(event)) for event, at in expiries]
            await notify.post(session, notifications)
        self._published = set(expired)
        for event, at in expiries:
            self._bus.publish(event, at=at)
