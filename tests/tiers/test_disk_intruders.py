"""A directory of a disk tier that others can write to, or that is not one of a tier."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dataplane.protocol.stored_blocks import Outcome
from dataplane.tiers.disk.own_file import open_own
from dataplane.tiers.tier import TierError
from tests.tiers.blocks import assert_holds, block, store
from tests.tiers.disk_backend import DiskBackend

PRECIOUS = b"the file of another program"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "tier"


@pytest.fixture
def backend(folder: Path) -> DiskBackend:
    return DiskBackend(folder)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    path = tmp_path / "victim"
    path.write_bytes(PRECIOUS)
    return path


def _link(path: Path, victim: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(victim)


def _hard_link(path: Path, victim: Path) -> None:
    path.unlink(missing_ok=True)
    path.hardlink_to(victim)


@pytest.mark.parametrize("plant", [_link, _hard_link])
@pytest.mark.parametrize("name", ["lock", "segment-000000", "segment-000007", "superblock.json"])
def test_a_link_instead_of_a_file_is_refused_and_not_followed(
    backend: DiskBackend, folder: Path, victim: Path, name: str, plant: Callable[[Path, Path], None]
) -> None:
    tier = backend.open()
    assert store(tier, block(1, 5000)) == [Outcome.OK]
    tier.close()
    plant(folder / name, victim)
    with pytest.raises(TierError, match=r"expected a (regular file|file without other hard links)"):
        backend.open()
    assert victim.read_bytes() == PRECIOUS


@pytest.mark.parametrize("plant", [_link, _hard_link])
def test_links_instead_of_files_that_are_written_again_are_replaced(
    backend: DiskBackend, folder: Path, victim: Path, plant: Callable[[Path, Path], None]
) -> None:
    tier = backend.open()
    stored = block(1, 5000)
    assert store(tier, stored) == [Outcome.OK]
    tier.close()
    for name in ("journal", "journal.new"):
        plant(folder / name, victim)
    tier = backend.open()
    assert_holds(tier, [stored])
    tier.close()
    assert victim.read_bytes() == PRECIOUS


def test_a_link_instead_of_the_next_superblock_is_replaced(backend: DiskBackend, folder: Path, victim: Path) -> None:
    folder.mkdir()
    (folder / "superblock.json.new").symlink_to(victim)
    backend.open().close()
    assert victim.read_bytes() == PRECIOUS


@pytest.mark.parametrize("others", [[], ["status"]])
def test_the_lock_of_another_program_is_left_as_it_is(backend: DiskBackend, folder: Path, others: list[str]) -> None:
    folder.mkdir()
    for name in ("lock", *others):
        (folder / name).write_bytes(PRECIOUS)
    with pytest.raises(TierError, match="expected an empty directory or one of a tier"):
        backend.open()
    assert (folder / "lock").read_bytes() == PRECIOUS


def test_nothing_is_written_to_a_directory_of_other_files(backend: DiskBackend, folder: Path) -> None:
    folder.mkdir()
    (folder / "notes").write_bytes(PRECIOUS)
    with pytest.raises(TierError, match="expected an empty directory or one of a tier, found notes"):
        backend.open()
    assert os.listdir(folder) == ["notes"]


def test_an_interrupted_start_leaves_a_directory_that_can_be_used(backend: DiskBackend, folder: Path) -> None:
    folder.mkdir()
    (folder / "lock").write_text("node n, process 12\n")
    (folder / "superblock.json.new").write_text("{")
    backend.open().close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused_unless_the_directory_is_theirs(tmp_path: Path) -> None:
    path = tmp_path / "segment-000000"
    path.write_bytes(PRECIOUS)
    os.chown(path, 65_534, -1)
    with pytest.raises(PermissionError, match="expected a file of uid 0"):
        open_own(path, os.O_RDWR)
    os.chown(tmp_path, 65_534, -1)
    os.close(open_own(path, os.O_RDWR))


@pytest.mark.parametrize("name", ["segment-1", "segment-٣", f"segment-{10**20}", "segment-000000000007"])
def test_names_that_no_segment_has_are_ignored(backend: DiskBackend, folder: Path, name: str) -> None:
    tier = backend.open()
    stored = block(1, 5000)
    assert store(tier, stored) == [Outcome.OK]
    tier.close()
    (folder / name).write_bytes(PRECIOUS)
    tier = backend.open()
    assert_holds(tier, [stored])
    tier.close()
    assert (folder / name).read_bytes() == PRECIOUS
