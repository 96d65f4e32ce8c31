"""The record of what the cache of a state directory held (`dataplane.recovery.record` says what it is for)."""

from __future__ import annotations

import json
import os
from contextlib import suppress

from dataplane.holding.messages import Message

RECORD_NAME = "cache.json"
MAX_RECORD_BYTES = 4096


def load_record(folder: str) -> Message:
    """Return the record of a state directory; empty if none can be read."""
    with suppress(OSError, ValueError, RecursionError):
        fd = os.open(f"{folder}/{RECORD_NAME}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            record = json.loads(os.read(fd, MAX_RECORD_BYTES))
        finally:
            os.close(fd)
        if isinstance(record, dict) and all(
            type(record.get(name, 0)) is int and record.get(name, 0) >= 0 for name in ("blocks", "bytes")
        ):
            return record
    return {}


def save_record(folder: str, record: Message) -> None:
    """Replace the record. Raises OSError."""
    making = f"{folder}/{RECORD_NAME}.new"
    with suppress(FileNotFoundError):
        os.unlink(making)  # of whatever type
    fd = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(json.dumps(record, separators=(",", ":")).encode())
    os.replace(making, f"{folder}/{RECORD_NAME}")


def boot_id() -> str:
    """Return the identity of this boot of the machine; empty if the kernel does not provide it."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
    return ""
