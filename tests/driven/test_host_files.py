"""Memory files of engines, which may be of any kind and change at any time."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import socket
from collections.abc import Callable, Iterator

import pytest

from dataplane.copies.copying import CopyFailed
from dataplane.copies.driven.host_files import HostFile
from dataplane.protocol.codes import Code, ProtocolError

NBYTES = 4 * mmap.PAGESIZE


@pytest.fixture
def memfd() -> Iterator[int]:
    """An allocated memfd that may be sealed."""
    fd = os.memfd_create("host", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, NBYTES)
    yield fd
    os.close(fd)


@pytest.fixture
def file(memfd: int) -> Iterator[HostFile]:
    opened = HostFile(memfd, NBYTES, "files[0]")
    yield opened
    opened.close()


def test_bytes_are_read_and_written_at_offsets(memfd: int, file: HostFile) -> None:
    file.write(memoryview(b"abcdef"), 4095)
    assert os.pread(memfd, 8, 4094) == b"\0abcdef\0"
    into = memoryview(bytearray(6))
    file.read(into, 4095)
    assert bytes(into) == b"abcdef"


def test_a_file_that_shrinks_ends_the_copy_and_not_the_process(memfd: int, file: HostFile) -> None:
    os.truncate(memfd, NBYTES - 100)
    with pytest.raises(CopyFailed, match=f"ends at {NBYTES - 100} bytes"):
        file.read(memoryview(bytearray(200)), NBYTES - 200)


def test_a_file_that_is_sealed_later_refuses_the_copy(memfd: int, file: HostFile) -> None:
    fcntl.fcntl(memfd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    with pytest.raises(CopyFailed, match="Operation not permitted"):
        file.write(memoryview(b"x"), 0)


def test_flags_of_the_engines_descriptor_have_no_effect(memfd: int, file: HostFile) -> None:
    fcntl.fcntl(memfd, fcntl.F_SETFL, os.O_APPEND)
    file.write(memoryview(b"abc"), 8)
    assert os.fstat(memfd).st_size == NBYTES
    assert os.pread(memfd, 3, 8) == b"abc"


def _pipe() -> int:
    ours, theirs = os.pipe()
    os.close(theirs)
    return ours


def _read_only() -> int:
    fd = os.memfd_create("host")
    os.posix_fallocate(fd, 0, NBYTES)
    opened = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    return opened


def _sealed() -> int:
    fd = os.memfd_create("host", os.MFD_ALLOW_SEALING)
    os.posix_fallocate(fd, 0, NBYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)
    return fd


def _path_only() -> int:
    fd = _of_size(NBYTES)()
    opened = os.open(f"/proc/self/fd/{fd}", os.O_PATH)
    os.close(fd)
    return opened


def _leased() -> int:
    made = _of_size(NBYTES)()
    fd = os.open(f"/proc/self/fd/{made}", os.O_RDWR)  # the kernel leases no descriptor of memfd_create
    os.close(made)
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # ignored by default, unlike SIGIO
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    return fd


def _of_size(nbytes: int, *, allocated: bool = True) -> Callable[[], int]:
    def make() -> int:
        fd = os.memfd_create("host")
        if allocated:
            os.posix_fallocate(fd, 0, nbytes)
        else:
            os.ftruncate(fd, nbytes)
        return fd

    return make


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_pipe, "expected a memfd"),
        (lambda: socket.socket(socket.AF_UNIX).detach(), "expected a memfd"),
        (lambda: os.open("/etc/hostname", os.O_RDONLY), "expected a memfd"),
        (lambda: os.open("/dev/zero", os.O_RDWR), "expected a memfd"),
        (lambda: os.open("/dev", os.O_RDONLY), "expected a memfd"),
        (_read_only, "expected a memfd that is open for reading and writing"),
        (_sealed, "expected a memfd without a seal against writing"),
        (_leased, "expected a memfd without a file lease"),
        (lambda: os.open("/dev/shm", os.O_RDONLY), "expected a memfd"),
        (_path_only, "expected a memfd"),
        (_of_size(NBYTES - 1), f"expected a file of {NBYTES} bytes, got {NBYTES - 1}"),
        (_of_size(NBYTES + 1), f"expected a file of {NBYTES} bytes, got {NBYTES + 1}"),
        (_of_size(NBYTES, allocated=False), f"expected a file whose {NBYTES} bytes are allocated, got 0"),
    ],
    ids=[
        "pipe",
        "socket",
        "disk",
        "device",
        "folder",
        "read-only",
        "sealed",
        "leased",
        "shared memory folder",
        "path only",
        "short",
        "long",
        "sparse",
    ],
)
def test_a_file_of_another_kind_is_refused(make: Callable[[], int], why: str) -> None:
    fd = make()
    try:
        with pytest.raises(ProtocolError, match=why) as refused:
            HostFile(fd, NBYTES, "files[2]")
    finally:
        os.close(fd)
    assert (refused.value.code, refused.value.field) == (Code.BAD_CACHE, "files[2]")
