"""Planes and nodes for the tests of the management plane."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from app.settings import Settings
from tests.app.fake_node import FakeNode
from tests.app.plane import Plane, serving, settings_in
from tests.postgres_cluster import PostgresCluster, find_binaries
from tests.require import require


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


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[PostgresCluster]:
    """A PostgreSQL that the tests of one module may kill, freeze and start again."""
    binaries = find_binaries()
    require(binaries, "no PostgreSQL server binaries (Debian: apt install postgresql)")
    assert binaries is not None
    cluster = PostgresCluster(binaries)
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
async def own_database(own_cluster: PostgresCluster) -> str:
    """Name of an empty database in it; it goes with its cluster."""
    name = f"larder_{uuid4().hex[:12]}"
    engine = create_async_engine(own_cluster.url("postgres"), isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection:
        await connection.execute(sa.text(f"CREATE DATABASE {name}"))
    await engine.dispose()
    return name
