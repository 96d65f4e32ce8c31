"""Planes and nodes for the tests of the management plane."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.settings import Settings
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane, serving, settings_in


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres_url")
    return f"sqlite+aiosqlite:///{tmp_path / 'larder.db'}"


@pytest.fixture
def settings(socket_dir: Path) -> Settings:
    return settings_in(socket_dir)


@pytest.fixture
async def node(socket_dir: Path) -> AsyncIterator[FakeNode]:
    """A fake node that runs, where `settings` looks for one."""
    fake = FakeNode(socket_dir)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def plane(settings: Settings, node: FakeNode) -> AsyncIterator[Plane]:
    """A plane over SQLite with a node in sync."""
    async with serving(settings) as running:
        await running.until_state("in_sync")
        yield running
