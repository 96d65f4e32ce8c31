"""Callers of a plane that authenticates: the settings' admin, and tokens that it makes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from app.settings import Settings
from tests.app.plane import Plane, serving, settings_in
from tests.app.problems import accepted

ADMIN = "an-admin-token-that-is-long-enough-0123456789"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def guarded(folder: Path, database_url: str = "", **app: Any) -> Settings:
    """Settings of a plane to which ADMIN is an admin."""
    return settings_in(folder, database_url, admin_token=ADMIN, **app)


@asynccontextmanager
async def guarding(folder: Path, database_url: str = "", **app: Any) -> AsyncIterator[Plane]:
    """A plane that authenticates; `plane.http` asks as the settings' admin."""
    async with serving(guarded(folder, database_url, **app)) as plane:
        plane.http.headers.update(bearer(ADMIN))
        yield plane


async def create_token(plane: Plane, name: str, role: str = "viewer", **fields: Any) -> str:
    """A new token."""
    answer = accepted(await plane.http.post("/api/v1/tokens", json={"name": name, "role": role, **fields}), 201)
    token: str = answer["token"]
    return token


async def send(plane: Plane, token: str, method: str, path: str, **more: Any) -> httpx.Response:
    """A request with this token, and with none when it is empty."""
    headers = {**(bearer(token) if token else {}), **more.pop("headers", {})}
    return await plane.others.request(method, path, headers=headers, **more)
