"""Memory is taken ahead of need, never more than the pool, and given back; a refusal of the machine is reported."""

from __future__ import annotations

import mmap
import os
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Condition

import pytest

from dataplane.memory import prefault as module
from dataplane.memory.pages import available_bytes, lock_limit_bytes, write_zeros
from dataplane.memory.prefault import Prefault
from dataplane.memory.shared_file import SharedFile
from tests.dataplane import factories as make
from tests.dataplane.plane import wait_for

SEGMENT = 4 * make.MIB


@contextmanager
def prefaulting(failures: list[str] | None = None, **options: int | bool) -> Iterator[Prefault]:
    failed = [] if failures is None else failures
    sizes = {"ahead_bytes": 4 * SEGMENT, "segment_bytes": SEGMENT, "capacity_bytes": 8 * SEGMENT}
    prefault = Prefault(lambda name, error: failed.append(str(error)), **{**sizes, **options})  # type: ignore[arg-type]
    try:
        yield prefault
    finally:
        prefault.stop()


def resident(file: SharedFile) -> int:
    return os.fstat(file.fd).st_blocks * 512


def test_memory_is_ready_before_anybody_asks_and_a_segment_is_cut_from_it() -> None:
    with prefaulting() as prefault:
        wait_for(lambda: prefault.prepared_bytes == 4 * SEGMENT, "what was to be ahead")
        file = prefault.make("larder-test", SEGMENT - 8192)
        assert resident(file) == file.nbytes == SEGMENT - 8192
        prefault.submit(1, file)
        assert prefault.prefaulted_bytes >= 4 * SEGMENT - 8192
        wait_for(lambda: prefault.prepared_bytes == 4 * SEGMENT, "another one in its place")
        with pytest.raises(PermissionError):
            os.ftruncate(file.fd, SEGMENT)
        with mmap.mmap(file.fd, file.nbytes) as mapped:
            assert mapped[:] == bytes(file.nbytes)
        prefault.cancel(1)
        file.close()


