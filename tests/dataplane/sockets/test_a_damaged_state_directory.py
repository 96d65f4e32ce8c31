"""A data plane starts whatever its state directory holds, and under a name that stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from dataplane.base.settings import SettingsError
from dataplane.recovery.state import StateDirectory


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_a_name_that_was_made_stays(folder: Path) -> None:
    name = StateDirectory(folder).node_name()
    assert name
    assert StateDirectory(folder).node_name() == name
    assert [each.name for each in folder.iterdir()] == ["node"]


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_directory_that_others_may_write_to_is_refused(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(SettingsError, match=f"mode {mode:o}, expected 700: .*'chmod 700 {folder}'"):
        StateDirectory(folder)
    folder.chmod(0o775)
    StateDirectory(folder)


def test_what_cannot_be_a_state_directory_is_refused_by_the_name_of_the_setting(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    expected = "state_dir: expected a directory that this user can write to, got"
    for path in (file, file / "below"):
        with pytest.raises(OSError, match=f"^{expected} {path}: it is a file, or below one$"):
            StateDirectory(path)
    with pytest.raises(OSError, match=f"^{expected} /proc/self/task: No such file or directory$"):
        StateDirectory(Path("/proc/self/task")).lock()  # nothing can be created there, as on a read-only file system


@pytest.mark.parametrize("contents", [b"\xff\xfe\x00node\n", b"", b"\n", b"x" * 200_000, b"a\x07b\n"])
def test_an_invalid_name_is_replaced_by_a_permanent_one(folder: Path, contents: bytes) -> None:
    folder.mkdir()
    (folder / "node").write_bytes(contents)
    name = StateDirectory(folder).node_name()
    assert 0 < len(name) <= 64
    assert StateDirectory(folder).node_name() == name
    if contents.strip():
        assert (folder / "node.corrupt").read_bytes() == contents


def test_a_node_has_a_name_where_none_can_be_stored(folder: Path) -> None:
    state = StateDirectory(folder)
    (folder / "node").mkdir()
    (folder / "node.corrupt").write_bytes(b"in the way")
    assert state.node_name()


def test_a_full_disk_leaves_no_empty_name_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateDirectory(folder)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("dataplane.recovery.state.os.fsync", full)
        assert state.node_name()
    assert list(folder.iterdir()) == []
    assert state.node_name() == state.node_name()


def test_a_snapshot_that_cannot_be_set_aside_is_left_out(folder: Path) -> None:
    state = StateDirectory(folder)
    (folder / "quotas.snapshot").write_bytes(b"junk")
    (folder / "quotas.corrupt").mkdir()
    assert state.load("quotas") is None
    assert (folder / "quotas.snapshot").read_bytes() == b"junk"
