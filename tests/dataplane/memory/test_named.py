"""The named segment: whose name it is, what dead owners leave, and what a full `/dev/shm` means."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from dataplane.io.peers import maps_device, may_pin
from dataplane.memory.memory import NodeMemory
from dataplane.memory.named import (
    BACKUP_PREFIX,
    PREFIX,
    CannotName,
    Header,
    NamedFile,
    discard,
    free_bytes,
    left_behind,
)
from dataplane.memory.prefault import Prefault
from dataplane.protocol.checksums import checksum
from tests.dataplane import factories as make
from tests.dataplane.named_files import adopted, created
from tests.dataplane.plane import wait_for
from tests.run_marks import shm_name

FOLDER = Path("/dev/shm")
SIZE = 4 * make.MIB


@pytest.fixture
def name() -> Iterator[str]:
    """One of its own; nothing of it is left."""
    chosen = shm_name(os.getpid())
    yield chosen
    path_of(chosen).unlink(missing_ok=True)
    backup_name_of(chosen).unlink(missing_ok=True)


@pytest.fixture
def named(name: str) -> Iterator[NamedFile]:
    made = created(name, SIZE)
    yield made
    made.remove()
    made.close()


def path_of(name: str) -> Path:
    return FOLDER / (PREFIX + name)


def backup_name_of(name: str) -> Path:
    return FOLDER / (BACKUP_PREFIX + PREFIX + name)


def owner(name: str, then: str = "sys.stdin.read()") -> subprocess.Popen[bytes]:
    """A process that owns the name, until something is done to it."""
    program = [
        "import os, sys",
        "from tests.dataplane.named_files import created",
        f"named = created({name!r}, {SIZE})",
        "print(named.name, flush=True)",
        then,
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", "\n".join(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == (PREFIX + name).encode()
    return process


def pages(named: NamedFile) -> int:
    """Bytes that the machine has given, without the header."""
    return os.fstat(named.file.fd).st_blocks * 512 - 4096


def test_clients_find_a_sparse_file_of_the_right_size_that_is_its_owners_alone(named: NamedFile, name: str) -> None:
    status = path_of(name).stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_size == SIZE + 4096
    assert (named.name, named.nbytes, pages(named)) == (PREFIX + name, SIZE, 0)
    assert named.present
    view = named.view()
    assert len(view) == SIZE
    with path_of(name).open("r+b") as file:
        file.write(b"a client")
    assert bytes(view[:8]) == b"a client"
    named.remove()
    assert not path_of(name).exists()
    assert not named.present
    named.remove()


def test_a_living_owners_name_is_never_taken(name: str) -> None:
    with owner(name) as process:
        before = path_of(name).stat()
        with pytest.raises(CannotName, match=f"created by process {process.pid}"):
            created(name, SIZE)
        free_bytes()
        assert os.path.samestat(before, path_of(name).stat())


def test_a_dead_owners_name_is_taken_and_its_memory_comes_back(name: str) -> None:
    with owner(name) as process:
        process.kill()
    left = path_of(name).stat()
    named = created(name, SIZE)
    assert not os.path.samestat(left, path_of(name).stat())
    named.remove()
    named.close()


def test_leftover_files_are_listed_with_their_bytes_and_removed_on_request(tmp_path: Path) -> None:
    living, dead, young = (created(name, SIZE, folder=tmp_path) for name in ("living", "dead", "young"))
    for each in (dead, young):
        each.close()
    for each in (living, dead):
        os.utime(each.paths[0], (0, 0))
    left = left_behind(tmp_path)
    assert set(left) == set(dead.paths)
    assert min(left.values()) == 0, "the bytes are those of the first name"
    assert sum(left.values()) == dead.paths[0].stat().st_blocks * 512 > 0
    assert left_behind(tmp_path, remove=True) == left
    assert set(tmp_path.iterdir()) == {*living.paths, *young.paths}
    living.remove()
    living.close()


def test_whoever_holds_a_duplicate_owns_the_name_on(name: str) -> None:
    """As a supervisor does when its data plane was killed."""
    child = "if not os.fork(): sys.stdin.read(); os._exit(0)"
    with owner(name, then=f"{child}\nos.kill(os.getpid(), 9)") as process:
        process.wait(60)
        with pytest.raises(CannotName, match="belongs to another data plane or its holder"):
            created(name, SIZE)
        assert process.stdin is not None
        process.stdin.close()
        assert process.stdout is not None
        process.stdout.read()  # the child is gone
    named = created(name, SIZE)
    named.remove()
    named.close()


@pytest.mark.parametrize("what", ["file", "link", "folder", "torn"])
def test_foreign_files_are_left_unchanged(name: str, what: str, tmp_path: Path) -> None:
    path = path_of(name)
    target = tmp_path / "target"
    target.write_bytes(b"x" * 8192)
    if what == "file":
        path.write_bytes(b"another server's" * 1024)
    elif what == "link":
        path.symlink_to(target)
    elif what == "folder":
        path.mkdir()
    else:
        path.write_bytes(Header(1, 1, 1, 4096, PREFIX + name).packed())
    try:
        with pytest.raises(CannotName):
            created(name, SIZE)
        free_bytes()
        assert path.is_symlink() or path.exists()
        assert target.read_bytes() == b"x" * 8192
    finally:
        if what == "folder":
            path.rmdir()


def test_a_file_that_a_predecessor_handed_over_makes_way(named: NamedFile, name: str) -> None:
    status = os.fstat(named.file.fd)
    later = created(name, SIZE, inherited={(status.st_dev, status.st_ino)})
    assert later.present
    assert not named.present
    assert later.identity != named.identity
    named.remove()
    assert later.present, "a name is removed by the file that has it"
    later.remove()
    later.close()


def test_a_segment_has_its_pages_before_anybody_writes_and_gives_them_back(named: NamedFile) -> None:
    named.part(1, 0, make.MIB)
    file = named.part(2, make.MIB, 2 * make.MIB)
    assert pages(named) == 3 * make.MIB
    assert (named.base(1), named.base(2), file.base, file.nbytes) == (0, make.MIB, make.MIB, 2 * make.MIB)
    view = named.view()
    view[: 3 * make.MIB] = b"x" * (3 * make.MIB)
    named.retire(1)
    assert pages(named) == 2 * make.MIB
    assert bytes(view[: make.MIB]) == bytes(make.MIB)
    assert bytes(view[make.MIB : 3 * make.MIB]) == b"x" * (2 * make.MIB)
    with pytest.raises(KeyError):
        named.base(1)


def test_pages_that_a_device_may_write_to_stay_until_it_is_gone(name: str) -> None:
    busy = True
    named = created(name, SIZE, lambda: not busy)
    for number in (1, 2, 3):
        named.part(number, (number - 1) * make.MIB, make.MIB)
    named.retire(1)
    named.retire(3)
    named.give_back()
    assert pages(named) == 3 * make.MIB
    named.part(4, 0, make.MIB // 2)
    busy = False
    named.give_back()
    assert pages(named) == 2 * make.MIB, "whole pieces"
    named.remove()
    named.close()


def test_another_process_continues_with_the_file(named: NamedFile) -> None:
    named.part(1, 0, make.MIB)
    named.view()[:5] = b"bytes"
    named.part(2, make.MIB, make.MIB)
    duplicate = named.file.of(named.name, os.dup(named.file.fd))
    after = adopted(duplicate, 7, 8)
    assert (after.name, after.nbytes, after.identity) == (named.name, named.nbytes, named.identity)
    after.known_part(1, 0, make.MIB)
    after.give_back()
    assert pages(after) == make.MIB
    assert bytes(after.view()[:5]) == b"bytes"
    header = Header.read(after.file.fd)
    assert header is not None
    assert (header.pid, header.started) == (7, 8)
    after.close()


def test_a_name_that_was_removed_is_put_back_for_the_same_file(named: NamedFile, name: str) -> None:
    named.part(1, 0, make.MIB)
    named.view()[:5] = b"bytes"
    inode = path_of(name).stat().st_ino
    for time in (1, 2):
        path_of(name).unlink()
        named.look()
        assert path_of(name).stat().st_ino == inode
        assert path_of(name).read_bytes()[:5] == b"bytes"
        assert (named.problem, named.restored) == ("", time)
    assert named.take_problems() == [f"{path_of(name)} was removed", ""] * 2
    named.remove()
    assert not path_of(name).exists()
    assert not backup_name_of(name).exists()
    named.look()
    assert not path_of(name).exists(), "its owner removed it"


def test_a_removed_backup_name_is_restored(named: NamedFile, name: str) -> None:
    backup_name_of(name).unlink()
    named.look()
    path_of(name).rename(path_of(name).with_suffix(".moved"))
    path_of(name).with_suffix(".moved").unlink()
    named.look()
    assert named.present
    assert backup_name_of(name).exists()


def test_without_any_name_the_memory_stays_and_the_remedy_is_logged(named: NamedFile, name: str) -> None:
    backup_name_of(name).unlink()
    path_of(name).unlink()
    named.look()
    assert "and its backup name were removed" in named.problem
    assert f"restart the data plane (process {os.getpid()})" in named.problem
    assert not path_of(name).exists()
    duplicate = named.file.of(named.name, os.dup(named.file.fd))
    with pytest.raises(CannotName, match="were removed: new clients could not open it"):
        adopted(duplicate, 7, 8)
    discard(duplicate)


@pytest.mark.parametrize("has_backup_name", [True, False])
@pytest.mark.parametrize("what", ["file", "larders", "link", "folder"])
def test_another_file_under_the_name_is_never_touched_and_is_reported(
    named: NamedFile, name: str, what: str, has_backup_name: bool, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"foreign")
    path_of(name).unlink()
    if not has_backup_name:
        backup_name_of(name).unlink()
    if what == "file":
        path_of(name).write_bytes(b"foreign")
    elif what == "larders":  # even what looks like a file that a dead data plane left
        path_of(name).write_bytes(bytes(4096) + Header(1, 1, 1, 4096, PREFIX + name).packed().ljust(4096))
    elif what == "link":
        path_of(name).symlink_to(target)
    else:
        path_of(name).mkdir()
    before = path_of(name).lstat()
    for _ in range(2):
        named.look()
        assert named.problem.startswith(f"{path_of(name)} is another file now")
        assert ("restart the data plane" in named.problem) is not has_backup_name
    duplicate = named.file.of(named.name, os.dup(named.file.fd))
    after = adopted(duplicate, 7, 8)
    assert after.problem == named.problem, "what is cached is kept for workers that map it"
    after.close()
    assert os.path.samestat(before, path_of(name).lstat())
    assert target.read_bytes() == b"foreign"
    path_of(name).rmdir() if what == "folder" else path_of(name).unlink()
    named.look()
    assert named.present is has_backup_name
    assert (named.problem == "") is has_backup_name


def test_files_of_dead_owners_are_removed_with_their_backup_name(name: str) -> None:
    with owner(name) as process:
        process.kill()
    assert backup_name_of(name).exists()
    free_bytes()
    assert not path_of(name).exists()
    assert not backup_name_of(name).exists()


def test_segments_of_a_node_are_parts_of_the_file_and_are_read_where_they_are(named: NamedFile) -> None:
    made: list[tuple[str, int]] = []
    dropped: list[tuple[str, int]] = []
    memory = NodeMemory(
        64,
        on_made=lambda kind, number, file: made.append((kind, number)),
        on_dropped=lambda kind, number: dropped.append((kind, number)),
        named=named,
    )
    memory.create_segment(1, make.MIB)
    memory.create_segment(2, make.MIB, 2 * make.MIB)
    assert made == [("segment", 1)]
    assert [(kind, number) for kind, number, _ in memory.files()] == [("index", 0), ("named", 0), ("segment", 1)]
    named.view()[2 * make.MIB + 4096 : 2 * make.MIB + 8192] = b"y" * 4096
    assert memory.digest(2, 4096, 4096) == checksum(b"y" * 4096)
    memory.retire_segment(2)
    memory.retire_segment(1)
    assert dropped == [("segment", 1)]
    assert pages(named) == 0
    assert named.present


def test_pages_of_a_segment_are_touched_ahead_and_no_others(named: NamedFile) -> None:
    failures: list[str] = []
    prefault = Prefault(lambda file, error: failures.append(f"{file}: {error}"), capacity_bytes=SIZE)
    try:
        first, second = named.part(1, make.MIB, make.MIB), named.part(2, 3 * make.MIB, make.MIB)
        named.view()[make.MIB : make.MIB + 5] = b"bytes"
        prefault.submit(1, first)
        prefault.submit(2, second)
        wait_for(lambda: prefault.prefaulted_bytes == 2 * make.MIB, "both are taken")
        assert failures == []
        assert pages(named) == 2 * make.MIB
        assert bytes(named.view()[make.MIB : make.MIB + 5]) == b"bytes"
        prefault.cancel(1)
        named.retire(1)
        assert pages(named) == make.MIB
    finally:
        prefault.stop()


def test_a_node_that_needs_it_no_more_gives_it_up(name: str) -> None:
    dropped: list[tuple[str, int]] = []
    memory = NodeMemory(64, on_dropped=lambda kind, number: dropped.append((kind, number)), named=created(name, SIZE))
    memory.create_segment(1, make.MIB, 0)
    memory.drop_named()
    assert not path_of(name).exists()
    assert [kind for kind, _, _ in memory.files()] == ["index", "named"], "something is in it still"
    memory.retire_segment(1)
    memory.drop_named()
    assert dropped == [("named", 0)]
    assert [kind for kind, _, _ in memory.files()] == ["index"]
    memory.give_back()
    memory.close()


def test_a_node_without_one_refuses_segments_of_it() -> None:
    memory = NodeMemory(64)
    with pytest.raises(MemoryError):
        memory.create_segment(1, make.MIB, 0)
    memory.close()


FULL = """
    import os, subprocess, sys
    from pathlib import Path
    folder = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(folder)], check=True)
    from dataplane.memory.memory import NodeMemory
    from dataplane.memory.named import free_bytes
    from tests.dataplane.named_files import created
    named = created("full", 8 << 20, folder=folder)
    memory = NodeMemory(64, named=named)
    memory.create_segment(1, 1 << 20, 0)
    before = free_bytes(folder)
    try:
        memory.create_segment(2, 4 << 20, 1 << 20)
    except MemoryError as error:
        print(error)
    print(named.short, free_bytes(folder) == before, 2 in memory.segments)
    memory.create_segment(3, 512 << 10, 1 << 20)
    print(named.short)
"""


def test_a_process_that_maps_a_device_may_write_by_address() -> None:
    assert not may_pin(os.getpid())
    assert may_pin(0), "its user is unknown"
    script = "import mmap; m = mmap.mmap(open('/dev/zero', 'r+b').fileno(), 4096); print(1, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not may_pin(process.pid), "that is plain memory"
    assert not may_pin(process.pid), "it is gone"


@pytest.mark.parametrize(
    "line", ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/renderD128"]
)
def test_devices_are_known_by_mappings_of_a_process(line: str) -> None:
    assert maps_device(f"7f0000000000-7f0000001000 rw-s 00000000 00:05 123                        {line}\n")
    assert not maps_device("7f0000000000-7f0000001000 rw-s 00000000 00:18 123           /dev/shm/lmcache_l1_pool_x\n")
    assert not maps_device("7f0000000000-7f0000001000 rw-s 00000000 00:18 123           /home/dev/nvidia0\n")


def test_a_full_file_system_refuses_a_segment_and_takes_nothing_for_it(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", sys.executable, "-c", textwrap.dedent(FULL), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("this machine does not permit mounts")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"4194304 bytes of {tmp_path}/{PREFIX}full: No space left on device",
        "True True False",
        "False",
    ]
