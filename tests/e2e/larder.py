"""`larder up` in a folder of its own, and what a test asks of it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx

from dataplane.client import Client, Space, attach
from tests.app.command import run
from tests.app.migrated import migrated_folder
from tests.environ import clean_environ
from tests.forked import Forked
from tests.free_port import free_port

BLOCK_BYTES = 64 << 10
POOL_BLOCKS = 64
MODEL = "llama"
START_S = 120.0
APPLIED_WITHIN = "30s"
"""The longest that a request may wait until what it writes is applied."""


def keys(name: str, count: int) -> list[bytes]:
    """A chain of keys that no other test has."""
    return [sha256(f"{name}/{at}".encode()).digest() for at in range(count)]


def until(event: Callable[[], Any], what: str, timeout_s: float = 60) -> Any:
    """Poll until `event()` is true; its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := event()):
        assert time.monotonic() < deadline, f"{what} within {timeout_s} s"
        time.sleep(0.02)
    return value


@dataclass
class Larder:
    """One running `larder up`."""

    folder: Path
    port: int
    process: Forked
    api: httpx.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def socket(self) -> str:
        return str(self.folder / "engine.sock")

    def get(self, path: str) -> Any:
        answer = self.api.get(f"/api/v1/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def put(self, path: str, **body: Any) -> Any:
        answer = self.api.put(f"/api/v1/{path}", json=body, params={"wait": APPLIED_WITHIN})
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    def delete(self, path: str) -> None:
        etag = self.api.get(f"/api/v1/{path}").headers["ETag"]
        answer = self.api.delete(f"/api/v1/{path}", headers={"If-Match": etag}, params={"wait": APPLIED_WITHIN})
        assert answer.status_code == 204, answer.text

    def ready(self) -> bool:
        try:
            return self.api.get("/healthz/fleet").status_code == 200
        except httpx.TransportError:
            return False

    def node(self) -> Any:
        return self.get("nodes")["items"][0]

    def tenant(self, name: str) -> Any:
        tenants = {each["tenant"]: each for each in self.get("overview")["tenants"]}
        return tenants.get(name, {"bytes": 0, "blocks": 0})

    def engine(self, **options: Any) -> Client:
        return attach(self.socket, [Space(model=MODEL, block_bytes=BLOCK_BYTES)], timeout_s=30, **options)

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run(*arguments, env={**os.environ, "LARDER_URL": self.url})


def environ_of(folder: Path, port: int, **settings: str) -> dict[str, str]:
    """The environment of `larder up`, with more settings, such as `LARDER_APP__AUTH="required"`."""
    return clean_environ() | {
        "LARDER_STATE_DIR": str(folder),
        "LARDER_DATAPLANE__KEEP_MEMORY_S": "0",
        "LARDER_APP__STANDBY": "false",
        "LARDER_APP__SHUTDOWN_GRACE_S": "20",  # a busy machine takes longer than the default
        "LARDER_LMCACHE_PORT": "0",
        "LARDER_HTTP_PORT": str(port),
        "LARDER_POOL_BYTES": str(POOL_BLOCKS * BLOCK_BYTES),
        **settings,
    }


def start(folder: Path, port: int, **settings: str) -> Forked:
    migrated_folder(folder)
    with (folder / "log").open("ab") as log:
        return Forked("app", "up", env=environ_of(folder, port, **settings), stdout=log, stderr=log)


@contextmanager
def running(folder: Path, **settings: str) -> Iterator[Larder]:
    """A ready Larder with these settings; stopped by SIGTERM at the end, which must work."""
    port = free_port()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as api:
        larder = Larder(folder, port, start(folder, port, **settings), api)
        try:
            until(larder.ready, "ready", timeout_s=START_S)
            yield larder
            larder.process.send_signal(signal.SIGTERM)
            assert larder.process.wait(timeout=60) == 0, "a clean stop"
        finally:
            larder.process.kill()
            larder.process.wait(60)


def store(client: Client, chain: list[bytes], tenant: str = "") -> int:
    """Store a chain; every byte of a block is the first byte of its key. Returns published blocks."""
    with client.reserve(chain, BLOCK_BYTES, tenant=tenant) as reservation:
        for at in reservation.writable:
            reservation.array(at)[:] = chain[at][0]
        return reservation.commit().blocks


def cached(client: Client, chain: list[bytes]) -> int:
    """Leading blocks of a chain that are cached, each with every byte right."""
    with client.acquire(chain) as lease:
        for at in range(len(lease)):
            assert (lease.array(at) == chain[at][0]).all(), "a byte is wrong"
        return len(lease)
