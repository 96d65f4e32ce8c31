"""The named segment of this node: gone on with after a `kill -9`, or made as the settings say, or left out."""

from __future__ import annotations

import atexit
from collections.abc import Collection

import structlog

from dataplane.core.books import Writer
from dataplane.protocol.settings import SettingsError
from dataplane.protocol.units import format_size
from dataplane.settings import Settings
from dataplane.tiers.memory import SharedFile
from dataplane.tiers.named import CannotName, Inode, NamedFile, discard, free_bytes
from dataplane.tiers.pages import PAGE_BYTES, available_bytes

LEAST_DEFAULT_BYTES = 16 << 20
"""With less in `/dev/shm` a gateway that nobody asked for is left out."""

log = structlog.stdlib.get_logger()


def adopted(file: SharedFile, writer: Writer, *, wanted: bool) -> NamedFile | None:
    """The file that the data plane before this one left, with the name and the size that it has; None when there is to
    be none, or it cannot be gone on with. What is not gone on with is closed."""
    if not wanted:
        discard(file)
        return None
    try:
        return NamedFile.adopt(file, writer.pid, writer.started)
    except CannotName as error:
        log.warning("lmcache.memory_lost", reason=str(error), effect="what its engines cached is lost")
        discard(file)
        return None


def fresh(settings: Settings, writer: Writer, inherited: Collection[Inode]) -> NamedFile | None:
    """A new file, as large as the settings say. None, and a line in the log, where it cannot be and nobody asked for
    the gateway; raises SettingsError when somebody did."""
    try:
        free = free_bytes(inherited=inherited)
        if settings.table.huge_pages and not settings.table.lmcache_pool_bytes:
            free = min(free, available_bytes() // 2)  # what is set aside for the pool is none of it
        nbytes = _size(settings, free)
        named = NamedFile.create(
            settings.lmcache_shm_name, nbytes, writer.pid, writer.started, inherited=inherited
        )
    except CannotName as error:
        if settings.lmcache_wanted:
            raise SettingsError(f"the LMCache gateway: {error}") from None
        log.warning("lmcache.off", reason=str(error), effect="engines of the LMCache gateway are not served")
        return None
    atexit.register(named.remove)  # also when the rest of the start fails
    return named


def _size(settings: Settings, free: int) -> int:
    """Bytes of the file. Raises CannotName."""
    wanted = settings.lmcache_pool_bytes
    if wanted <= free:
        return wanted
    has = f"/dev/shm has {format_size(max(0, free))} free"
    how = "Enlarge it (`mount -o remount,size=...`, --shm-size of Docker, a memory volume in Kubernetes)"
    if settings.table.lmcache_pool_bytes:
        raise CannotName(
            f"{has}, and dataplane.lmcache_pool_bytes says {format_size(wanted)}. {how}, or set it to less"
        )
    least = PAGE_BYTES if settings.lmcache_wanted else min(LEAST_DEFAULT_BYTES, wanted)
    if free < least:
        raise CannotName(f"{has}, and it needs {format_size(least)}. {how}, or set lmcache_port to 0")
    log.warning(
        "lmcache.pool_smaller",
        bytes=free,
        pool_bytes=settings.pool_bytes,
        reason="the machine has no more for it",
    )
    return free
