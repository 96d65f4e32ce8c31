"""A management plane that is served over real HTTP inside the test's event loop."""

import asyncio
import socket
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from app.asgi import App, Routes, create_app
from app.http.middleware.server_protocol import protocol_of
from app.settings import AppSettings, Settings
from dataplane.base.settings import Common, with_defaults
from tests.app.migrated import migrated_file

TOKENS = list(range(8))
PIN = {"model": "m", "tokens": TOKENS, "chunk_tokens": 4}
LOOK_S = 0.05
WAIT_S = 20.0
"""What takes milliseconds takes seconds on a busy machine."""
_idle_routes: defaultdict[tuple[object, ...], list[Routes]] = defaultdict(list)
"""Routes of planes that have stopped, by their settings."""


def settings_in(folder: Path, database_url: str = "", **app: Any) -> Settings:
    """Settings of a plane that is not alone in the world: its node is somebody else's."""
    common = Common(state_dir=str(folder), database_url=database_url, http_port=0)
    values = {
        "embedded_data_plane": False,
        "push_timeout_s": 1.0,
        "node_lost_s": 1.0,
        "usage_poll_interval_s": 3600,
        **app,
    }
    return Settings(common=with_defaults(common, {}), app=AppSettings(**values))


class Plane:
    """A running plane: `http` is a client of it, `app` its inside."""

    def __init__(self, app: App, http: httpx.AsyncClient) -> None:
        self.app = app
        self.http = http

    async def put_quota(self, tenant: str, limit: Any = 1, wait: str = "2s") -> dict[str, Any]:
        response = await self.http.put(f"/api/v1/quotas/{tenant}?wait={wait}", json={"limit_bytes": limit})
        assert response.is_success, response.text
        return response.json()

    async def put_pin(self, name: str, wait: str = "2s", **fields: Any) -> dict[str, Any]:
        response = await self.http.put(f"/api/v1/pins/{name}?wait={wait}", json={**PIN, **fields})
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

    async def until(self, holds: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Wait for something about the fleet; what nodes tell of themselves does not beat its pulse."""
        change_signal, deadline = self.app.parts.fleet.change_signal, time.monotonic() + timeout_s
        while not await change_signal.until(holds, LOOK_S):
            assert time.monotonic() < deadline, "it never came"

    async def until_fact(self, name: str, timeout_s: float = WAIT_S) -> dict[str, Any]:
        """Fields of the next fact of this name (or of one among the last 20)."""
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
        """Wait for the first event: a publisher says nothing to a subscriber that is still connecting."""
        async with asyncio.timeout(WAIT_S):
            while True:
                if self.app.parts.ingest.events:
                    return
                await asyncio.sleep(0.01)

    async def until_state(self, state: str, timeout_s: float = WAIT_S) -> None:
        parts = self.app.parts

        def holds() -> bool:
            return [parts.progress.state(node).value for node in parts.fleet.nodes.values()] == [state]

        await self.until(holds, timeout_s)


class _Unconditional(httpx.Auth):
    """Says `If-Match: *` when the server wants to hear what is expected: most tests do not care."""

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        response = yield request
        if response.status_code == 428:
            request.headers["If-Match"] = "*"
            yield request


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Plane]:
    """Start, yield, stop cleanly. A new SQLite file is a copy of a migrated one; routes are used again."""
    await migrated_file(settings.common.database_url)
    idle = _idle_routes[Routes.key_of(settings.app)]
    routes = idle.pop() if idle else Routes(settings.app)
    app = create_app(settings, routes)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        port = listener.getsockname()[1]
        config = uvicorn.Config(
            app, loop="none", http=protocol_of(app.parts.connections), ws="none", lifespan="on", log_config=None,
            access_log=False, proxy_headers=False, timeout_graceful_shutdown=1,
        )  # fmt: skip
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([listener]))
        while not server.started:
            assert not task.done(), "the server did not start"
            await asyncio.sleep(0.01)
        try:
            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}",
                trust_env=False,
                verify=False,
                timeout=20,
                auth=_Unconditional(),
            ) as http:
                yield Plane(app, http)
        finally:
            app.parts.bus.close()
            server.should_exit = True
            await task
            idle.append(routes)
