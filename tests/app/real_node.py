"""A management plane with a real data plane as its only node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec.structs import replace

from tests.app.plane import Plane, serving, settings_in
from tests.dataplane.plane import Plane as DataPlane


@asynccontextmanager
async def governing(node: DataPlane, folder: Path) -> AsyncIterator[Plane]:
    """Serve; the node is in sync when this is entered."""
    settings = settings_in(folder)
    urls = {"control_url": node.control_url, "events_url": node.events_url}
    async with serving(replace(settings, common=replace(settings.common, **urls))) as plane:
        await plane.until_state("in_sync")
        yield plane
