"""Directories that another node uses, that are full, or that fail while a tier is open."""

import contextlib
import errno
import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from dataplane.protocol.stored_blocks import Loaded, Outcome
from dataplane.tiers.disk import directory
from dataplane.tiers.disk.disk_tier import DiskTier
from dataplane.tiers.disk.own_file import open_own
from dataplane.tiers.registry import ParameterError
from dataplane.tiers.tier import BlockLoad, TierError
from tests.tiers.blocks import OTHER_CLUSTER, assert_holds, assert_lacks, block, load, name, soon, store
from tests.tiers.disk_backend import MIB, SEGMENT_BYTES, DiskBackend, slot_of


def _fails(
    monkeypatch: pytest.MonkeyPatch, function: str, error: int, fails: Callable[[Path], bool]
) -> Callable[[], None]:
    """Make a function of `os` fail for descriptors of some files. Return what mends it."""
    real = getattr(os, function)

    def failing(fd: int, *arguments: Any) -> Any:
        if fails(Path(os.readlink(f"/proc/self/fd/{fd}"))):
            raise OSError(error, os.strerror(error))
        return real(fd, *arguments)

    monkeypatch.setattr(os, function, failing)
    return lambda: monkeypatch.setattr(os, function, real)


# --- who may use a directory


def test_a_second_node_is_refused_while_the_first_runs_and_continues_its_directory_then(tmp_path: Path) -> None:
    backend = DiskBackend(tmp_path / "one")
    first = backend.open(node="node-1")
    with pytest.raises(TierError, match=rf"{tmp_path}/one: in use by node node-1, process {os.getpid()}$"):
        backend.open(node="node-2")
    kept = block(1, MIB)
    store(first, kept)
    first.close()
    with capture_logs() as lines:
        second = backend.open(node="node-2")
    assert [(line["event"], line["node_before"]) for line in lines] == [("tier.directory_continued", "node-1")]
    assert_holds(second, [kept])
    superblock = msgspec.json.decode((tmp_path / "one" / "superblock.json").read_bytes())
    assert superblock["node"] == "node-2"


def test_a_refused_directory_leaves_the_others_free(tmp_path: Path) -> None:
    DiskBackend(tmp_path / "two").open()
    with pytest.raises(TierError, match="two: in use"):
        DiskBackend(tmp_path / "one", tmp_path / "two").open()
    DiskBackend(tmp_path / "one").open().close()


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    backend = DiskBackend(tmp_path / "one")
    backend.open().close()
    with pytest.raises(
        TierError,
        match=rf"/one: expected a directory of this node's tier_cluster 'staging' \({OTHER_CLUSTER.hex()[:8]}…\), "
        r"got one that node node-1 used with another tier_cluster",
    ):
        backend.open(OTHER_CLUSTER, cluster_name="staging")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"version": 2}, "expected format version 1 or older, got 2"),
        ({"version": 2, "segment_bytes": None, "more": {}}, "expected format version 1 or older, got 2"),
        ({"magic": "OTHER"}, "superblock.json is damaged"),
        ({"cluster": "zz"}, "superblock.json is damaged"),
        ({"segment_bytes": 0}, "superblock.json is damaged"),
        ({"segment_bytes": 1 << 50}, "superblock.json is damaged"),  # the tables of its slots would take all memory
        ({"segment_bytes": 65_537}, "superblock.json is damaged"),
        ({"more": msgspec.Raw(b"[" * 20_000 + b"]" * 20_000)}, "superblock.json is damaged"),
    ],
)
def test_a_superblock_of_a_newer_version_or_a_damaged_one_is_refused(
    tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    backend = DiskBackend(tmp_path / "one")
    backend.open().close()
    path = tmp_path / "one" / "superblock.json"
    path.write_bytes(msgspec.json.encode(msgspec.json.decode(path.read_bytes()) | changes))
    with pytest.raises(TierError, match=f"{tmp_path}/one: {reason}"):
        backend.open()


def test_a_new_file_system_is_empty(tmp_path: Path) -> None:
    (tmp_path / "one" / "lost+found").mkdir(parents=True)
    DiskBackend(tmp_path / "one").open().close()


def test_a_lock_file_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    tier = DiskBackend(tmp_path / "one").open()
    (tmp_path / "one" / "lock").unlink()
    (tmp_path / "one" / "lock").touch()
    health = tier.health(soon())
    assert not health.ok
    assert "the directory was replaced" in health.reason


def test_a_budget_below_one_segment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ParameterError,
        match=r"budget_bytes: expected at least one segment of 4 MiB \(parameters\.segment_bytes\), got ",
    ):
        DiskBackend(tmp_path / "one", budget_bytes=SEGMENT_BYTES - 1).open()


