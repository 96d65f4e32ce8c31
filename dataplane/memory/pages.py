"""Pages of this machine: available memory, huge pages, and allocating or locking pages.

A segment's pages are allocated in one of three ways. The fastest is to write zeros, which is possible only before the
memory is shared. Once engines have it, it must not be written, so a mapping of it is populated. If memory must stay in
RAM, a mapping is locked, which also populates it. (`fallocate` allocates pages too, but leaves clearing them to the
first touch, which is most of the cost.)
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from dataplane.protocol.mappings import MADV_POPULATE_WRITE, advise, lock, map_shared, unmap

PAGE_BYTES = 4096
HUGE_BYTES = 2 << 20
PIECE_BYTES = 1 << 20
_CAP_IPC_LOCK = 14
_HUGE = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
_ZEROS = bytes(PIECE_BYTES)


class PageTaker:
    """A mapping of one file through which its pages are allocated, piece by piece. No call holds the GIL."""

    def __init__(self, fd: int, nbytes: int, *, lock: bool, offset: int) -> None:
        self._address = map_shared(fd, nbytes, writable=True, offset=offset)
        self._nbytes = nbytes
        self._lock = lock

    def take(self, offset: int, nbytes: int) -> None:
        """Allocate these pages, and keep them in RAM if locking. Raises OSError if the machine refuses."""
        if self._lock:
            lock(self._address + offset, nbytes)
        else:
            advise(self._address + offset, nbytes, MADV_POPULATE_WRITE)

    def close(self) -> None:
        """Unmap the file, which also unlocks its pages."""
        unmap(self._address, self._nbytes)


def write_zeros(fd: int, offset: int, nbytes: int) -> None:
    """Allocate at most `PIECE_BYTES` of memory that is not shared yet. Raises OSError if the machine refuses."""
    with memoryview(_ZEROS) as zeros, zeros[:nbytes] as piece:
        os.pwrite(fd, piece, offset)


def available_bytes() -> int:
    """Return the bytes that this machine, and the memory cgroup of this process, could still provide."""
    return max(0, min(_meminfo("MemAvailable:"), *(available for _, available in _cgroups())))


def total_bytes(*, huge: bool = False) -> int:
    """Return the bytes that this machine, and the memory cgroup of this process, have in total. Cgroups do not count
    `huge` pages as memory."""
    machine = _meminfo("MemTotal:")
    return machine if huge else min(machine, *(most for most, _ in _cgroups()))


def _cgroups() -> list[tuple[int, int]]:
    """Return the limit, and what it still allows, of each memory cgroup of this process; at least one pair."""
    limits = [(1 << 60, 1 << 60)]
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return limits
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            root, limit, used, reclaimable = "/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            root, limit, used = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
            reclaimable = "total_inactive_file"
        else:
            continue
        limits += _cgroup_bytes(Path(root), path, limit, used, reclaimable)
    return limits


def _meminfo(name: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cgroup_bytes(root: Path, path: str, limit: str, used: str, reclaimable: str) -> list[tuple[int, int]]:
    """Return the limit of each cgroup, from this process's up to the root, and what it still allows. In a container the
    process's cgroup may be mounted as the root."""
    folder = root / path.lstrip("/")
    if not folder.is_dir():
        folder = root
    limits = []
    while True:
        try:
            most = (folder / limit).read_text(encoding="ascii").strip()
            if most != "max" and int(most) < 1 << 60:
                stat = dict(line.split() for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines())
                used_bytes = int((folder / used).read_text(encoding="ascii")) - int(stat.get(reclaimable, 0))
                limits.append((int(most), int(most) - used_bytes))
        except (OSError, ValueError):
            pass
        if folder == root:
            return limits
        folder = folder.parent


def huge_bytes_available() -> int:
    """Return the bytes in 2 MiB pages that are free and not reserved, or that the machine may still create."""
    try:
        free, promised, overcommit, surplus = (
            int((_HUGE / name).read_text(encoding="ascii"))
            for name in ("free_hugepages", "resv_hugepages", "nr_overcommit_hugepages", "surplus_hugepages")
        )
    except OSError:
        return 0
    return (free - promised + max(0, overcommit - surplus)) * HUGE_BYTES


def huge_pages_reserved() -> int:
    """Return the number of 2 MiB pages that the machine has set aside, used or free."""
    try:
        return int((_HUGE / "nr_hugepages").read_text(encoding="ascii"))
    except OSError:
        return 0


def lock_limit_bytes() -> int | None:
    """Raise this process's limit of locked memory to its maximum and return it in bytes; None if there is no limit."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("CapEff:") and int(line.split()[1], 16) >> _CAP_IPC_LOCK & 1:
            return None
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (hard, hard))
    return None if hard == resource.RLIM_INFINITY else hard
