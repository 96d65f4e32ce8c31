"""Pages of the named segment: ready before a range is used, never more than agreed, and given back."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dataplane.memory import named_pages as module
from dataplane.memory import shared_file
from dataplane.memory.memory import NodeMemory
from dataplane.memory.named import NamedFile
from dataplane.memory.named_pages import PIECE_BYTES, NamedPages
from dataplane.memory.prefault import Prefault
from tests.dataplane.named_files import created
from tests.dataplane.plane import wait_for

SIZE = 16 * PIECE_BYTES


@pytest.fixture
def fd() -> Iterator[int]:
    descriptor = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
    os.ftruncate(descriptor, SIZE)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def pages(fd: int) -> Iterator[NamedPages]:
    made = NamedPages(fd, SIZE)
    yield made
    made.stop()


def given(fd: int) -> int:
    """Bytes that the machine has given."""
    return os.fstat(fd).st_blocks * 512


@pytest.fixture
def fallocated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each call of `posix_fallocate`."""
    calls: list[int] = []
    real = os.posix_fallocate

    def fallocate(descriptor: int, offset: int, nbytes: int) -> None:
        calls.append(nbytes)
        real(descriptor, offset, nbytes)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    return calls


def test_the_lowest_ranges_are_ready_and_are_used_without_a_call(
    fd: int, pages: NamedPages, fallocated: list[int]
) -> None:
    pages.keep_ahead(4 * PIECE_BYTES, print)
    wait_for(lambda: pages.ahead_bytes == 4 * PIECE_BYTES, "what is to be ahead")
    assert given(fd) == 4 * PIECE_BYTES
    assert pages.lacking([(0, 4 * PIECE_BYTES), (3 * PIECE_BYTES, 2 * PIECE_BYTES)]) == [
        (3 * PIECE_BYTES, 2 * PIECE_BYTES)
    ]
    pages.use(0, 3 * PIECE_BYTES + 4096)
    assert fallocated == []
    wait_for(lambda: pages.ahead_bytes == 4 * PIECE_BYTES, "more in its place")
    pages.use(3 * PIECE_BYTES + 4096, 2 * PIECE_BYTES)
    assert fallocated == []
    wait_for(lambda: pages.taken_bytes == given(fd), "what was taken is counted")


def test_a_range_that_is_not_ready_gets_its_own_pages_at_once(
    fd: int, pages: NamedPages, fallocated: list[int]
) -> None:
    pages.use(4096, PIECE_BYTES)
    assert (given(fd), fallocated) == (PIECE_BYTES, [PIECE_BYTES])
    pages.use(4096 + PIECE_BYTES, PIECE_BYTES)
    assert given(fd) == 2 * PIECE_BYTES
    pages.release(4096, PIECE_BYTES)
    pages.release(4096 + PIECE_BYTES, PIECE_BYTES)
    pages.give_back()
    assert given(fd) == 0


