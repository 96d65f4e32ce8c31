"""Cancel work when the client that requested it disconnects."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.types import Receive

from app.errors import ClientGone
from app.http.body import StrictRequest

T = TypeVar("T")


async def while_there(request: StrictRequest, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, or cancel it if the client disconnects first. The request must have been read to its
    end, and cancelling `work` must leave no partial change that others can see. Raises ClientGone after the cancelled
    work has ended."""
    doing = asyncio.create_task(work)
    leaving = asyncio.create_task(_gone(request.receive))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            doing.cancel()
            await asyncio.wait({doing})
        if doing.cancelled():
            raise ClientGone("the client did not wait for the answer")
        return doing.result()
    finally:
        leaving.cancel()
        if not doing.done():  # the server is stopping
            doing.cancel()
            await asyncio.wait({doing})
        # The traceback of its exception refers to this frame: the cycle would keep the request in memory.
        del doing


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