def test_a_directory_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="directories: expected each directory once"):
        DiskBackend(tmp_path / "one", tmp_path / "one").open()


# --- O_DIRECT


def test_direct_io_is_used_where_the_file_system_has_it(tmp_path: Path) -> None:
    tier = DiskBackend(tmp_path / "one").open()
    stored = block(1, 5000)
    store(tier, stored)
    segment, _ = slot_of(tier, stored.block.name)
    direct = bool(fcntl.fcntl(segment.fd, fcntl.F_GETFL) & os.O_DIRECT)
    reason = tier.health(soon()).reason
    assert direct == tier._directories[0].direct
    assert direct == (reason == "")


def test_a_file_system_without_direct_io_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "_supports_direct_io", lambda folder: False)
    tier = DiskBackend(tmp_path / "one").open()
    stored = block(1, 70_001)
    assert store(tier, stored) == [Outcome.OK]
    assert_holds(tier, [stored])
    health = tier.health(soon())
    assert health.ok
    assert health.reason == f"{tmp_path}/one: I/O is buffered, without O_DIRECT"
    tier.close()
    with pytest.raises(TierError, match=f"{tmp_path}/one: the file system has no O_DIRECT, and direct_io is on"):
        DiskBackend(tmp_path / "one", direct_io="on").open()


# --- full devices


def test_a_full_device_is_full_and_not_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier = DiskBackend(tmp_path / "one").open()
    whole = block(1, MIB)
    store(tier, whole)
    mend = _fails(monkeypatch, "posix_fallocate", errno.ENOSPC, lambda path: True)
    outcomes = store(tier, *(block(number, MIB) for number in range(2, 12)))
    assert outcomes.count(Outcome.OK) == 2  # the rest of the segment that is there
    assert set(outcomes) == {Outcome.OK, Outcome.FULL}
    assert len(list((tmp_path / "one").glob("segment-*"))) == 1
    assert tier.health(soon()).reason == ""
    assert_holds(tier, [whole])
    mend()
    tier._directories[0].min_free_bytes = 0  # as when the device has more room
    assert store(tier, block(20, MIB)) == [Outcome.OK]


def test_a_full_device_keeps_segments_that_are_given_to_another_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = DiskBackend(tmp_path / "one").open()
    stored = block(1, MIB)
    store(tier, stored)
    tier.delete([stored.block.name], soon())
    mend = _fails(monkeypatch, "posix_fallocate", errno.ENOSPC, lambda path: True)
    assert store(tier, block(2, 5000)) == [Outcome.FULL]
    assert store(tier, block(3, MIB)) == [Outcome.FULL]
    mend()
    again = [block(4, 5000), block(5, MIB)]
    assert store(tier, *again[:1]) == [Outcome.OK]
    tier._directories[0].min_free_bytes = 0
    assert store(tier, *again[1:]) == [Outcome.OK]
    tier.close()
    tier = DiskBackend(tmp_path / "one").scanned()
    assert_holds(tier, again)


