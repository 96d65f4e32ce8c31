"""/api/v1/events: server-sent events.

`overview` at once, then when something changed, at most once a second and at least every five; `fact` as it happens.
A reader that is too slow loses its oldest facts; it never slows the others. Ends when the hub closes: an open stream
would otherwise hold the shutdown.
"""

import time
from collections.abc import AsyncIterator

import msgspec
from litestar import get
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.response import Stream

from app.errors import StoreUnavailable
from app.http.problems import declared
from app.observe.facts import Fact, FactHub
from app.services.overview import OverviewService

OVERVIEW_LEAST_S = 1.0
OVERVIEW_MOST_S = 2.0
MEDIA_TYPE = "text/event-stream"


async def events(hub: FactHub, overview: OverviewService) -> AsyncIterator[bytes]:
    """The stream's text."""
    with hub.subscribe() as subscriber:
        yield b"retry: 1000\n\n"
        shown, shown_at = -1, -1e9
        while not subscriber.closed:
            for fact in subscriber.take():
                yield message("fact", msgspec.json.encode(fact), fact.seq)
            since_s = time.monotonic() - shown_at
            changed = hub.version != shown
            if since_s >= OVERVIEW_MOST_S or (changed and since_s >= OVERVIEW_LEAST_S):
                shown, shown_at = hub.version, time.monotonic()
                try:
                    yield message("overview", await overview.encoded())
                except StoreUnavailable:
                    yield b": the database does not answer\n\n"
                continue
            due_s = (OVERVIEW_LEAST_S if changed else OVERVIEW_MOST_S) - since_s
            await subscriber.wait(due_s)
            if not changed and hub.version == shown:
                yield b": heartbeat\n\n"


def message(name: str, data: bytes, number: int | None = None) -> bytes:
    """One event; JSON has no line breaks, so one data line is enough."""
    head = b"" if number is None else b"id: %d\n" % number
    return b"%sevent: %s\ndata: %s\n\n" % (head, name.encode(), data)


@get(
    "/events",
    operation_id="streamEvents",
    summary="Server-sent events: `overview` (Overview) and `fact` (Fact)",
    opt={"role": "viewer"},
    media_type=MEDIA_TYPE,
    tags=["overview"],
    responses={
        200: ResponseSpec(
            Fact, generate_examples=False, media_type=MEDIA_TYPE, description="Data of `fact` events."
        ),
        **declared(),
    },
)
async def stream_events(hub: NamedDependency[FactHub], overview: NamedDependency[OverviewService]) -> Stream:
    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return Stream(events(hub, overview), media_type=MEDIA_TYPE, headers=headers)
