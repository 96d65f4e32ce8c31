"""`POST /api/v1/actions/restart` where nothing can be restarted, and with bodies that are wrong."""

from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from tests.app.command import output
from tests.app.plane import Plane, serving, settings_in
from tests.app.problems import is_problem

pytestmark = pytest.mark.anyio
PATH = "/api/v1/actions/restart"


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    async with serving(settings_in(tmp_path)) as running:
        yield running


async def test_a_plane_that_larder_up_did_not_start_reports_it_and_continues(plane: Plane) -> None:
    for body in ({}, {"fresh": True}, {"dry_run": True}):
        assert "was not started by `larder up`" in is_problem(await plane.http.post(PATH, json=body), 409)["detail"]
    assert (await plane.http.get("/healthz")).status_code == 200


async def test_a_data_plane_of_another_service_is_not_restarted(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    restarts = plane.app.parts.fleet_services.restarts
    restarts.replace_self = lambda: True
    monkeypatch.setattr(restarts, "_checked", AsyncMock(return_value={}))
    out = await output(plane, "restart", "--dry-run")
    assert out == "data plane: not restarted; it is a service of its own, and keeps its cache\n"


@pytest.mark.parametrize(
    ("body", "field"), [({"fresh": "yes"}, "fresh"), ({"dry_run": 1}, "dry_run"), ({"no_such": True}, "no_such")]
)
async def test_a_field_that_is_wrong_is_named(plane: Plane, body: dict[str, object], field: str) -> None:
    answer = await plane.http.post(PATH, json=body)
    assert answer.status_code == 422
    assert field in answer.text


async def test_health_names_the_instance(plane: Plane) -> None:
    first = (await plane.http.get("/healthz")).json()["instance"]
    assert first
    assert (await plane.http.get("/healthz")).json()["instance"] == first
