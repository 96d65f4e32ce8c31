"""Messages about tokens and the journal say what is wrong, and what to do."""

from pathlib import Path

import pytest

from app.settings import Settings
from tests.app.callers import guarding
from tests.app.command import larder
from tests.app.plane import serving, settings_in

pytestmark = pytest.mark.anyio


async def test_a_setup_token_that_is_not_taken_is_told_as_one(socket_dir: Path) -> None:
    async with guarding(socket_dir) as plane:
        for wrong in ("WRONG", f"larder_setup_{'0' * 64}"):
            code, out, err = await larder(plane, "login", "--setup", wrong)
            assert (code, out) == (1, "")
            assert err.startswith("Error: --setup: ")
            assert "auth.setup_token" in err


async def test_who_has_no_token_hears_how_the_first_is_made(socket_dir: Path) -> None:
    async with serving(settings_in(socket_dir, auth="required")) as plane:
        code, _, err = await larder(plane, "quotas", "list")
        assert code == 1
        assert "'larder login --setup TOKEN'" in err
        assert "auth.setup_token" in err


async def test_a_journal_that_is_not_there_is_not_intact(settings: Settings, tmp_path: Path) -> None:
    async with serving(settings) as plane:
        code, out, err = await larder(plane, "audit", "verify", "--file", "-")
        assert (code, out, err) == (1, "", "Error: standard input: expected entries, got none\n")
        missing = tmp_path / "nope.db"
        code, _, err = await larder(plane, "audit", "verify", "--database", f"sqlite:///{missing}")
        assert (code, err) == (1, f"Error: the database cannot be read: there is no file '{missing}'\n")
        assert not missing.exists()
        missing.touch()
        code, _, err = await larder(plane, "audit", "verify", "--database", f"sqlite:///{missing}")
        assert (code, "sqlalche" in err) == (1, False)
        code, _, err = await larder(plane, "audit", "verify", "--expect", "abc")
        assert code == 2
        assert "--expect: expected a hash of 64 hex digits, got 'abc'" in err
