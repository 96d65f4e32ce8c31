"""A management plane with a node in a thread of its own, for tests that are not asynchronous."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.app.fake_node import FakeNode
from tests.app.plane import serving, settings_in
from tests.threads import join


@contextmanager
def serving_apart(folder: Path, **settings: Any) -> Iterator[str]:
    """The address of its HTTP server."""
    started: list[str] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    done = asyncio.Event()

    async def serve() -> None:
        node = FakeNode(folder)
        await node.start()
        try:
            async with serving(settings_in(folder, **settings)) as plane:
                await plane.until_state("in_sync")
                started.append(str(plane.http.base_url))
                ready.set()
                await done.wait()
        finally:
            await node.stop()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=run, name="plane")
    thread.start()
    try:
        assert ready.wait(60)
        assert started, "the server did not start"
        yield started[0]
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(done.set)
        join(thread)
