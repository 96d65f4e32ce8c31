"""Pages of this machine: how many it could still give, huge ones, and taking or locking them.

A segment's pages are taken in one of three ways. Before anybody else has the memory, zeros are written into it: the
fastest. Once engines have it nothing may be written, so a mapping of it is populated. When memory is to stay in RAM, a
mapping is locked, which populates it too. (`fallocate` takes pages, but leaves clearing them to the first touch, and
that is most of the cost.)
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from pathlib import Path

PAGE_BYTES = 4096
HUGE_BYTES = 2 << 20
PIECE_BYTES = 1 << 20
_MADV_POPULATE_WRITE = 23
_CAP_IPC_LOCK = 14
_HUGE = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
_ZEROS = bytes(PIECE_BYTES)

_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Pages:
    """A mapping of one file through which its pages are taken, piece by piece. None of its calls holds the GIL."""

    def __init__(self, fd: int, nbytes: int, *, lock: bool) -> None:
        self._address = _map(fd, nbytes)
        self._nbytes = nbytes
        self._lock = lock

    def take(self, offset: int, nbytes: int) -> None:
        """Have the machine give these pages, and keep them in RAM when locking. Raises OSError when it refuses."""
        if self._lock:
            failed = _libc.mlock(self._address + offset, nbytes)
        else:
            failed = _libc.madvise(self._address + offset, nbytes, _MADV_POPULATE_WRITE)
        if failed:
            raise _failure()

    def close(self) -> None:
        """Unmap; locked pages are let go."""
        _libc.munmap(self._address, self._nbytes)


def _map(fd: int, nbytes: int) -> int:
    address = _libc.mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        raise _failure()
    return int(address)


def _failure() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


def write_zeros(fd: int, offset: int, nbytes: int) -> None:
    """Take pages of memory that nobody else has yet, at most `PIECE_BYTES`. Raises OSError when the machine refuses."""
    with memoryview(_ZEROS) as zeros, zeros[:nbytes] as piece:
        os.pwrite(fd, piece, offset)


def available_bytes() -> int:
    """Memory that this machine, and the memory cgroup of this process, could still give."""
    found = [_machine_bytes()]
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return found[0]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, limit, used, reclaimable = "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit, used = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            reclaimable = "total_inactive_file"
        else:
            continue
        found += _cgroup_bytes(Path(root), path, limit, used, reclaimable)
    return max(0, min(found))


def _machine_bytes() -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_bytes(root: Path, path: str, limit: str, used: str, reclaimable: str) -> list[int]:
    """What each cgroup from ours up to the root would still allow; in a container ours may be mounted as the root."""
    folder = root / path.lstrip("/")
    if not folder.is_dir():
        folder = root
    found = []
    while True:
        try:
            most = (folder / limit).read_text(encoding="ascii").strip()
            if most != "max" and int(most) < 1 << 60:
                stat = dict(
                    line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines()
                )
                taken = int((folder / used).read_text(encoding="ascii")) - int(stat.get(reclaimable, 0))
                found.append(int(most) - taken)
        except (OSError, ValueError):
            pass
        if folder == root:
            return found
        folder = folder.parent


def huge_bytes_available() -> int:
    """Bytes in 2 MiB pages that are free and promised to nobody, or that the machine may still make."""
    try:
        free, promised, more, surplus = (
            int((_HUGE / name).read_text(encoding="ascii"))
            for name in ("free_hugepages", "resv_hugepages", "nr_overcommit_hugepages", "surplus_hugepages")
        )
    except OSError:
        return 0
    return (free - promised + max(0, more - surplus)) * HUGE_BYTES


def huge_pages_reserved() -> int:
    """How many 2 MiB pages the machine has set aside, in use or not."""
    try:
        return int((_HUGE / "nr_hugepages").read_text(encoding="ascii"))
    except OSError:
        return 0


def lock_limit_bytes() -> int | None:
    """How much this process may lock after it asked for all it may have; None without a limit."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:") and int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1:
            return None
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    return None if hard == resource.RLIM_INFINITY else hard
