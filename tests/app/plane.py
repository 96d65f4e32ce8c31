"""A management plane that is served over real HTTP inside the test's event loop."""

import asyncio
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager, closing, suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from app.asgi import App, create_app
from app.http.middleware.server_protocol import protocol_of
from app.settings import AppSettings, Settings
from app.store.base.database import full_url
from dataplane.base.settings import Common, with_defaults
from tests.app.fake_node import FakeNode
from tests.app.migrated import migrated_file
from tests.app.reused_routes import use_again

TOKENS = list(range(8))
PIN = {"model": "m", "tokens": TOKENS, "chunk_tokens": 4}
LOOK_S = 0.05
GRACE_S = 1.0
"""Seconds that requests may take to end before they are cancelled."""
WAIT_S = 60.0
"""What takes milliseconds takes seconds on a busy machine."""
MOST = "30s"
"""The longest `wait` that a change of a record may ask for."""
SILENT: dict[str, Any] = {"push_timeout_s": 1.0, "node_lost_s": 3.0}
"""Settings of a plane whose node is silent on purpose."""
KEYS = {"quotas": "tenant", "pins": "name", "policies": "name", "tiers": "name", "ceilings": "tenant", "rates": "name",
        "tokenizers": "name", "tokens": "id"}  # fmt: skip
"""Records by their table, which is also their path, and the column of their key."""
IMPATIENT = pytest.mark.parametrize("settings", [SILENT], indirect=True, ids=["impatient"])
"""For tests of a silent node: their plane waits a second for an answer, and three for a sign of life."""


def settings_in(folder: Path, database_url: str = "", **app: Any) -> Settings:
    """Settings of a plane whose node runs apart from it.

    A machine may be busy for many seconds: nodes are given that time to answer. See `IMPATIENT`.
    """
    common = Common(state_dir=str(folder), database_url=database_url, http_port=0)
    values = {
        "embedded_data_plane": False,
        "push_timeout_s": 30.0,
        "node_lost_s": 30.0,
        "usage_poll_interval_s": 3600,
        **app,
    }
    return Settings(common=with_defaults(common, {}), app=AppSettings(**values))


class Plane:
    """A running plane: `http` is a client of it, `others` one that keeps no cookie, `app` its inside."""

    def __init__(self, app: App, http: httpx.AsyncClient, others: httpx.AsyncClient) -> None:
        self.app = app
        self.http = http
        self.others = others

    async def put_quota(self, tenant: str, limit: Any = 1, wait: str = MOST) -> dict[str, Any]:
        return await self._put(f"/api/v1/quotas/{tenant}?wait={wait}", {"limit_bytes": limit})

    async def put_pin(self, name: str, wait: str = MOST, **fields: Any) -> dict[str, Any]:
        return await self._put(f"/api/v1/pins/{name}?wait={wait}", {**PIN, **fields})

    async def _put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Put a record. The database may be busy on a slow disk: try again, as the answer says."""
        deadline = time.monotonic() + WAIT_S
        while True:
            response = await self.http.put(path, json=body)
            if response.status_code != 503 or time.monotonic() >= deadline:
                assert response.is_success, response.text
                return response.json()

    async def get(self, path: str) -> Any:
        response = await self.http.get(path)
        assert response.is_success, response.text
        return response.json()

    async def node(self) -> dict[str, Any]:
        items = (await self.get("/api/v1/nodes"))["items"]
        assert len(items) == 1
        return items[0]

    async def samples(self) -> list[Sample]:
        """Return the samples of a scrape."""
        text = (await self.http.get("/metrics")).text
        return [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    async def until(self, holds: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Wait for a state of the fleet; reports of nodes do not notify its change signal."""
        change_signal, deadline = self.app.parts.fleet.change_signal, time.monotonic() + timeout_s
        while not await change_signal.until(holds, LOOK_S):
            assert time.monotonic() < deadline, "it never came"

    async def report(self, node: FakeNode, **stats: Any) -> None:
        """Let a node report these statistics, and wait until the plane has all from the process that runs now."""
        node.stats = msgspec.structs.replace(node.stats, **stats)

        def arrived() -> bool:
            known = self.app.parts.fleet.nodes.get(node.name)
            seen = None if known is None else known.stats
            if seen is None or seen.epoch != node.epoch:
                return False
            now = node.stats_now()
            return msgspec.structs.replace(seen, at=now.at, observed=now.observed) == now

        await self.until(arrived)

    async def stored_events(self, query: str, count: int = 1) -> list[dict[str, Any]]:
        """Return the history of events, once it has this many of the query."""
        async with asyncio.timeout(WAIT_S):
            while len(items := (await self.get(f"/api/v1/events/history?{query}"))["items"]) < count:
                await asyncio.sleep(LOOK_S)
        return list(items)

    async def until_event(self, name: str, timeout_s: float = WAIT_S) -> dict[str, Any]:
        """Fields of the next event of this name, or of one among the last 20."""
        bus = self.app.parts.bus
        with bus.subscribe() as subscriber:
            events = list(bus.recent)
            async with asyncio.timeout(timeout_s):
                while True:
                    for event in events:
                        if event.name == name:
                            return event.fields
                    await subscriber.wait(timeout_s)
                    events = subscriber.take()

    async def events_flow(self) -> None:
        """Wait for statistics that a node published from now on: a subscriber that still connects gets no events."""
        began = time.time()
        async with asyncio.timeout(WAIT_S):
            while True:
                nodes = self.app.parts.fleet.nodes.values()
                if self.app.parts.ingest.intake.events and any(n.stats and n.stats.at >= began for n in nodes):
                    return
                await asyncio.sleep(0.01)

    async def until_state(self, state: str, timeout_s: float = WAIT_S) -> None:
        parts = self.app.parts

        def holds() -> bool:
            return [parts.foundation.progress.state(node).value for node in parts.fleet.nodes.values()] == [state]

        await self.until(holds, timeout_s)


