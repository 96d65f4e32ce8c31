"""Waits for what comes some time later, in a loop that serves the plane meanwhile."""

import asyncio
import time
from collections.abc import Callable
from typing import Any


async def until(holds: Callable[..., Any], timeout_s: float = 60.0) -> Any:
    """Return the first true answer of `holds`, which may await."""
    deadline = time.monotonic() + timeout_s
    while True:
        answer = holds()
        if asyncio.iscoroutine(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, "it never came"
        await asyncio.sleep(0.02)
