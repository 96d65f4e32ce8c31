"""The history of events: facts are kept in the database, and whoever publishes them never waits for it.

They go through a bounded queue and are written in batches. While the database is away they wait; what finds the queue
full is dropped and counted.
"""

import asyncio
from collections import deque
from itertools import islice
from typing import Any

import msgspec
import structlog

from app.errors import StoreUnavailable
from app.observe.facts import Fact
from app.schemas.events import EventAnswer, EventList
from app.store import events
from app.store.database import Database
from app.store.events import EventRow
from app.store.listing import Wanted

QUEUE = 5000
BATCH = 500
GATHER_S = 0.5
RETRY_S = 1.0
FLUSH_S = 1.0
MOST_BYTES = 16 * 1024
"""Of one event's fields as JSON; larger ones are left out."""
PASSING = frozenset(
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
"""Facts of normal work that nobody asks for later."""


class Events:
    """Keeps facts, and answers what was kept."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[Fact] = deque()
        self._signal = asyncio.Event()
        self._log = structlog.get_logger()
        self.dropped = 0

    def offer(self, fact: Fact) -> None:
        """Keep a fact, soon. Never waits, never raises."""
        if fact.name in PASSING:
            return
        if len(self._waiting) >= QUEUE:
            self.dropped += 1
            return
        self._waiting.append(fact)
        self._signal.set()

    async def run(self) -> None:
        """Write what is offered, for ever."""
        while True:
            await self._signal.wait()
            await asyncio.sleep(GATHER_S)
            self._signal.clear()
            while self._waiting:
                try:
                    await self._write()
                except StoreUnavailable:
                    await asyncio.sleep(RETRY_S)

    async def flush(self) -> None:
        """Write what waits, when that is quick: the process ends."""
        try:
            async with asyncio.timeout(FLUSH_S):
                while self._waiting:
                    await self._write()
        except (StoreUnavailable, TimeoutError):
            self._log.warning("events.not_kept", events=len(self._waiting))

    async def _write(self) -> None:
        """One batch. Raises StoreUnavailable."""
        batch = list(islice(self._waiting, BATCH))
        async with self._database.write(light=True) as session:
            await events.append(session, [_row(fact) for fact in batch])
        for _ in batch:
            self._waiting.popleft()

    async def page(self, wanted: Wanted, filters: events.Filters) -> EventList:
        """Newest first unless sorted otherwise. Raises Invalid."""
        sort = wanted.sort or "-at"
        async with self._database.read() as session:
            page = await events.page(session, Wanted(wanted.limit, wanted.cursor, sort), filters)
        items = [
            EventAnswer(**{name: getattr(row, name) for name in EventAnswer.__struct_fields__})
            for row in page.rows
        ]
        return EventList(items, page.total, page.next_cursor)


def _row(fact: Fact) -> EventRow:
    """Nodes choose what is in a fact: it is made to fit."""
    fields: dict[str, Any] = {}
    packed = msgspec.json.encode(fact.fields)
    if len(packed) > MOST_BYTES or b"\\u0000" in packed:
        fields["left_out_bytes"] = len(packed)
    else:
        fields = msgspec.json.decode(packed)  # what JSON does not know, such as NaN, is null
    return EventRow(at=fact.at, name=_name(fact.name), node=_name(fact.node), fields=fields)


def _name(text: str) -> str:
    return text.replace("\0", "")[:128]
