"""Child processes that one request needs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

KILLED_S = 10.0
"""Longest wait, in seconds, for a killed process to end."""


@asynccontextmanager
async def child_process(command: Sequence[str], **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a process with options of `asyncio.create_subprocess_exec`. If it still runs at the end of the block, also
    after an error or a cancellation, kill it and wait for its end. Raises OSError if it cannot be started."""
    child = await asyncio.create_subprocess_exec(*command, **options)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
            with suppress(TimeoutError):
                await asyncio.wait_for(child.wait(), KILLED_S)
