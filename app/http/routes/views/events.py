"""/api/v1/events: server-sent events, and /api/v1/events/history.

The stream sends an `overview` at once and then after changes, at most once a second and at least every two seconds; and
an `event` for each event as it happens. A slow reader loses its oldest events and never slows the others. The stream
ends when the event bus closes: an open stream would otherwise delay the shutdown. A reader that reconnects names the
last event that it received and gets the later ones that the bus still has. Each message is encoded once for all
readers; an overview once for all readers that see the same tenants.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter
from litestar.response import Stream

from app.errors import StoreUnavailable
from app.http.operation import operation
from app.http.parameters import Cursor, Limit, OfNode, at_seconds, in_query, sort_by
from app.http.principals import caller, until_answered
from app.observe.events import BACKLOG, EventBus, LarderEvent
from app.schemas.base.listing import PageRequest
from app.schemas.views.events import EventFilters, EventList
from app.services.base.concurrency_limiter import ConcurrencyLimiter
from app.services.base.principals import PLANE, Principal
from app.services.base.redaction import visible_events
from app.services.views.events import SORTABLE, Events
from app.services.views.overview import MAX_SETS, OverviewService

OVERVIEW_MIN_S = 1.0
OVERVIEW_MAX_S = 2.0
GATHER_S = 0.03
MEDIA_TYPE = "text/event-stream"
_Sort = Annotated[str, sort_by(SORTABLE)]


class EventMessages:
    """Encoded messages, shared by all streams."""

    def __init__(self, bus: EventBus, overview: OverviewService) -> None:
        self._bus = bus
        self._overview = overview
        self._events: dict[tuple[int, str, object], bytes] = {}
        """Messages of the newest events, by their number and by what `visible_events` hides from some callers."""
        self._shown: dict[frozenset[str] | None, tuple[bytes, bytes]] = {}
        """JSON and message of the newest overview, by the set of tenants that it covers."""

    def event(self, event: LarderEvent) -> bytes:
        key = (event.seq, event.actor, event.fields.get("holder"))
        encoded = self._events.get(key)
        if encoded is None:
            encoded = message("event", msgspec.json.encode(event), f"{self._bus.boot}-{event.seq}")
            self._events[key] = encoded
            if len(self._events) > BACKLOG:
                del self._events[next(iter(self._events))]
        return encoded

    async def overview(self, by: Principal = PLANE) -> tuple[int, bytes]:
        """Return the version of the event bus that the overview shows, and the message. Raises StoreUnavailable."""
        version, encoded = await self._overview.encoded(by.salts)
        shown = self._shown.pop(by.salts, (b"", b""))
        if encoded is not shown[0]:
            shown = (encoded, message("overview", encoded))
        self._shown[by.salts] = shown
        if len(self._shown) > MAX_SETS:
            del self._shown[next(iter(self._shown))]
        return version, shown[1]

    async def stream(self, last_id: str | None = None, by: Principal = PLANE) -> AsyncGenerator[bytes, None]:
        """Yield the messages for one reader. `last_id` is the id of the last event that the reader received."""
        bus = self._bus
        with bus.subscribe() as subscriber:
            # Before the first message: an event that occurs while that is sent is in the subscription alone.
            missed = [] if last_id is None else bus.after(*_read_id(last_id))
            yield b"retry: 1000\n\n" + b"".join(map(self.event, visible_events(missed, by)))
            shown, shown_at = -1, -1e9
            while not subscriber.closed:
                parts = [self.event(event) for event in visible_events(subscriber.take(), by)]
                since_s = time.monotonic() - shown_at
                if since_s >= OVERVIEW_MAX_S or (bus.version != shown and since_s >= OVERVIEW_MIN_S):
                    shown, shown_at = bus.version, time.monotonic()
                    try:
                        shown, overview = await self.overview(by)
                    except StoreUnavailable:
                        overview = b": the database does not answer\n\n"
                    parts.append(overview)
                if parts:
                    yield b"".join(parts)
                since_s = time.monotonic() - shown_at
                due_s = OVERVIEW_MIN_S if since_s < OVERVIEW_MIN_S else OVERVIEW_MAX_S
                if await subscriber.wait(due_s - since_s):
                    # Gather events that occur together: one message for many readers costs far less than several.
                    await asyncio.sleep(GATHER_S)


def _read_id(text: str) -> tuple[str, int]:
    """Return the boot id and the sequence number of an event id; of an invalid id, values that match no process."""
    boot, _, number = text.partition("-")
    return (boot, int(number)) if number.isascii() and number.isdecimal() and len(number) < 19 else ("", 0)


def message(name: str, data: bytes, number: str = "") -> bytes:
    """Return one server-sent event. JSON has no line breaks, so one data line is enough."""
    head = b"id: %s\n" % number.encode() if number else b""
    return b"%sevent: %s\ndata: %s\n\n" % (head, name.encode(), data)


@operation(
    get,
    "/events",
    role="viewer",
    scoped=True,
    answers={
        200: ResponseSpec(
            LarderEvent, generate_examples=False, media_type=MEDIA_TYPE, description="Data of `event` messages."
        )
    },
    media_type=MEDIA_TYPE,
    tags=["events"],
)
async def stream_events(
    messages: NamedDependency[EventMessages],
    stream_slots: NamedDependency[ConcurrencyLimiter],
    last_event_id: Annotated[
        str | None,
        HeaderParameter(
            name="Last-Event-ID", description="`id` of the last `event` received: later events are sent first."
        ),
    ] = None,
) -> Stream:
    """Stream server-sent events: `overview` (Overview) and `event` (LarderEvent)."""
    until_answered(stream_slots.taken(caller()))
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return Stream(messages.stream(last_event_id, caller()), media_type=MEDIA_TYPE, headers=headers)


@operation(get, "/events/history", "invalid", role="viewer", tags=["events"])
async def list_events(
    events: NamedDependency[Events],
    name: Annotated[
        str | None,
        in_query("Only events of this name; `push.*` selects all names that begin with `push.`.", max_length=128),
    ] = None,
    node: OfNode = None,
    actor: Annotated[str | None, in_query("Only this actor.", max_length=128)] = None,
    since: Annotated[float | None, at_seconds("Earliest time, in Unix seconds.")] = None,
    sort: _Sort = "",
    limit: Limit = 100,
    cursor: Cursor = "",
) -> EventList:
    """List stored events, newest first."""
    return await events.page(PageRequest(limit, cursor, sort), EventFilters(name, node, actor, since))
