"""Planes and nodes for the tests of the management plane."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import tests.app.statements  # noqa: F401 (shares compiled statements)
from app.settings import Settings
from app.store.base import database as database_module
from app.store.base.database import Database
from dataplane.client import Client, attach
from tests.app.callers import guarding
from tests.app.fake_node import FakeNode
from tests.app.migrated import migrate_apart, migrated_file, new_identity
from tests.app.plane import Plane, serving, settings_in
from tests.app.real_node import governing
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane as DataPlane
from tests.postgres_cluster import PostgresCluster, find_binaries
from tests.postgres_databases import Server, create, database_on, execute_apart, new_name
from tests.require import require
from tests.run_marks import short_folder

database_module.CONNECT_TIMEOUT_S = database_module.COMMAND_TIMEOUT_S = 60.0
database_module.LOCK_TIMEOUT_MS = 60_000
"""Of this process alone: a statement of a few milliseconds takes seconds on a busy machine."""


@pytest.fixture(params=["sqlite", "postgres"])
def empty_database_url(request: pytest.FixtureRequest, socket_dir: Path) -> str:
    """An empty database of either kind."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres_url")
    return f"sqlite+aiosqlite:///{socket_dir / 'larder.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def database_url(request: pytest.FixtureRequest, socket_dir: Path) -> str:
    """A migrated database of either kind, without records."""
    if request.param == "postgres":
        return request.getfixturevalue("migrated_postgres_url")
    url = f"sqlite+aiosqlite:///{socket_dir / 'larder.db'}"
    migrated_file(url)
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A migrated database of either kind, without records, open."""
    opened = Database(database_url)
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: Server) -> Iterator[str]:
    """Name of a migrated database, of which others are copies."""
    with database_on(postgres_server) as name:
        migrate_apart(postgres_server(name))
        yield name


@pytest.fixture
def migrated_postgres_url(postgres_server: Server, postgres_template: str) -> Iterator[str]:
    """A migrated database that only this test sees."""
    with database_on(postgres_server, postgres_template) as name:
        execute_apart(postgres_server(name), new_identity())
        yield postgres_server(name)


@pytest.fixture
def settings(socket_dir: Path, request: pytest.FixtureRequest) -> Settings:
    """Settings of `plane`, with those of the parameter if there is one."""
    return settings_in(socket_dir, **getattr(request, "param", {}))


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


@pytest.fixture
async def lone(socket_dir: Path) -> AsyncIterator[Plane]:
    """A plane over SQLite without a node."""
    async with serving(settings_in(socket_dir)) as running:
        yield running


@pytest.fixture
async def guarded(socket_dir: Path) -> AsyncIterator[Plane]:
    """A plane over SQLite that authenticates: `http` asks as the settings' admin."""
    async with guarding(socket_dir) as running:
        yield running


@pytest.fixture(scope="module")
async def shared_plane() -> AsyncIterator[Plane]:
    """A plane with a node in sync for all tests of a module that leave it as they find it."""
    with short_folder() as folder:
        fake = FakeNode(folder)
        await fake.start()
        async with serving(settings_in(folder)) as running:
            await running.until_state("in_sync")
            yield running
        await fake.stop()


@pytest.fixture(scope="module")
async def shared_guarded() -> AsyncIterator[Plane]:
    """A plane that authenticates, without a node, for all tests of a module that leave it as they find it."""
    with short_folder() as folder:
        async with guarding(folder) as running:
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


@pytest.fixture(scope="module")
def own_template(own_cluster: PostgresCluster) -> str:
    """Name of a migrated database in it, of which others are copies; it goes with its cluster."""
    name = new_name()
    create(own_cluster.url, name)
    migrate_apart(own_cluster.url(name))
    return name


@pytest.fixture
def own_database(own_cluster: PostgresCluster, own_template: str) -> str:
    """Name of a migrated database in it; it goes with its cluster."""
    name = new_name()
    create(own_cluster.url, name, own_template)
    execute_apart(own_cluster.url(name), new_identity())
    return name


@pytest.fixture
def data_plane_settings() -> dict[str, str]:
    """Settings of `data_plane`; modules replace them."""
    return {}


@pytest.fixture
def data_plane(socket_dir: Path, data_plane_settings: dict[str, str]) -> Iterator[DataPlane]:
    """A real data plane, which no request may have crashed."""
    folder = socket_dir / "node"
    folder.mkdir()
    started = DataPlane(folder, data_plane_settings).start()
    yield started
    if started.alive:
        started.kill()
    assert "request_failed" not in started.log()


@pytest.fixture
async def governed(data_plane: DataPlane, socket_dir: Path) -> AsyncIterator[Plane]:
    """A plane with a real data plane in sync."""
    async with governing(data_plane, socket_dir) as running:
        yield running


@pytest.fixture
def engine(data_plane: DataPlane) -> Iterator[Client]:
    """An engine that is attached to the real data plane."""
    with attach(data_plane.socket, [make.space()], timeout_s=60) as client:
        yield client
