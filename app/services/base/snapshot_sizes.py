"""Limits the size of the snapshots of each type: a record that does not fit into a snapshot is refused.

A snapshot is one message, and receivers drop a message that is too large, so no record would be applied any more. The
size computed here is never less than the size sent, and is additive over records. After another manager's changes, the
database sums the records that they changed, and all records only if this bound exceeds a limit.
"""

from collections.abc import Mapping
from typing import Any

from app.errors import Conflict
from app.store.base.declarative import json_text
from app.store.records.snapshot_size import FIXED_BYTES, SnapshotSize
from dataplane.base.units import format_size
from dataplane.protocol.control.records import MAX_PINNED_KEYS, MAX_RECORDS
from dataplane.protocol.control.snapshots import MAX_SNAPSHOT_BYTES, SnapshotType
from dataplane.protocol.salts import DEFAULT_TENANT

MAX_BYTES = MAX_SNAPSHOT_BYTES // 4 * 3
"""Largest total size of all records of a type; no node is ever sent more."""


def size_of(kind: SnapshotType, name: str, fields: Mapping[str, Any] | None) -> SnapshotSize:
    """Return an upper bound of a record's size in a snapshot, given the fields that the audit keeps; 0 for None. The
    database sums up the same values."""
    if fields is None:
        return SnapshotSize()
    if kind == "pins":
        texts = _bytes(name) + _bytes(fields["model"]) + _salt_bytes(fields["tenant"])
    elif kind == "quotas":
        texts = _salt_bytes(name) + len(json_text(fields["tiers"]))
    else:
        texts = _bytes(name)
    return SnapshotSize(1, FIXED_BYTES[kind] + texts, fields.get("key_count", 0))


def fits(size: SnapshotSize) -> bool:
    """Return whether a size is within all limits."""
    return size.bytes <= MAX_BYTES and size.records <= MAX_RECORDS and size.keys <= MAX_PINNED_KEYS


def check(kind: SnapshotType, after: SnapshotSize, growth: SnapshotSize) -> None:
    """Raise Conflict if a change enlarges a snapshot that is then too large. `growth` is negative where it removes more
    than it adds."""
    if growth.bytes > 0 and after.bytes > MAX_BYTES:
        message = (
            f"the snapshot of all {kind} of the fleet would be larger than {format_size(MAX_BYTES)}, the maximum; "
            f"delete some {kind} first"
        )
    elif growth.records > 0 and after.records > MAX_RECORDS:
        message = f"nodes accept at most {MAX_RECORDS:,} {kind}; delete some of the fleet first"
    elif growth.keys > 0 and after.keys > MAX_PINNED_KEYS:
        message = f"nodes accept at most {MAX_PINNED_KEYS:,} keys of all {kind} together; delete some {kind} first"
    else:
        return
    raise Conflict.at(kind, message)


def _salt_bytes(tenant: str) -> int:
    """Return the size of a salt, given as the salt or as its shown name."""
    return 0 if tenant == DEFAULT_TENANT else _bytes(tenant)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
