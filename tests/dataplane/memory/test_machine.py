"""Huge and locked pages: who asks for them gets them, or a sentence that says what the machine lacks."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dataplane import settings
from dataplane.base.settings import SettingsError
from dataplane.client import attach
from dataplane.memory.pages import HUGE_BYTES, huge_bytes_available, huge_pages_reserved
from tests.dataplane import factories as make
from tests.dataplane.plane import Plane

HUGE = Path("/proc/sys/vm/nr_hugepages")
LOCK = Path("/tmp") / f"larder-test-huge-pages-{os.getuid()}"
POOL_PAGES = 16
PR_CAPBSET_DROP = 24
CAP_IPC_LOCK = 14


def run(preexec: Callable[[], None] | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory(prefix="") as folder:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LARDER_")}
        return subprocess.run(
            [sys.executable, "-m", "dataplane"],
            env={**clean, "LARDER_STATE_DIR": f"{folder}/state", "LARDER_LMCACHE_PORT": "0", **environ},
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            preexec_fn=preexec,
        )


@pytest.fixture
def alone_with_huge_pages() -> Iterator[None]:
    """The machine has one number of them: no other test changes it meanwhile."""
    with LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def huge_pages(alone_with_huge_pages: None) -> Iterator[None]:
    """So many more 2 MiB pages as a small pool needs, set aside for the test."""
    before = huge_pages_reserved()
    try:
        HUGE.write_text(str(before + POOL_PAGES))
    except OSError as error:
        pytest.skip(f"this machine does not let a test reserve huge pages: {error.strerror}")
    try:
        if huge_bytes_available() < POOL_PAGES * HUGE_BYTES:
            pytest.skip("this machine has no room for huge pages")
        yield
    finally:
        HUGE.write_text(str(before))


@pytest.mark.usefixtures("alone_with_huge_pages")
def test_a_machine_without_huge_pages_gets_the_number_to_reserve() -> None:
    available, reserved = huge_bytes_available(), huge_pages_reserved()
    pages = available // HUGE_BYTES + 1000
    done = run(LARDER_POOL_BYTES=str(pages * HUGE_BYTES), LARDER_DATAPLANE__HUGE_PAGES="true")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert f"the pool needs {pages} free pages" in done.stderr
    assert f"sysctl vm.nr_hugepages={reserved + 1000}" in done.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("LARDER_POOL_BYTES", "3MiB"), ("LARDER_DATAPLANE__SEGMENT_BYTES", "2101248")]
)
def test_with_huge_pages_sizes_are_whole_pages(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match="multiple of 2 MiB"):
        settings.load(None, {"LARDER_DATAPLANE__HUGE_PAGES": "true", "LARDER_POOL_BYTES": "4MiB", name: value})


def test_a_pool_of_huge_pages_stores_and_gives_them_back(huge_pages: None, make_plane: Callable[..., Plane]) -> None:
    free = huge_bytes_available()
    plane = make_plane(pool_bytes="32MiB", dataplane__segment_bytes="4MiB", dataplane__huge_pages="true").start()
    spaces = [make.space("a"), make.space("b")]
    with attach(plane.socket, spaces, timeout_s=30) as client:
        for number, nbytes in enumerate((100_000, 3 * make.MIB, 65_536, 5 * make.MIB, 1_000_000) * 4):
            chain = make.keys(2, number)
            with client.reserve(chain, nbytes, space=number % 2) as room:
                for at in room.writable:
                    room.view(at)[:] = bytes([number + 1]) * nbytes
                assert room.commit().blocks == 2, room.refused
            with client.acquire(chain, space=number % 2) as lease:
                assert bytes(lease.view(0)) == bytes([number + 1]) * nbytes
        assert huge_bytes_available() < free
        pool = plane.wait_stats(lambda stats: stats.pool.huge_pages, "huge pages are shown").pool
        assert pool.committed_bytes <= 32 * make.MIB
    assert plane.stop() == 0
    assert huge_bytes_available() == free


def test_a_limit_on_locked_memory_is_reported_with_the_setting() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give up the right to lock")

    def give_up_the_right_to_lock() -> None:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (65_536, 65_536))
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_IPC_LOCK, 0, 0, 0)

    done = run(give_up_the_right_to_lock, LARDER_POOL_BYTES="16MiB", LARDER_DATAPLANE__MLOCK="true")
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1
    for part in ("16777216", "RLIMIT_MEMLOCK", "65536", "LimitMEMLOCK", "CAP_IPC_LOCK"):
        assert part in done.stderr


def test_a_locked_pool_reports_it(make_plane: Callable[..., Plane]) -> None:
    plane = make_plane(pool_bytes="16MiB", dataplane__mlock="true", dataplane__prefault="true")
    try:
        settings.check_machine(settings.load(None, {"LARDER_POOL_BYTES": "16MiB", "LARDER_DATAPLANE__MLOCK": "1"}))
    except SettingsError as error:
        pytest.skip(str(error))
    plane.start()
    plane.wait_stats(lambda stats: stats.pool.locked and stats.pool.prefaulted_bytes == 16 * make.MIB, "a locked pool")
    status = Path(f"/proc/{plane.pid}/status").read_text()
    locked = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmLck:"))
    assert locked >= 16 * 1024


def test_mlock_needs_prefault() -> None:
    with pytest.raises(SettingsError, match=r"dataplane\.mlock.*prefault"):
        settings.load(None, {"LARDER_DATAPLANE__MLOCK": "true", "LARDER_DATAPLANE__PREFAULT": "false"})
