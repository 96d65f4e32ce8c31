"""Record of the last contents of the cache of a state directory, in a small file, so that a cold start can report how
much was lost, and why.

The data plane rewrites it every few seconds while it serves, and when it stops; the keeper completes it when it
releases the memory. It is only for operators; no other code depends on it.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

FILE_NAME = "cache.json"
MAX_BYTES = 4096
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class CacheRecord(msgspec.Struct, omit_defaults=True):
    """The last known contents of the cache."""

    blocks: Annotated[int, msgspec.Meta(ge=0)] = 0
    bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    at: float = 0.0
    """Unix seconds of this record."""
    boot: str = ""
    """The kernel's boot id; a change means that the machine restarted."""
    reason: str = ""
    """Why the memory was released; empty if it was not."""
    on_purpose: bool = False


_decoder = msgspec.json.Decoder(CacheRecord)


def boot_id() -> str:
    """Return the identity of this boot of the machine; empty if the kernel does not provide it."""
    with suppress(OSError):
        return _BOOT_ID.read_text().strip()
    return ""


def load(folder: Path) -> CacheRecord | None:
    """Return the record of a state directory; None if none can be read."""
    try:
        fd = os.open(folder / FILE_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            data = os.read(fd, MAX_BYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        finally:
            os.close(fd)
        return _decoder.decode(data)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def save(folder: Path, record: CacheRecord) -> None:
    """Replace the record. Raises OSError."""
    making = folder / f"{FILE_NAME}.new"
    making.unlink(missing_ok=True)  # of whatever type
    fd = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(msgspec.json.encode(record))
    making.replace(folder / FILE_NAME)
