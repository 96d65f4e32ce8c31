"""Limit large reads per caller: lists of up to 1,000 items, `/overview`, `/series`
and `/export`.

Such a read occupies the event loop for tens of milliseconds. Without a limit, a caller with many connections would
delay all other callers and the health checks by seconds.
"""

from contextlib import AsyncExitStack

from litestar.types import ASGIApp, Message, Receive, Scope, Send

from app.http.principals import share
from app.services.base.fair_limiter import Bounds, FairLimiter

LARGE_READS = Bounds(at_once=4, each_at_once=2, waiting=256, each_waiting=64)


def in_turn(app: ASGIApp) -> ASGIApp:
    """Serve a request when it is the caller's turn. Raise TooManyRequests if too many requests wait. The turn ends when
    the response begins, because a client may take long to read the response."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        limiter: FairLimiter = scope["litestar_app"].state.parts.limits.large_reads
        async with AsyncExitStack() as turn:
            await turn.enter_async_context(limiter.turn(share()))

            async def answer(message: Message) -> None:
                await turn.aclose()
                await send(message)

            await app(scope, receive, answer)

    return serve
