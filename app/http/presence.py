"""Work that is of use to who asked alone: it ends when they are gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.types import Receive

from app.errors import ClientGone
from app.http.body import StrictRequest

T = TypeVar("T")


async def while_there(request: StrictRequest, work: Coroutine[Any, Any, T]) -> T:
    """What comes of the work, whose request has been read to its end. When the client goes away first, the work is
    cancelled; nothing that others see must be half done then. Raises ClientGone, when the work has ended."""
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
        if not doing.done():  # the server stops
            doing.cancel()
            await asyncio.wait({doing})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