def test_pages_are_taken_for_a_store_that_waits_and_no_byte_of_others_changes(
    fd: int, pages: NamedPages, fallocated: list[int]
) -> None:
    pages.use(0, PIECE_BYTES + 4096)
    fallocated.clear()
    os.pwrite(fd, b"x" * 4096, PIECE_BYTES)
    expected = [(PIECE_BYTES + 4096, 3 * PIECE_BYTES)]
    threads = [threading.Thread(target=pages.take, args=(expected,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert pages.lacking(expected) == []
    pages.use(*expected[0])
    assert fallocated == []
    assert os.pread(fd, 4096, PIECE_BYTES) == b"x" * 4096


def test_memory_of_a_retired_range_is_reused_and_the_rest_is_given_back(fd: int, pages: NamedPages) -> None:
    pages.keep_ahead(2 * PIECE_BYTES, print)
    pages.use(0, 8 * PIECE_BYTES)
    wait_for(lambda: pages.ahead_bytes == 2 * PIECE_BYTES, "what is ahead")
    pages.release(0, 8 * PIECE_BYTES)
    assert pages.surplus
    assert pages.ahead_bytes == 10 * PIECE_BYTES, "nothing goes before it may"
    pages.give_back()
    wait_for(lambda: given(fd) == 2 * PIECE_BYTES, "the surplus goes back")
    assert not pages.surplus
    assert pages.lacking([(0, 2 * PIECE_BYTES)]) == [], "the lowest stay"


def test_nothing_is_given_back_once_clients_may_know_addresses(
    fd: int, pages: NamedPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, proceed = threading.Event(), threading.Event()
    real = shared_file.punch

    def punch(descriptor: int, offset: int, nbytes: int) -> None:
        begun.set()
        assert proceed.wait(60)
        real(descriptor, offset, nbytes)

    monkeypatch.setattr(module, "punch", punch)
    pages.keep_ahead(PIECE_BYTES, print)
    pages.use(0, 8 * PIECE_BYTES)
    pages.release(0, 8 * PIECE_BYTES)
    pages.give_back()
    assert begun.wait(60)
    threading.Timer(0.1, proceed.set).start()
    pages.keep()  # returns when no piece is being given back
    allocated = given(fd)
    assert allocated >= 7 * PIECE_BYTES
    pages.keep_ahead(2 * PIECE_BYTES, print)
    pages.take([(15 * PIECE_BYTES, PIECE_BYTES)])
    assert given(fd) == allocated + PIECE_BYTES


def test_memory_of_the_previous_data_plane_is_given_back_or_used(fd: int, pages: NamedPages) -> None:
    os.posix_fallocate(fd, 0, SIZE)
    pages.stray()
    pages.known(PIECE_BYTES + 4096, 2 * PIECE_BYTES)
    pages.give_back()
    assert given(fd) == 3 * PIECE_BYTES, "its first and last piece are not its alone"
    pages.release(PIECE_BYTES + 4096, 2 * PIECE_BYTES)
    pages.give_back()
    assert given(fd) == 0


def test_nothing_is_taken_ahead_that_the_machine_needs(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    available = [module.MARGIN_BYTES + 3 * PIECE_BYTES]
    monkeypatch.setattr(module, "available_bytes", lambda: available[0] - given(fd))
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    failures: list[OSError] = []
    pages = NamedPages(fd, SIZE)
    try:
        pages.keep_ahead(8 * PIECE_BYTES, failures.append)
        wait_for(lambda: failures, "the reason")
        assert given(fd) == 3 * PIECE_BYTES
        pages.use(0, 5 * PIECE_BYTES)  # what is used may have it
        available[0] += 20 * PIECE_BYTES
        wait_for(lambda: pages.ahead_bytes == 8 * PIECE_BYTES, "once it has more")
        assert len(failures) == 1
    finally:
        pages.stop()


@contextmanager
def node_memory(capacity_bytes: int, ahead_bytes: int) -> Iterator[tuple[NodeMemory, NamedFile, Prefault]]:
    named = created(f"larder-test-{os.getpid()}", SIZE)
    prefault = Prefault(lambda name, error: None, segment_bytes=PIECE_BYTES)
    memory = NodeMemory(64, prefault=prefault, ahead_bytes=ahead_bytes, named=named)
    try:
        memory.resize(capacity_bytes)
        yield memory, named, prefault
    finally:
        named.remove()
        prefault.stop()
        memory.close()


def test_prepared_memory_is_shared_within_the_pool_by_use() -> None:
    capacity = 8 * PIECE_BYTES
    with node_memory(capacity, 100 * PIECE_BYTES) as (memory, named, prefault):

        def ahead() -> tuple[int, int]:
            return named.pages.ahead_bytes // PIECE_BYTES, prefault.prepared_bytes // PIECE_BYTES

        wait_for(lambda: ahead() == (4, 4), "half for each")
        memory.create_segment(1, 2 * PIECE_BYTES, 0)
        wait_for(lambda: ahead() == (6, 0), "all for who has a segment")
        memory.create_segment(2, PIECE_BYTES)
        memory.give_back()
        wait_for(lambda: ahead() == (2, 3), "half for each")
        memory.retire_segment(1)
        memory.give_back()
        wait_for(lambda: ahead() == (0, 7), "all for the other one")
        assert os.fstat(named.file.fd).st_blocks * 512 == 4096
        memory.retire_segment(2)
        memory.expect_worker()
        wait_for(lambda: ahead() == (8, 0), "a worker is about to store")


FULL = """
    import os, subprocess, sys, time
    from pathlib import Path
    folder = Path(sys.argv[1])
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)], check=True)
    from dataplane.memory.named_pages import NamedPages
    fd = os.open(folder / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 8 << 20)
    failures = []
    pages = NamedPages(fd, 8 << 20)
    pages.keep_ahead(8 << 20, failures.append)
    while not failures:
        time.sleep(0.01)
    print(failures[0].strerror, pages.ahead_bytes)
    for what in (pages.take, lambda ranges: pages.use(*ranges[0])):
        pages.take([(0, 3 << 20)])
        try:
            what([(0, 5 << 20)])
        except OSError as error:
            print(error.strerror, pages.lacking([(0, 3 << 20)]), pages.lacking([(4 << 20, 1 << 20)]))
    pages._check = lambda *_: None
    try:
        pages.take([(0, 5 << 20)])
    except OSError as error:
        print(error.strerror)
    pages.stop()
"""


def test_a_full_file_system_is_a_refusal_and_never_a_signal(tmp_path: Path) -> None:
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", sys.executable, "-c", textwrap.dedent(FULL), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip("this machine does not permit mounts")
    assert done.returncode == 0, done.stderr
    full = "No space left on device"
    assert done.stdout.splitlines() == [
        f"{full} 0",
        f"{full} [] [(4194304, 1048576)]",
        f"{full} [] [(4194304, 1048576)]",
        full,
    ]
