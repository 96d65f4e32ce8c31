"""The history of events: stores events in the database without blocking their publishers.

Events pass through a bounded queue and are written in batches. While the database is unavailable they wait; an event
that finds the queue full is dropped and counted.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any

import msgspec
import structlog

from app.errors import StoreUnavailable
from app.observe.events import LarderEvent
from app.schemas.base.listing import PageRequest
from app.schemas.views.events import EventAnswer, EventFilters, EventList, EventsNotKept
from app.store.base.database import Database
from app.store.views import events
from app.store.views.events import EventRow

DAY_S = 86_400.0
QUEUE = 5000
BATCH = 500
GATHER_S = 0.5
RETRY_S = 1.0
FLUSH_S = 1.0
MAX_BYTES = 16 * 1024
"""Largest size of one event's fields as JSON; larger fields are omitted."""
NOT_STORED = frozenset(
    {
        "admission.changed",
        "blocks.evicted",
        "blocks.refused",
        "blocks.stored",
        "push.acked",
        "reservation.aborted",
        "reservation.expired",
        "segment.created",
        "segment.retired",
        "snapshot.applied",
        "snapshot.refused",
    }
)
"""Events of normal operation that are not worth storing."""


class Events:
    """Stores events, and lists the stored ones."""

    def __init__(
        self, database: Database, *, retention_days: float = 30.0, lost: Callable[[], int] = lambda: 0
    ) -> None:
        """`lost` returns the number of events of nodes that did not arrive."""
        self._database = database
        self._retention_s = retention_days * DAY_S
        self._lost = lost
        self._queue: deque[LarderEvent] = deque()
        self._signal = asyncio.Event()
        self._log = structlog.get_logger()
        self.dropped = 0

    def offer(self, event: LarderEvent) -> None:
        """Queue an event to be stored. Never waits, never raises."""
        if event.name in NOT_STORED:
            return
        if len(self._queue) >= QUEUE:
            self.dropped += 1
            return
        self._queue.append(event)
        self._signal.set()

    async def run(self) -> None:
        """Write queued events forever."""
        while True:
            await self._signal.wait()
            await asyncio.sleep(GATHER_S)
            self._signal.clear()
            while self._queue:
                try:
                    await self._write()
                except StoreUnavailable:
                    await asyncio.sleep(RETRY_S)

    async def flush(self) -> None:
        """Write the queued events, if that is quick, before the process ends."""
        try:
            async with asyncio.timeout(FLUSH_S):
                while self._queue:
                    await self._write()
        except (StoreUnavailable, TimeoutError):
            self._log.warning("events.not_stored", events=len(self._queue))

    async def _write(self) -> None:
        """Write one batch. Raises StoreUnavailable."""
        batch = list(islice(self._queue, BATCH))
        async with self._database.write(light=True) as session:
            await events.append(session, [_row(event) for event in batch])
        for _ in batch:
            self._queue.popleft()

    async def page(self, page_request: PageRequest, filters: EventFilters) -> EventList:
        """Return a page of events, newest first by default. Raises Invalid."""
        sort = page_request.sort or "-at"
        async with self._database.read() as session:
            page = await events.page(
                session, PageRequest(page_request.limit, page_request.cursor, sort), filters
            )
        items = [
            EventAnswer(**{name: getattr(row, name) for name in EventAnswer.__struct_fields__})
            for row in page.rows
        ]
        not_kept = EventsNotKept(
            time.time() - self._retention_s, sorted(NOT_STORED), self.dropped, self._lost()
        )
        return EventList(items, page.total, page.next_cursor, not_kept)


def _row(event: LarderEvent) -> EventRow:
    """Return the row of an event. Nodes choose the fields, so fields that cannot be stored are replaced."""
    fields: dict[str, Any] = {}
    packed = msgspec.json.encode(event.fields)
    if len(packed) > MAX_BYTES or b"\\u0000" in packed:
        fields["left_out_bytes"] = len(packed)
    else:
        fields = msgspec.json.decode(packed)  # values that JSON cannot express, such as NaN, become null
    return EventRow(
        at=event.at, name=_name(event.name), node=_name(event.node), actor=_name(event.actor), fields=fields
    )


def _name(text: str) -> str:
    return text.replace("\0", "")[:128]
