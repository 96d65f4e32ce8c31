"""The type of the recipe 'Add a record type' in CONTRIBUTING.md is stored, served, audited and has commands."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from litestar import Router

from app.cli.commands.records import nouns
from app.cli.support.resources.records import record_commands
from app.http.routes.records import records as routes
from app.observe import catalogue
from app.observe.catalogue import records as events
from app.schemas.records import ceilings as schemas
from app.services.records import ceilings as services
from app.store.base.declarative import Base
from app.store.records import ceilings as store
from tests.app.plane import Plane
from tests.app.problems import fault_paths
from tests.recipes import blocks

pytestmark = pytest.mark.anyio
PATH = "/api/v1/contacts"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the code of the recipe declares, with the imports of the modules of ceilings."""
    schema, table, fields, service, router, noun = blocks("Add a record type")
    names = {**vars(services), **vars(store), **vars(schemas)}
    for code in (schema, table, service):
        exec(code, names)
    for of_noun, own in eval(fields).items():
        made = tuple(events._event(of_noun, word, own) for word in ("created", "changed", "deleted"))
        monkeypatch.setitem(events.RECORD_EVENTS, of_noun, made)
        for event in made:
            monkeypatch.setitem(catalogue.CATALOGUE, catalogue.name_of(event), event)
    names["router"] = eval(router, vars(routes) | names)
    names["noun"] = eval(noun, vars(nouns) | names)
    yield names
    Base.metadata.remove(names["ContactRow"].__table__)


@pytest.mark.parametrize("settings", [{"body_limit_bytes": 1_000_003}], indirect=True, ids=["own-routes"])
async def test_the_type_of_the_recipe_is_served(new_plane: Plane, recipe: dict[str, Any]) -> None:
    async with new_plane.app.parts.database.write() as session:
        await (await session.connection()).run_sync(recipe["ContactRow"].__table__.create)
    new_plane.app.litestar.register(Router("/api/v1", route_handlers=[recipe["router"]]))

    made = await new_plane.http.put(f"{PATH}/acme", json={"address": "people@acme.example"})
    assert (made.status_code, made.json()["address"]) == (201, "people@acme.example"), made.text
    patched = await new_plane.http.patch(f"{PATH}/acme", json={"note": "n"}, headers={"If-Match": made.headers["etag"]})
    assert (patched.status_code, patched.json()["note"]) == (200, "n"), patched.text
    assert fault_paths(await new_plane.http.put(f"{PATH}/acme", json={"address": "a\x00"}))[0] == "address"

    commands = record_commands(recipe["noun"])
    for arguments in (["set", "acme", "--note", "more"], ["list"], ["delete", "acme"]):
        done = await asyncio.to_thread(
            CliRunner().invoke, commands, [*arguments, "--url", str(new_plane.http.base_url)]
        )
        assert done.exit_code == 0, done.output
        if arguments == ["list"]:
            assert "people@acme.example" in done.output
            assert "more" in done.output
    entries = (await new_plane.get("/api/v1/audit?kind=contact"))["items"]
    assert [entry["action"] for entry in entries] == ["delete", "update", "update", "create"]
    assert len(await new_plane.stored_events("name=contact.changed", 2)) == 2
