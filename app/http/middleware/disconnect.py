"""Cancel work when the client that requested it disconnects."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.types import Receive

from app.errors import ClientGone
from app.http.body import StrictRequest

T = TypeVar("T")


async def while_there(request: StrictRequest, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, or cancel it if the client disconnects, or closes its sending side, first. The
    request must have been read to its end, and cancelling `work` must leave no partial change that others can see.
    Raises ClientGone after the cancelled work has ended."""
    task = asyncio.create_task(work)
    # After the end of the request, uvicorn and ProblemProtocol have nothing to report but the end of the client.
    disconnect = asyncio.create_task(_received(request.receive))
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


async def _received(receive: Receive) -> None:
    await receive()
