"""Files of contexts and tokens: written beside and renamed, read up to a bound."""

import os
import stat
from pathlib import Path

import click
import pytest

from app.cli.support.credentials import private_file


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
    assert private_file.read(file, "") == {"a": 1}


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    file = tmp_path / "contexts.json"
    file.mkdir()  # a folder cannot be replaced
    with pytest.raises(click.ClickException, match=r"contexts\.json cannot be written: Is a directory"):
        private_file.write(file, {})
    assert list(tmp_path.iterdir()) == [file]
