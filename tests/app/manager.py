"""A management plane in a process of its own, as one of several that share a database."""

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from app.change_signal import ChangeSignal
from tests.environ import clean_environ
from tests.forked import Forked

START_S = 90.0


class Manager:
    """`lines` are the log, as dicts; wait for one with `until_line`."""

    def __init__(self, folder: Path, database_url: str, control_url: str, **environ: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.lines: list[dict[str, Any]] = []
        self.grew = ChangeSignal()
        self.closed = False
        self._environ = clean_environ() | {
            "LARDER_STATE_DIR": str(folder),
            "LARDER_LMCACHE_PORT": "0",
            "LARDER_DATABASE_URL": database_url,
            "LARDER_CONTROL_URL": control_url,
            "LARDER_HTTP_PORT": "0",
            "LARDER_APP__EMBEDDED_DATA_PLANE": "false",
            "LARDER_APP__LOG_FORMAT": "json",
            **environ,
        }

    async def start(self) -> None:
        """Until it serves."""
        self.process = await asyncio.to_thread(
            Forked, "app", "up", env=self._environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._reader = asyncio.create_task(self._read())
        line = await self.until_line("larder.started", START_S)
        self.http = httpx.AsyncClient(base_url=line["url"], trust_env=False, verify=False, timeout=60)

    async def _read(self) -> None:
        output = asyncio.StreamReader(limit=1 << 20)
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(output), self.process.stdout
        )
        async for raw in output:
            text = raw.decode(errors="replace").rstrip()
            try:
                line = json.loads(text)
            except ValueError:
                line = {"event": "", "text": text}
            self.lines.append(line)
            sys.stdout.write(f"{self.folder.name}: {text[:400]}\n")  # shown when the test fails
            self.grew.notify()
        self.closed = True
        self.grew.notify()

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line.get("event") == name]

    async def until_line(self, name: str, timeout_s: float = 60.0, after: int = 0) -> dict[str, Any]:
        """The first line of this name that came after so many of the same."""
        assert await self.grew.until(lambda: len(self.events(name)) > after or self.closed, timeout_s), (
            f"{self.folder.name} never said {name}"
        )
        found = self.events(name)
        assert len(found) > after, f"{self.folder.name} ended"
        return found[after]

    async def leads(self, timeout_s: float = 60.0, after: int = 0) -> None:
        await self.until_line("manager.promoted", timeout_s, after)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def get(self, path: str) -> Any:
        response = await self.http.get(path)
        assert response.is_success, response.text
        return response.json()

    async def put_quota(self, tenant: str, limit: int) -> httpx.Response:
        """In whatever state the record is."""
        path, body = f"/api/v1/quotas/{tenant}", {"limit_bytes": limit}
        response = await self.http.put(path, json=body)
        if response.status_code == 428:
            response = await self.http.put(path, json=body, headers={"If-Match": "*"})
        return response

    async def stream(self) -> AsyncGenerator[dict[str, Any], None]:
        """Events that the stream sends from now on."""
        async with self.http.stream("GET", "/api/v1/events") as response:
            name = ""
            async for line in response.aiter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: ") and name == "event":
                    yield json.loads(line[6:])
                elif line.startswith("retry: "):
                    yield {"name": "opened", "fields": {}}

    async def end(self) -> None:
        """Stop it, however it is."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self.process.wait, 30)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            await asyncio.to_thread(self.process.wait, 30)
        await self._reader
        if hasattr(self, "http"):
            await self.http.aclose()


@asynccontextmanager
async def running(*managers: Manager) -> AsyncIterator[None]:
    """Start them all at once; stop all of them."""
    try:
        await asyncio.gather(*(manager.start() for manager in managers))
        yield
    finally:
        await asyncio.gather(*(manager.end() for manager in managers))
