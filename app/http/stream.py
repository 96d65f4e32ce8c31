"""/api/v1/events: server-sent events.

`overview` at once, then when something changed, at most once a second and at least every two; `fact` as it happens.
A reader that is too slow loses its oldest facts; it never slows the others. Ends when the hub closes: an open stream
would otherwise hold the shutdown. A reader that comes back says which fact it saw last, and gets those after it that
are still there. Each message is encoded once, however many read it; overviews once for all who see the same tenants.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import HeaderParameter
from litestar.response import Stream

from app.errors import StoreUnavailable
from app.http.callers import caller, until_answered
from app.http.problems import declared
from app.observe.facts import BACKLOG, Fact, FactHub
from app.services.callers import PLANE, Caller
from app.services.narrowed import is_shown
from app.services.overview import MOST_SETS, OverviewService
from app.services.places import Places

OVERVIEW_LEAST_S = 1.0
OVERVIEW_MOST_S = 2.0
GATHER_S = 0.03
MEDIA_TYPE = "text/event-stream"


class Messages:
    """The stream's text, shared by all streams."""

    def __init__(self, hub: FactHub, overview: OverviewService) -> None:
        self._hub = hub
        self._overview = overview
        self._facts: dict[int, bytes] = {}
        self._shown: dict[frozenset[str] | None, tuple[bytes, bytes]] = {}
        """JSON and message of the newest overview, by the tenants that it is of."""

    def fact(self, fact: Fact) -> bytes:
        made = self._facts.get(fact.seq)
        if made is None:
            made = message("fact", msgspec.json.encode(fact), f"{self._hub.boot}-{fact.seq}")
            self._facts[fact.seq] = made
            if len(self._facts) > BACKLOG:
                del self._facts[next(iter(self._facts))]
        return made

    async def overview(self, by: Caller = PLANE) -> tuple[int, bytes]:
        """The version of the hub that it shows, and the message. Raises StoreUnavailable."""
        version, encoded = await self._overview.encoded(by.salts)
        shown = self._shown.pop(by.salts, (b"", b""))
        if encoded is not shown[0]:
            shown = (encoded, message("overview", encoded))
        self._shown[by.salts] = shown
        if len(self._shown) > MOST_SETS:
            del self._shown[next(iter(self._shown))]
        return version, shown[1]

    async def stream(self, last_id: str | None = None, by: Caller = PLANE) -> AsyncIterator[bytes]:
        """Everything for one reader, who saw the fact of this id last."""
        hub = self._hub
        with hub.subscribe() as subscriber:
            yield b"retry: 1000\n\n"
            missed = [] if last_id is None else hub.after(*_read_id(last_id))
            missed = [fact for fact in missed if is_shown(fact, by)]
            if missed:
                yield b"".join(map(self.fact, missed))
            shown, shown_at = -1, -1e9
            while not subscriber.closed:
                parts = [self.fact(fact) for fact in subscriber.take() if is_shown(fact, by)]
                since_s = time.monotonic() - shown_at
                if since_s >= OVERVIEW_MOST_S or (hub.version != shown and since_s >= OVERVIEW_LEAST_S):
                    shown, shown_at = hub.version, time.monotonic()
                    try:
                        shown, overview = await self.overview(by)
                    except StoreUnavailable:
                        overview = b": the database does not answer\n\n"
                    parts.append(overview)
                if parts:
                    yield b"".join(parts)
                since_s = time.monotonic() - shown_at
                due_s = OVERVIEW_LEAST_S if since_s < OVERVIEW_LEAST_S else OVERVIEW_MOST_S
                if await subscriber.wait(due_s - since_s):
                    # What belongs together comes together: one message for many readers costs far less than several.
                    await asyncio.sleep(GATHER_S)


def _read_id(text: str) -> tuple[str, int]:
    """Boot and number of the process that gave it; of what is none, those of nobody."""
    boot, _, number = text.partition("-")
    return (boot, int(number)) if number.isascii() and number.isdecimal() and len(number) < 19 else ("", 0)


def message(name: str, data: bytes, number: str = "") -> bytes:
    """One event; JSON has no line breaks, so one data line is enough."""
    head = b"id: %s\n" % number.encode() if number else b""
    return b"%sevent: %s\ndata: %s\n\n" % (head, name.encode(), data)


@get(
    "/events",
    operation_id="streamEvents",
    summary="Server-sent events: `overview` (Overview) and `fact` (Fact)",
    opt={"role": "viewer", "scoped": True},
    media_type=MEDIA_TYPE,
    tags=["events"],
    responses={
        200: ResponseSpec(
            Fact, generate_examples=False, media_type=MEDIA_TYPE, description="Data of `fact` events."
        ),
        **declared(),
    },
)
async def stream_events(
    messages: NamedDependency[Messages],
    places: NamedDependency[Places],
    last_event_id: Annotated[
        str | None,
        HeaderParameter(
            name="Last-Event-ID", description="`id` of the last `fact`: those after it come first."
        ),
    ] = None,
) -> Stream:
    until_answered(places.taken(caller()))
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return Stream(messages.stream(last_event_id, caller()), media_type=MEDIA_TYPE, headers=headers)
