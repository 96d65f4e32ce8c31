"""Record of the last contents of the cache of a state directory, in a small file, so that a cold start can report how
much was lost, and why.

The data plane rewrites it every few seconds while it serves, and when it stops; the holder completes it when it
releases the memory. It is only for operators; no other code depends on it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from dataplane.holding.record import load_record, save_record


class CacheRecord(msgspec.Struct):
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


def load(folder: Path) -> CacheRecord | None:
    """Return the record of a state directory; None if none can be read."""
    record = load_record(str(folder))
    try:
        return msgspec.convert(record, CacheRecord) if record else None
    except msgspec.ValidationError:
        return None


def save(folder: Path, record: CacheRecord) -> None:
    """Replace the record. Raises OSError."""
    save_record(str(folder), msgspec.structs.asdict(record))