def test_the_thread_never_writes_to_the_file_of_a_segment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread may choose the same segment again while `make` waits for the end of its piece."""
    writing, go, chosen, made, left = (threading.Event() for _ in range(5))
    written: list[int] = []
    take = Prefault._take

    def slow_zeros(fd: int, offset: int, nbytes: int) -> None:
        if made.is_set():
            written.append(os.fstat(fd).st_ino)
        writing.set()
        assert go.wait(60)
        write_zeros(fd, offset, nbytes)

    def slow_take(prefault: Prefault, task: module.PrefaultTask) -> None:
        again = go.is_set()
        if again:
            chosen.set()
            made.wait(5)
        take(prefault, task)
        if again:
            left.set()

    def slow_seal(file: SharedFile, nbytes: int) -> SharedFile:
        made.set()
        assert left.wait(60)
        return seal(file, nbytes)

    seal = SharedFile.sealed
    monkeypatch.setattr(module, "write_zeros", slow_zeros)
    monkeypatch.setattr(Prefault, "_take", slow_take)
    monkeypatch.setattr(SharedFile, "sealed", slow_seal)
    with prefaulting(ahead_bytes=SEGMENT) as prefault:
        condition = prefault._changed
        assert writing.wait(60)

        def wait_for_choice(holds: Callable[[], bool], timeout: float) -> bool:
            monkeypatch.setattr(condition, "wait_for", Condition.wait_for.__get__(condition))
            holds()
            go.set()
            while not chosen.is_set():
                condition.wait(0.01)
            return condition.wait_for(holds, timeout)

        monkeypatch.setattr(condition, "wait_for", wait_for_choice)
        file = prefault.make("larder-test", 8192)
        assert os.fstat(file.fd).st_size == 8192
        assert os.fstat(file.fd).st_ino not in written, "a piece once the file was wanted"
        file.close()


@pytest.mark.parametrize("cause", ["the machine refuses its next piece", "less memory is to be ready"])
@pytest.mark.parametrize("call", ["make", "submit"])
def test_the_thread_may_release_the_prepared_segment_that_a_call_waits_for(
    monkeypatch: pytest.MonkeyPatch, call: str, cause: str
) -> None:
    writing, go = threading.Event(), threading.Event()

    def slow_zeros(fd: int, offset: int, nbytes: int) -> None:
        writing.set()
        assert go.wait(60)
        if cause == "the machine refuses its next piece":
            raise OSError(28, "No space left on device")
        write_zeros(fd, offset, nbytes)

    monkeypatch.setattr(module, "write_zeros", slow_zeros)
    with prefaulting(ahead_bytes=SEGMENT, capacity_bytes=SEGMENT) as prefault:
        condition = prefault._changed
        assert writing.wait(60)

        def wait_for_release(holds: Callable[[], bool], timeout: float) -> bool:
            monkeypatch.setattr(condition, "wait_for", Condition.wait_for.__get__(condition))
            holds()
            go.set()
            while prefault._prepared:
                condition.wait(0.01)
            return condition.wait_for(holds, timeout)

        file = SharedFile.create("larder-test", SEGMENT)
        if cause == "less memory is to be ready":
            prefault.keep_ahead(0)
        monkeypatch.setattr(condition, "wait_for", wait_for_release)
        if call == "make":
            file.close()
            file = prefault.make("larder-test", SEGMENT)
        else:
            prefault.submit(1, file)
            prefault.cancel(1)
        assert os.fstat(file.fd).st_size == SEGMENT
        assert prefault.prepared_bytes == 0
        file.close()


def test_segments_and_prepared_memory_never_exceed_the_pool() -> None:
    with prefaulting(ahead_bytes=100 * SEGMENT, capacity_bytes=3 * SEGMENT + 4096) as prefault:
        wait_for(lambda: prefault.prepared_bytes == 3 * SEGMENT + 4096, "the whole pool")
        large = prefault.make("larder-test", 2 * SEGMENT)
        prefault.submit(1, large)
        assert prefault.prepared_bytes + large.nbytes <= 3 * SEGMENT + 4096
        wait_for(lambda: prefault.prefaulted_bytes == 3 * SEGMENT + 4096, "the rest of the pool")
        prefault.resize(4 * SEGMENT)
        wait_for(lambda: prefault.prefaulted_bytes == 4 * SEGMENT, "the pool after it grew")
        prefault.cancel(1)
        large.close()


def test_prefaulting_does_not_change_written_bytes() -> None:
    with prefaulting(ahead_bytes=0) as prefault:
        file = prefault.make("larder-test", 4 * SEGMENT)
        with mmap.mmap(file.fd, file.nbytes) as mapped:
            prefault.submit(1, file)
            for at in range(0, file.nbytes, 4096):
                mapped[at] = 7
            wait_for(lambda: prefault.prefaulted_bytes == file.nbytes, "all pages")
            assert set(mapped[::4096]) == {7}
        prefault.cancel(1)
        file.close()


def test_a_refusal_by_the_machine_is_logged_once_and_segments_are_made_as_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(fd: int, offset: int, nbytes: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_zeros", refuse)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    failures: list[str] = []
    with prefaulting(failures) as prefault:
        wait_for(lambda: failures, "the refusal")
        file = prefault.make("larder-test", SEGMENT)
        assert file.nbytes == SEGMENT
        file.close()
        assert prefault.prepared_bytes == 0
        monkeypatch.undo()
        wait_for(lambda: prefault.prepared_bytes == 4 * SEGMENT, "memory, once the machine has some again")
    assert failures == ["[Errno 28] No space left on device"]


def test_nothing_is_taken_ahead_that_the_machine_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "available_bytes", lambda: module.MARGIN_BYTES + SEGMENT - 1)
    failures: list[str] = []
    with prefaulting(failures) as prefault:
        wait_for(lambda: failures, "the reason")
        assert "available" in failures[0]
        assert prefault.prepared_bytes == 0


@pytest.fixture
def slow_piece(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[queue.SimpleQueue[int], threading.Event]]:
    """The thread's writes last until the event is set, and longer than the loop waits; the fds that it writes to."""
    writing: queue.SimpleQueue[int] = queue.SimpleQueue()
    proceed = threading.Event()

    def slow(fd: int, offset: int, nbytes: int) -> None:
        writing.put(fd)
        assert proceed.wait(60)
        write_zeros(fd, offset, nbytes)

    monkeypatch.setattr(module, "write_zeros", slow)
    monkeypatch.setattr(module, "LEAVE_S", 0.01)
    yield writing, proceed
    proceed.set()