@contextlib.contextmanager
def _small_file_system(folder: Path, size: int) -> Iterator[None]:
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if (
        os.geteuid()
        or not shutil.which("mount")
        or subprocess.run(command, capture_output=True, check=False).returncode
    ):
        pytest.skip("this user may not mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=60)


def test_a_small_file_system_is_filled_and_no_more(tmp_path: Path) -> None:
    with _small_file_system(tmp_path / "small", 10 * MIB):
        backend = DiskBackend(tmp_path / "small", budget_bytes=6 * SEGMENT_BYTES)
        tier = backend.open()
        stored = [block(number, MIB) for number in range(10)]
        outcomes = store(tier, *stored)
        whole = [each for each, outcome in zip(stored, outcomes, strict=True) if outcome is Outcome.OK]
        assert len(whole) == 6  # three to a segment
        assert outcomes.count(Outcome.FULL) == 4
        assert_holds(tier, whole)
        tier.close()
        tier = backend.open()
        assert_holds(tier, whole)
        tier.close()


def test_a_journal_that_cannot_be_written_is_replaced_by_the_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = DiskBackend(tmp_path / "one")
    tier = backend.open()
    before = [block(number, 5000) for number in range(4)]
    store(tier, *before)
    mend = _fails(monkeypatch, "write", errno.ENOSPC, lambda path: path.name.startswith("journal"))
    after = [block(number, 5000) for number in range(10, 14)]
    assert store(tier, *after) == [Outcome.OK] * 4
    tier.delete([before[0].block.name], soon())
    health = tier.health(soon())
    assert "No space left on device" in health.reason
    assert not list((tmp_path / "one").glob("journal*"))
    mend()
    tier.close()
    tier = backend.open()
    assert "No such file" in tier._directories[0].recovered_by
    assert_holds(tier, before[1:] + after)
    assert_lacks(tier, before[:1])


def test_a_journal_is_written_again_when_the_device_has_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = DiskBackend(tmp_path / "one")
    tier = backend.open()
    mend = _fails(monkeypatch, "write", errno.ENOSPC, lambda path: path.name.startswith("journal"))
    stored = [block(number, 5000) for number in range(8)]
    store(tier, *stored[:4])
    mend()
    assert tier.health(soon()) == type(tier.health(soon()))(True, "")
    store(tier, *stored[4:])
    tier.close()
    tier = backend.open()
    assert tier._directories[0].recovered_by == ""
    assert_holds(tier, stored)


@pytest.mark.parametrize("files", [("journal", "journal.new"), ("journal",)], ids=["all", "the old journal"])
def test_a_smaller_budget_is_met_while_the_device_has_no_room_for_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...]
) -> None:
    backend = DiskBackend(tmp_path / "one")
    tier = backend.open()
    store(tier, *(block(number, MIB) for number in range(1, 12)))
    tier.close()
    mend = _fails(monkeypatch, "write", errno.ENOSPC, lambda path: path.name in files)
    tier = backend.open(budget_bytes=SEGMENT_BYTES)
    mend()
    assert backend.segment_bytes_on_disk() == SEGMENT_BYTES
    without = "journal.new" in files
    assert ("No space left on device" in tier._directories[0].journal_fault) == without
    tier.delete([stored.name for stored in tier.blocks()], soon())
    stored = [block(number, MIB) for number in range(20, 22)]
    assert store(tier, *stored) == [Outcome.OK] * 2
    tier._directories.pop().close(clean=False)  # as the end of the process does
    tier = backend.open(budget_bytes=SEGMENT_BYTES)
    assert ("No such file" in tier._directories[0].recovered_by) == without
    assert_holds(tier, stored)


# --- directories that fail


def _two(tmp_path: Path) -> tuple[DiskTier, Path, Path]:
    tier = DiskBackend(tmp_path / "one", tmp_path / "two").open()
    return tier, tmp_path / "one", tmp_path / "two"


@pytest.mark.parametrize("error", [errno.EIO, errno.EROFS])
def test_a_directory_that_cannot_be_written_leaves_the_others_in_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    tier, one, two = _two(tmp_path)
    stored = [block(number, 5000) for number in range(20)]
    store(tier, *stored)
    assert all(list(folder.glob("segment-*")) for folder in (one, two))
    mend = _fails(monkeypatch, "pwritev", error, lambda path: path.is_relative_to(one))
    mend_owner = _fails(monkeypatch, "pwrite", error, lambda path: path.is_relative_to(one))
    more = [block(number, 5000) for number in range(20, 60)]
    assert store(tier, *more) == [Outcome.OK] * 40
    assert_holds(tier, stored + more)
    health = tier.health(soon())
    assert health.ok
    assert health.reason == f"{one}: probe failed: {os.strerror(error)}"
    mend()
    mend_owner()
    assert tier.health(soon()).reason == ""
    assert store(tier, *(block(number, 5000) for number in range(60, 100))) == [Outcome.OK] * 40
    tier.close()
    tier = DiskBackend(one, two).open()
    assert_holds(tier, stored + more)