def effective(record: dict[str, Any], node: str | None = None) -> dict[str, Any]:
    """Return the condition `Effective` of a record, over all nodes or on one."""
    status = record["status"] if node is None else record["status"]["nodes"][node]
    (found,) = [each for each in status["conditions"] if each["type"] == "Effective"]
    return dict(found)


async def delete_records(plane: Plane) -> None:
    """Delete all records and tokens, for the next test of a module that shares a plane."""
    file = full_url(plane.app.parts.foundation.settings.common.database_url).database
    with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        names = [
            (path, name)
            for path, column in KEYS.items()
            for (name,) in connection.execute(f"SELECT {column} FROM {path}")
        ]
    for path, name in names:
        response = await plane.http.delete(
            f"/api/v1/{path}/{quote(name or '_default', safe='')}", headers={"If-Match": "*"}
        )
        assert response.status_code in (200, 204, 404), response.text


class _Unconditional(httpx.Auth):
    """Sends `If-Match: *` when the server requires a precondition: most tests do not care."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        response = yield request
        if response.status_code == 428:
            request.headers["If-Match"] = "*"
            yield request


def _client(port: int, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False, timeout=60, **options)


class _Server(uvicorn.Server):
    """uvicorn without its main loop and the pauses of its shutdown, which are a quarter of a second of each test."""

    async def begin(self, listener: socket.socket) -> None:
        self.config.load()
        self.lifespan = self.config.lifespan_class(self.config)
        try:
            await self.startup([listener])
        except SystemExit:
            raise AssertionError("the server did not start") from None
        await self.on_tick(0)  # sets the headers of every answer

    async def end(self, listener: socket.socket) -> None:
        for server in self.servers:
            server.close()
        listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while self.server_state.connections or self.server_state.tasks:
                    await asyncio.sleep(0.002)
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=WAIT_S)
        await self.lifespan.shutdown()


@asynccontextmanager
async def serving(settings: Settings, port: int = 0) -> AsyncIterator[Plane]:
    """Start, yield, stop cleanly. A new SQLite file is a copy of a migrated one; routes are used again."""
    migrated_file(settings.common.database_url)
    app = create_app(settings)
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port = listener.getsockname()[1]
        config = uvicorn.Config(
            app, loop="none", http=protocol_of(app.parts.limits.connections), ws="none", lifespan="on", log_config=None,
            access_log=False, proxy_headers=False,
        )  # fmt: skip
        server = _Server(config)
        await server.begin(listener)
        try:
            async with (
                _client(port, auth=_Unconditional()) as http,
                _client(port, cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[]))) as others,
            ):
                yield Plane(app, http, others)
        finally:
            app.parts.bus.close()
            await server.end(listener)
            use_again(settings.app, app.litestar)