SlowPiece = tuple["queue.SimpleQueue[int]", threading.Event]


def test_a_segment_is_not_made_from_memory_being_written(slow_piece: SlowPiece) -> None:
    """The write would give the segment another size than engines expect."""
    writing, proceed = slow_piece
    with prefaulting(ahead_bytes=SEGMENT) as prefault:
        busy = writing.get(timeout=60)
        file = prefault.make("larder-test", SEGMENT // 2)
        assert file.fd != busy
        proceed.set()
        wait_for(lambda: prefault.prepared_bytes == SEGMENT, "what was written is ready after all")
        assert os.fstat(file.fd).st_size == SEGMENT // 2
        file.close()


def test_a_file_is_closed_after_the_write_in_progress(slow_piece: SlowPiece) -> None:
    """Else the number of its descriptor could be another file's when the thread writes to it."""
    writing, proceed = slow_piece
    with prefaulting(ahead_bytes=SEGMENT, capacity_bytes=SEGMENT) as prefault:
        busy = writing.get(timeout=60)
        inode = os.fstat(busy).st_ino
        file = SharedFile.create("larder-test", SEGMENT)
        prefault.submit(1, file)  # the pool has no room for what was to be ahead
        assert os.fstat(busy).st_ino == inode
        proceed.set()
        wait_for(lambda: not _is_open(busy, inode), "it is given back")
        prefault.cancel(1)
        file.close()


def _is_open(fd: int, inode: int) -> bool:
    try:
        return os.fstat(fd).st_ino == inode
    except OSError:
        return False


def test_locked_segments_are_shown_and_counted_by_the_kernel() -> None:
    limit = lock_limit_bytes()
    if limit is not None and limit < 8 * SEGMENT:
        pytest.skip(f"RLIMIT_MEMLOCK is {limit} here")
    before = _locked_kib()
    with prefaulting(lock=True, ahead_bytes=SEGMENT) as prefault:
        wait_for(lambda: prefault.prepared_bytes == SEGMENT, "a locked segment")
        file = prefault.make("larder-test", SEGMENT)
        prefault.submit(1, file)
        wait_for(lambda: prefault.prefaulted_bytes == 2 * SEGMENT, "and another one")
        assert _locked_kib() - before >= 2 * SEGMENT // 1024
        assert prefault.locked
        prefault.cancel(1)
        file.close()
    assert _locked_kib() == before


def test_available_memory_is_no_more_than_the_machine_has() -> None:
    assert 0 < available_bytes() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _locked_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmLck:"))


def test_a_segment_that_is_retired_while_it_is_prefaulted_keeps_no_page() -> None:
    failures: list[str] = []
    prefault = Prefault(lambda name, _: failures.append(name))
    file = SharedFile.create("larder-test", 256 * make.MIB)
    try:
        prefault.submit(1, file)
        wait_for(lambda: os.fstat(file.fd).st_blocks, "the first pages")
        prefault.cancel(1)
        file.punch()
        assert os.fstat(file.fd).st_blocks == 0
        prefault.submit(2, file)
        prefault.cancel(2)
    finally:
        prefault.stop()
        assert os.fstat(file.fd).st_blocks == 0
        file.close()
    assert failures == []
