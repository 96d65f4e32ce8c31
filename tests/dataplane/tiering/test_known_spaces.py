"""The file with the models of spaces: what it keeps, and that damage to it does no harm."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dataplane.protocol.spaces import Space
from dataplane.tiering import known_spaces
from dataplane.tiering.known_spaces import FILE, KnownSpaces


def at_once(work: Callable[[], None], done: Callable[[object], None]) -> None:
    work()
    done(None)


def identity(number: int) -> bytes:
    return number.to_bytes(16, "little")


def test_spaces_are_there_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_spaces, "MAX_SPACES", 3)
    spaces = KnownSpaces(tmp_path, at_once)
    assert spaces.spaces == {}
    for number in range(5):
        spaces.add(identity(number), Space(f"model {number}"))
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    newest = {identity(number): Space(f"model {number}") for number in (2, 3, 4)}
    assert KnownSpaces(tmp_path, at_once).spaces == spaces.spaces == newest


def test_one_write_follows_the_other(tmp_path: Path) -> None:
    running: list[tuple[Callable[[], None], Callable[[object], None]]] = []
    spaces = KnownSpaces(tmp_path, lambda work, done: running.append((work, done)))
    for number in range(3):
        spaces.add(identity(number), Space("m"))
    for written in (1, 3):
        ((work, done),) = running
        running.clear()
        work()
        done(None)
        assert len(KnownSpaces(tmp_path, at_once).spaces) == written
    assert running == []


def test_a_damaged_file_is_replaced(tmp_path: Path) -> None:
    for data in (b"", b"\xff", b"\x93\x01\x02\x03", b"\x81\xc4\x01a\x05", b"\x81\xc4\x01a\xa1\xff"):
        (tmp_path / FILE).write_bytes(data)
        spaces = KnownSpaces(tmp_path, at_once)
        assert spaces.spaces == {}
        spaces.add(identity(1), Space("m"))
        assert KnownSpaces(tmp_path, at_once).spaces == {identity(1): Space("m")}


def test_a_folder_that_takes_no_file_does_no_harm(tmp_path: Path) -> None:
    spaces = KnownSpaces(tmp_path / "missing", at_once)
    spaces.add(identity(1), Space("m"))
    assert spaces.spaces == {identity(1): Space("m")}


def test_a_file_of_an_older_release_has_only_models(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(msgspec.msgpack.encode({identity(1): "m", identity(2): "n"}))
    spaces = KnownSpaces(tmp_path, at_once)
    assert (spaces.models, spaces.spaces) == ({identity(1): "m", identity(2): "n"}, {})
    spaces.add(identity(1), Space("m", block_bytes=4096))
    again = KnownSpaces(tmp_path, at_once)
    assert again.models == {identity(1): "m", identity(2): "n"}
    assert again.spaces == {identity(1): Space("m", block_bytes=4096)}