def test_without_a_directory_in_service_the_tier_is_not_usable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier, one, two = _two(tmp_path)
    whole = block(1, 5000)
    store(tier, whole)
    _fails(monkeypatch, "pwritev", errno.EIO, lambda path: True)
    assert store(tier, block(2, 5000)) == [Outcome.FAILED]
    with pytest.raises(TierError, match=f"{one}: write failed: Input/output error; {two}: "):
        store(tier, block(3, 5000))
    assert_holds(tier, [whole])


def test_a_block_that_cannot_be_read_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tier, _, _ = _two(tmp_path)
    bad, good = block(1, 5000), block(2, 90_000)
    store(tier, bad, good)
    path = slot_of(tier, bad.block.name)[0].path
    _fails(monkeypatch, "preadv", errno.EIO, lambda each: each == path)
    assert load(tier, bad)[0] == Loaded(Outcome.FAILED)
    assert_holds(tier, [good])


def test_a_block_that_cannot_be_erased_is_not_reported_as_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = DiskBackend(tmp_path / "one").open()
    stored = block(1, 5000)
    store(tier, stored)
    _fails(monkeypatch, "pwritev", errno.EIO, lambda path: True)
    assert tier.delete([name(1)], soon()) == [Outcome.FAILED]
    assert_lacks(tier, [stored])
    assert tier.usage().stored_bytes == tier.stored_size(5000)


def test_a_directory_that_is_removed_is_noticed(tmp_path: Path) -> None:
    tier, one, two = _two(tmp_path)
    store(tier, *(block(number, 5000) for number in range(20)))
    shutil.rmtree(one)
    health = tier.health(soon())
    assert health.ok
    assert health.reason == f"{one}: probe failed: No such file or directory"
    more = [block(number, MIB) for number in range(20, 40)]
    assert store(tier, *more) == [Outcome.OK] * 20
    assert_holds(tier, more)
    assert all(slot_of(tier, each.block.name)[0].path.is_relative_to(two) for each in more)


def test_a_removed_directory_takes_no_new_segment(tmp_path: Path) -> None:
    tier = DiskBackend(tmp_path / "one").open()
    shutil.rmtree(tmp_path / "one")
    assert store(tier, block(1, 5000)) == [Outcome.FAILED]
    assert not tier.health(soon()).ok


def test_a_directory_that_cannot_be_opened_leaves_the_others_in_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    real = os.open

    def read_only(path: Any, flags: int, *more: Any) -> int:
        if str(path).startswith(str(one)) and flags & (os.O_RDWR | os.O_WRONLY):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return real(path, flags, *more)

    monkeypatch.setattr(os, "open", read_only)
    tier = DiskBackend(one, two).open()
    stored = block(1, 5000)
    assert store(tier, stored) == [Outcome.OK]
    assert_holds(tier, [stored])
    health = tier.health(soon())
    assert health.ok
    assert health.reason == f"{one}: cannot be opened: Read-only file system"
    tier.close()
    with pytest.raises(TierError, match=f"{one}: cannot be opened: Read-only file system"):
        DiskBackend(one).open()


def test_a_block_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    tier = DiskBackend(tmp_path / "one").open()
    largest = block(1, SEGMENT_BYTES - 2 * 4096)
    assert store(tier, largest, block(2, SEGMENT_BYTES - 2 * 4096 + 1)) == [Outcome.OK, Outcome.FAILED]
    assert_holds(tier, [largest])


def test_close_waits_for_calls_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event, Thread

    from tests.threads import JOIN_S, join

    tier = DiskBackend(tmp_path / "one").open()
    stored = block(1, 5000)
    store(tier, stored)
    reading, go_on = Event(), Event()
    real = os.preadv

    def slow(*arguments: Any) -> int:
        reading.set()
        assert go_on.wait(JOIN_S)
        return real(*arguments)

    monkeypatch.setattr(os, "preadv", slow)
    loaded: list[Loaded] = []
    memory = memoryview(bytearray(5000))
    loading = Thread(target=lambda: loaded.extend(tier.load([BlockLoad(name(1), memory)], soon())))
    closing = Thread(target=tier.close)
    loading.start()
    assert reading.wait(JOIN_S)
    closing.start()
    go_on.set()
    join(loading, closing)
    assert loaded == [Loaded(Outcome.OK, stored.block)]


# ---- files of others


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
    for journal in ("journal", "journal.new"):
        plant(folder / journal, victim)
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
    for other in ("lock", *others):
        (folder / other).write_bytes(PRECIOUS)
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
