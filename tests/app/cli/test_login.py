"""Messages about tokens and the journal say what is wrong, and what to do."""

import asyncio
import json
import os
from pathlib import Path

import pytest
import structlog

from app.settings import Settings
from dataplane.base import log
from tests.app.callers import ADMIN, create_token, guarding
from tests.app.command import larder, output, refused, run
from tests.app.plane import serving, settings_in

pytestmark = pytest.mark.anyio


async def test_a_refused_setup_token_is_reported_as_one(socket_dir: Path) -> None:
    async with guarding(socket_dir) as plane:
        for wrong in ("WRONG", f"larder_setup_{'0' * 64}"):
            err = await refused(plane, 5, "login", "--setup", wrong)
            assert "\nError: --setup: " in err
            assert "auth.setup_token" in err
            assert "no later start does" in err
            assert "app.admin_token_file" in err


@pytest.mark.parametrize("way", ["typed", "minus", "environment", "file", "argument"])
async def test_a_setup_token_need_not_be_an_argument(
    socket_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with structlog.testing.capture_logs() as logged:
        async with serving(settings_in(socket_dir, auth="required")) as plane:
            (line,) = [log._bounded(None, "", line) for line in logged if line["event"] == "auth.setup_token"]
            setup = line["setup"]
            file = tmp_path / "setup"
            file.touch(mode=0o600)
            file.write_text(f"{setup}\n")
            arguments = {"typed": ["--setup", "--name", "alice"], "minus": ["--setup", "-"]}.get(way, ["--setup"])
            if way == "file":
                arguments = ["--setup-file", str(file)]
                file.chmod(0o644)
                assert "chmod 600" in await refused(plane, 1, "login", *arguments)
                file.chmod(0o600)
            if way == "environment":
                monkeypatch.setenv("LARDER_SETUP_TOKEN", setup)
            if way == "argument":
                arguments = ["--setup", setup]
            typed = f"{setup}\n" if way in ("typed", "minus") else ""
            code, out, err = await larder(plane, "login", *arguments, typed=typed)
            assert code == 0, err
            assert out.startswith("made the first token")
            assert ("can be seen by others" in err) == (way == "argument")


@pytest.mark.parametrize("chosen", [True, False])
async def test_the_token_of_a_context_is_stored_with_it(
    socket_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, chosen: bool
) -> None:
    """Also of the current one, whose token would win over a stored one."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("LARDER_TOKEN", raising=False)
    environ = {**os.environ, "LARDER_URL": ""}
    option = ["--context", "prod"] if chosen else []
    async with guarding(socket_dir) as plane:
        alice, bob = await create_token(plane, "alice"), await create_token(plane, "bob")

        async def printed(*arguments: str, typed: str = "") -> str:
            done = await asyncio.to_thread(run, *arguments, *option, env=environ, typed=typed)
            return done.stdout + done.stderr

        if chosen:
            run("context", "add", "other", "--url", "http://127.0.0.1:1", env=environ)
        added = ["context", "add", "prod", "--url", str(plane.http.base_url), "--token-stdin"]
        assert run(*added, env=environ, typed=alice).returncode == 0
        assert (await printed("whoami")).startswith("alice")
        assert "contexts.json" in await printed("login", typed=bob)
        assert (await printed("whoami")).startswith("bob")
        assert (await printed("logout")).startswith("logged out at ")
        assert "larder login" in await printed("whoami")


@pytest.mark.parametrize("token", ["", f"larder_abc_{'0' * 64}"])
async def test_a_caller_without_a_valid_token_is_sent_to_log_in(socket_dir: Path, token: str) -> None:
    async with guarding(socket_dir) as plane:
        err = await refused(plane, 5, "quotas", "list", token=token)
        assert "--setup" not in err
        assert f"'larder login --url {plane.http.base_url}' stores a valid token" in " ".join(err.split())
    async with serving(settings_in(socket_dir, auth="required")) as plane:
        err = await refused(plane, 5, "quotas", "list", token=token)
        assert "'larder login --setup' creates the first" in err
        assert "auth.setup_token" in err


async def test_a_missing_journal_is_not_intact(settings: Settings, tmp_path: Path) -> None:
    async with serving(settings) as plane:
        err = await refused(plane, 1, "audit", "verify", "--file", "-")
        assert err == "Error: standard input: expected entries, got none\n"
        missing = tmp_path / "nope.db"
        err = await refused(plane, 1, "audit", "verify", "--database", f"sqlite:///{missing}")
        assert err == f"Error: the database cannot be read: there is no file '{missing}'\n"
        assert not missing.exists()
        missing.touch()
        assert "sqlalche" not in await refused(plane, 1, "audit", "verify", "--database", f"sqlite:///{missing}")
        err = await refused(plane, 2, "audit", "verify", "--expect", "abc")
        assert "--expect: expected a hash of 64 hex digits, got 'abc'" in err


async def test_a_token_is_got_by_its_name_without_its_secret(socket_dir: Path) -> None:
    async with guarding(socket_dir) as plane:
        token = await create_token(plane, "reader")
        out = await output(plane, "tokens", "get", "reader", "--json", token=ADMIN)
        assert json.loads(out)["role"] == "viewer"
        assert token not in out
        assert await refused(plane, 4, "tokens", "get", "nobody", token=ADMIN) == "Error: there is no token 'nobody'\n"
