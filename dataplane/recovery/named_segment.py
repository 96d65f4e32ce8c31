"""The named segment of this node: adopted from a predecessor, created as the settings say, or left out."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Collection

import structlog

from dataplane.base.settings import SettingsError
from dataplane.base.units import format_size
from dataplane.core.journal.recovery_table import TableWriter
from dataplane.memory.named import CannotName, Inode, NamedFile, discard, free_bytes
from dataplane.memory.pages import PAGE_BYTES, available_bytes
from dataplane.memory.shared_file import SharedFile
from dataplane.settings import DataPlaneSettings

MIN_DEFAULT_BYTES = 16 << 20
"""If `/dev/shm` has less free, a gateway that the settings do not ask for is left out."""

log = structlog.stdlib.get_logger()


def adopted(
    file: SharedFile, writer: TableWriter, may_give_back: Callable[[], bool], *, requested: bool
) -> NamedFile | None:
    """Return the previous data plane's file, with its name and size. Return None if the segment is not wanted or the
    file cannot be adopted; the file is then closed. `may_give_back` is that of `NamedFile`."""
    if not requested:
        discard(file)
        return None
    try:
        return NamedFile.adopt(file, writer.pid, writer.started, may_give_back)
    except CannotName as error:
        log.warning("lmcache.memory_lost", reason=str(error), effect="what its engines cached is lost")
        discard(file)
        return None


def fresh(
    settings: DataPlaneSettings, writer: TableWriter, may_give_back: Callable[[], bool], inherited: Collection[Inode]
) -> NamedFile | None:
    """Return a new file of the size in the settings. If it cannot be created, raise SettingsError if the settings ask
    for the gateway; otherwise log a warning and return None. `may_give_back` is that of `NamedFile`."""
    try:
        free = free_bytes(inherited=inherited)
        if settings.table.huge_pages and not settings.table.lmcache_pool_bytes:
            free = min(free, available_bytes() // 2)  # the huge pages of the pool are not part of it
        nbytes = _size(settings, free)
        named = NamedFile.create(
            settings.lmcache_shm_name, nbytes, writer.pid, writer.started, may_give_back, inherited=inherited
        )
    except CannotName as error:
        if settings.lmcache_requested:
            raise SettingsError(f"the LMCache gateway: {error}") from None
        log.warning("lmcache.off", reason=str(error), effect="engines of the LMCache gateway are not served")
        return None
    atexit.register(named.remove)  # also when the rest of the start fails
    return named


def _size(settings: DataPlaneSettings, free: int) -> int:
    """Return the size of the file in bytes. Raises CannotName."""
    requested = settings.lmcache_pool_bytes
    if requested <= free:
        return requested
    has = f"/dev/shm has {format_size(max(0, free))} free"
    how = "Enlarge it (`mount -o remount,size=...`, --shm-size of Docker, a memory volume in Kubernetes)"
    if settings.table.lmcache_pool_bytes:
        raise CannotName(
            f"{has}, and dataplane.lmcache_pool_bytes says {format_size(requested)}. {how}, or set it to less"
        )
    least = PAGE_BYTES if settings.lmcache_requested else min(MIN_DEFAULT_BYTES, requested)
    if free < least:
        raise CannotName(f"{has}, and it needs {format_size(least)}. {how}, or set lmcache_port to 0")
    log.warning(
        "lmcache.pool_smaller",
        bytes=free,
        pool_bytes=settings.pool_bytes,
        reason="the machine has no more memory for it",
    )
    return free
