"""Files of contexts and tokens: written beside and renamed, read up to a bound."""

import os
import stat
from pathlib import Path

import click
import pytest

from app.cli.support.credentials import contexts, private_file
from app.cli.support.credentials.contexts import Context, Contexts
from tests.app.callers import ADMIN, guarding
from tests.app.command import larder, output

pytestmark = pytest.mark.anyio


def test_a_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    file = tmp_path / "larder" / "contexts.json"
    file.parent.mkdir()
    (file.parent / f".{file.name}.{os.getpid()}").symlink_to(victim)  # a name that another user can guess
    private_file.write(file, {"a": 1})
    assert victim.read_text() == "untouched"
    assert not file.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert private_file.read(file, dict[str, int], "", "") == {"a": 1}


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "contexts.json"
    file.mkdir()  # a folder cannot be replaced
    with pytest.raises(click.ClickException, match=r"contexts\.json cannot be written: Is a directory"):
        private_file.write(file, {})
    assert list(tmp_path.iterdir()) == [file]


def test_many_contexts_are_stored_and_too_many_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    many = {f"name-{number}": Context("http://127.0.0.1:8470", "t" * 64) for number in range(1_000)}
    contexts.save(Contexts("name-0", many))
    assert contexts.path().stat().st_size > 65_536
    assert contexts.load() == Contexts("name-0", many)
    before = contexts.path().read_bytes()
    with pytest.raises(
        click.ClickException, match=r"contexts\.json: expected at most 1 MiB, got .* nothing was stored"
    ):
        contexts.save(Contexts("", {"a": Context("http://127.0.0.1:1", "t" * (1 << 20))}))
    assert contexts.path().read_bytes() == before


async def test_a_file_that_is_too_large_fails_only_commands_that_need_it(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    contexts.path().parent.mkdir()
    contexts.path().touch(mode=0o600)
    contexts.path().write_text(" " * (1 << 20) + "{}")
    async with guarding(socket_dir) as plane:
        assert await output(plane, "quotas", "list", "-o", "name", token=ADMIN) == ""
        code, out, err = await larder(plane, "context", "list")
    assert (code, out) == (1, "")
    assert "contexts.json: expected at most 1 MiB, got more; 'larder context add' writes a new one" in err
