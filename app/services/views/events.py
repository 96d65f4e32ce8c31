"""The history of events: stores events in the database without blocking their publishers.

Events pass through a bounded queue and are written in batches. While the database is unavailable they wait; when the
queue is full, refused blocks and then the newest events are dropped and counted. Refused blocks are summed.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog

from app.errors import StoreUnavailable
from app.observe.catalogue import NOT_STORED, name_of
from app.observe.events import EventQueue, LarderEvent
from app.schemas.base.listing import PageRequest
from app.schemas.views.events import EventAnswer, EventFilters, EventList, EventsNotKept
from app.services.base.fields import answer
from app.store.base.database import Database
from app.store.views import events
from app.store.views.events import EventRow
from dataplane.protocol.events import BlocksRefused

DAY_S = 86_400.0
QUEUE = 5000
BATCH = 500
GATHER_S = 0.5
RETRY_S = 1.0
REFUSALS_S = 5.0
"""Seconds between checks for sums of refused blocks that are due."""
MAX_BYTES = 16 * 1024
"""Largest size of one event's fields as JSON; larger fields are omitted."""
REFUSED = name_of(BlocksRefused)
EVERY_S = 60.0
MAX_GROUPS = 500
OTHER = "other"
"""Tenant and node of refusals beyond `MAX_GROUPS`."""
SORTABLE = events.SORTABLE
"""Fields by which the list can be sorted."""


class Events:
    """Stores events, and lists the stored ones."""

    def __init__(self, database: Database, *, lost: Callable[[], int], retention_days: float = 30.0) -> None:
        """`lost` returns the number of events that nodes sent but that did not arrive."""
        self._database = database
        self._retention_s = retention_days * DAY_S
        self._lost = lost
        self.dropped: Counter[str] = Counter()
        """Events that were not stored, by name."""
        self._queue = EventQueue(QUEUE, self.dropped, keep_oldest=True)
        self._refusals = RefusalSums()
        self._signal = asyncio.Event()
        self._log = structlog.get_logger()

    def offer(self, event: LarderEvent) -> None:
        """Queue an event to be stored. Never waits, never raises."""
        if event.name in NOT_STORED:
            return
        if event.name == REFUSED:
            self._refusals.add(event)
        else:
            self._queue.push(event)
        self._signal.set()

    async def run(self) -> None:
        """Write queued events forever."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(REFUSALS_S):
                    await self._signal.wait()
            await asyncio.sleep(GATHER_S)
            self._signal.clear()
            self._add_refusals(time.monotonic())
            while self._queue:
                try:
                    await self._write()
                except StoreUnavailable:
                    await asyncio.sleep(RETRY_S)

    async def flush(self) -> None:
        """Write the queued events before the process ends. Raises StoreUnavailable."""
        self._add_refusals(math.inf)
        while self._queue:
            await self._write()

    async def _write(self) -> None:
        """Write one batch. Raises StoreUnavailable."""
        batch = self._queue.take(BATCH)
        try:
            async with self._database.write(light=True) as session:
                await events.append(session, [_row(event) for event in batch])
        except BaseException:  # also a cancellation: `flush` writes them then
            self._queue.put_back(batch)
            raise

    def _add_refusals(self, now: float) -> None:
        for event in self._refusals.due(now):
            self._queue.push(event)

    async def page(self, page_request: PageRequest, filters: EventFilters) -> EventList:
        """Return a page of events, newest first by default. Raises Invalid."""
        sort = page_request.sort or "-at"
        async with self._database.read() as session:
            page = await events.page(session, PageRequest(page_request.limit, page_request.cursor, sort), filters)
        items = [answer(EventAnswer, row) for row in page.rows]
        not_kept = EventsNotKept(
            time.time() - self._retention_s, sorted(NOT_STORED), self.dropped.total(), self._lost()
        )
        return EventList(items, not_kept, total=page.total, next_cursor=page.next_cursor)


@dataclass
class _Group:
    due_at: float
    """Monotonic time from which the sum may be stored."""
    sum: LarderEvent | None


class RefusalSums:
    """Sums of refused blocks. The first refusal of a tenant for a reason is stored at once, so that its time is known;
    later ones are stored as one event per minute."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str, str], _Group] = {}

    def add(self, event: LarderEvent) -> None:
        reason = str(event.fields.get("reason"))
        key = (event.node, str(event.fields.get("tenant")), reason)
        if key not in self._groups and len(self._groups) >= MAX_GROUPS:
            key = (OTHER, OTHER, reason)
            event = msgspec.structs.replace(event, node="", fields={**event.fields, "tenant": OTHER})
        group = self._groups.setdefault(key, _Group(time.monotonic(), None))
        group.sum = event if group.sum is None else _added(group.sum, event)

    def due(self, now: float) -> list[LarderEvent]:
        """Return the sums to store at monotonic time `now`."""
        sums = []
        for key, group in list(self._groups.items()):
            if now < group.due_at:
                continue
            if group.sum is None:
                del self._groups[key]  # no refusal for a while: the next one is stored at once
                continue
            sums.append(group.sum)
            group.sum, group.due_at = None, now + EVERY_S
        return sums


def _added(total: LarderEvent, event: LarderEvent) -> LarderEvent:
    fields = dict(event.fields)
    for name in ("blocks", "bytes", "events"):
        fields[name] = total.fields[name] + event.fields[name]
    return msgspec.structs.replace(event, fields=fields)


def _row(event: LarderEvent) -> EventRow:
    """Return the row of an event. Nodes choose the fields, so fields that cannot be stored are replaced."""
    fields: dict[str, Any] = {}
    packed = msgspec.json.encode(event.fields)
    if len(packed) > MAX_BYTES or b"\\u0000" in packed:
        fields["omitted_bytes"] = len(packed)
    else:
        fields = msgspec.json.decode(packed)  # values that JSON cannot express, such as NaN, become null
    return EventRow(
        at=event.at, name=_name(event.name), node=_name(event.node), actor=_name(event.actor), fields=fields
    )


def _name(text: str) -> str:
    return text.replace("\0", "")[:128]
