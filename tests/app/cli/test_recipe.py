"""The noun of the recipe 'Add a noun to the command line' in CONTRIBUTING.md lists the records."""

import asyncio
import sys
from types import ModuleType

import pytest
from click.testing import CliRunner

from app import cli
from tests.app.plane import Plane
from tests.recipes import code

pytestmark = pytest.mark.anyio
MODULE = "app.cli.commands.fleet.join_tokens"


async def test_the_noun_of_the_recipe_lists(plane: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(MODULE)
    exec(code("Add a noun to the command line"), vars(module))
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setitem(cli._COMMANDS, "join-tokens", ("fleet.join_tokens", "Show join tokens."))
    done = await asyncio.to_thread(CliRunner().invoke, cli.larder, ["join-tokens", "--url", str(plane.http.base_url)])
    assert done.exit_code == 0, done.output
    assert "Join tokens (0)\nid" in done.output
