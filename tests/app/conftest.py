"""Planes and nodes for the tests of the management plane."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import tests.app.statements  # noqa: F401 (shares compiled statements)
from app.http.middleware import stack
from app.settings import Settings
from app.store.base import database as database_module
from app.store.base.database import Database
from dataplane.client import Client, attach
from tests.app.callers import guarding
from tests.app.fake_node import FakeNode
from tests.app.migrated import migrate_apart, migrated_file, new_identity
from tests.app.plane import Plane, delete_records, serving, settings_in
from tests.app.real_node import governing
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane as DataPlane
from tests.postgres_cluster import PostgresCluster, find_binaries
from tests.postgres_databases import Server, create, database_on, execute_apart, new_name
from tests.require import require
from tests.run_marks import short_folder

database_module.CONNECT_TIMEOUT_S = database_module.COMMAND_TIMEOUT_S = 60.0
database_module.LOCK_TIMEOUT_MS = 60_000
stack.HEALTH_TIMEOUT_S = 60.0
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
async def new_node(socket_dir: Path) -> AsyncIterator[FakeNode]:
    """A fake node that runs, where `settings` looks for one."""
    fake = FakeNode(socket_dir)
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def new_plane(settings: Settings, new_node: FakeNode) -> AsyncIterator[Plane]:
    """A plane over SQLite that only this test sees, with a node in sync."""
    async with serving(settings) as running:
        await running.until_state("in_sync")
        yield running


@pytest.fixture
async def new_guarded(socket_dir: Path) -> AsyncIterator[Plane]:
    """A plane over SQLite that authenticates, and that only this test sees: `http` asks as the settings' admin."""
    async with guarding(socket_dir) as running:
        yield running


@pytest.fixture(scope="module")
async def shared_node() -> AsyncIterator[FakeNode]:
    """The node of `shared_plane`, in a folder with its database."""
    with short_folder() as folder:
        fake = FakeNode(folder)
        await fake.start()
        yield fake
        await fake.stop()


@pytest.fixture(scope="module")
async def shared_plane(shared_node: FakeNode) -> AsyncIterator[Plane]:
    """A plane with a node in sync for all tests of a module that leave it as they find it."""
    async with serving(settings_in(shared_node.folder)) as running:
        await running.until_state("in_sync")
        yield running


@pytest.fixture(scope="module")
async def shared_guarded() -> AsyncIterator[Plane]:
    """A plane that authenticates, without a node, for all tests of a module that leave it as they find it."""
    with short_folder() as folder:
        async with guarding(folder) as running:
            yield running


@pytest.fixture(scope="module")
async def shared_lone() -> AsyncIterator[Plane]:
    """A plane without a node for all tests of a module that leave it as they find it."""
    with short_folder() as folder:
        async with serving(settings_in(folder)) as running:
            yield running


@pytest.fixture
async def node(shared_node: FakeNode) -> FakeNode:
    """The node of `plane`."""
    return shared_node


@pytest.fixture
async def plane(shared_plane: Plane, shared_node: FakeNode) -> AsyncIterator[Plane]:
    """The plane of the module without records, with its node in sync. Its history is that of all tests before."""
    yield shared_plane
    shared_node.reset()
    await delete_records(shared_plane)
    await shared_plane.until_state("in_sync")
    await shared_plane.report(shared_node)


@pytest.fixture
async def guarded(shared_guarded: Plane) -> AsyncIterator[Plane]:
    """The plane of the module that authenticates, without records and tokens: `http` asks as the settings' admin."""
    yield shared_guarded
    await delete_records(shared_guarded)


@pytest.fixture
async def lone(shared_lone: Plane) -> AsyncIterator[Plane]:
    """The plane of the module that has no node, without records."""
    yield shared_lone
    await delete_records(shared_lone)


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


@pytest.fixture(scope="module")
def data_plane_settings() -> dict[str, str]:
    """Settings of `data_plane`; modules replace them."""
    return {}


@pytest.fixture(scope="module")
def data_plane(data_plane_settings: dict[str, str]) -> Iterator[DataPlane]:
    """A real data plane for the tests of a module, which no request may have crashed."""
    with short_folder() as folder:
        started = DataPlane(folder, data_plane_settings).start()
        yield started
        if started.alive:
            started.kill()
        assert "request_failed" not in started.log()


@pytest.fixture(scope="module")
async def shared_governed(data_plane: DataPlane) -> AsyncIterator[Plane]:
    """A plane with the real data plane in sync, for the tests of a module."""
    with short_folder() as folder:
        async with governing(data_plane, folder) as running:
            yield running


@pytest.fixture
async def governed(shared_governed: Plane) -> AsyncIterator[Plane]:
    """The plane of the module with a real data plane, without records and blocks."""
    yield shared_governed
    await delete_records(shared_governed)
    body = {"confirm": True, "permanent": True}
    assert (await shared_governed.http.post("/api/v1/actions/clear", json=body)).is_success
    await shared_governed.until_state("in_sync")


@pytest.fixture
def engine(data_plane: DataPlane) -> Iterator[Client]:
    """An engine that is attached to the real data plane."""
    with attach(data_plane.socket, [make.space()], timeout_s=60) as client:
        yield client
