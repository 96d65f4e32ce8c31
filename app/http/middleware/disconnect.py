"""Cancel work when the client that requested it disconnects."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from app.errors import ClientGone
from app.http.body import StrictRequest
from app.http.middleware.server_protocol import SENDS_NO_MORE

T = TypeVar("T")
GRACE_S = 1.0
"""Seconds that work may take after its client has closed its sending side: the client may wait for the answer or have
left, which looks the same."""


async def while_there(request: StrictRequest, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, or cancel it if the client disconnects first, or closed its sending side more than
    `GRACE_S` ago. The request must have been read to its end, and cancelling `work` must leave no partial change that
    others can see. Raises ClientGone after the cancelled work has ended."""
    task = asyncio.create_task(work)
    disconnect = asyncio.create_task(_left(request))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
        if task.cancelled():
            raise ClientGone("the client did not wait for the answer")
        return task.result()
    finally:
        disconnect.cancel()
        if not task.done():  # the server is stopping
            task.cancel()
            await asyncio.wait({task})
        # The traceback of its exception refers to this frame: the cycle would keep the request in memory.
        del task


async def _left(request: StrictRequest) -> None:
    """Return once the client has left, or is taken to have left."""
    # After the end of the request, uvicorn and ProblemProtocol have nothing to report but the end of the client.
    if SENDS_NO_MORE not in request.scope["state"] and (await request.receive())["type"] == "http.disconnect":
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(GRACE_S):
            while (await request.receive())["type"] != "http.disconnect":
                pass
