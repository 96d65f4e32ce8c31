"""Limits the size of the snapshots of each type: a record that does not fit into a snapshot is refused.

A snapshot is one message, and receivers drop a message that is too large, so no record would be applied any more. The
size computed here is never less than the size sent, and is additive over records. After another manager's changes, the
database sums the records that they changed, and all records only if this bound exceeds a limit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass
class SnapshotGrowth:
    """Growth of a type by a change; negative where the change removes more than it adds."""

    records: int = 0
    bytes: int = 0
    keys: int = 0
    """Keys of pins."""

    def add(
        self, kind: SnapshotType, name: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
    ) -> None:
        """Add one record, given the fields that the audit keeps."""
        if before is not None:
            self.records -= 1
            self.bytes -= record_bytes(kind, name, before)
            self.keys -= before.get("key_count", 0)
        if after is not None:
            self.records += 1
            self.bytes += record_bytes(kind, name, after)
            self.keys += after.get("key_count", 0)


def record_bytes(kind: SnapshotType, name: str, fields: Mapping[str, Any]) -> int:
    """Return an upper bound of the record's size in a snapshot; the same value that the database sums up."""
    if kind == "pins":
        return FIXED_BYTES[kind] + _bytes(name) + _bytes(fields["model"]) + _salt_bytes(fields["tenant"])
    if kind == "quotas":
        return FIXED_BYTES[kind] + _salt_bytes(name) + len(json_text(fields["tiers"]))
    return FIXED_BYTES[kind] + _bytes(name)


def fits(size: SnapshotSize) -> bool:
    """Return whether a size is within all limits."""
    return size.bytes <= MAX_BYTES and size.records <= MAX_RECORDS and size.keys <= MAX_PINNED_KEYS


def check(kind: SnapshotType, after: SnapshotSize, growth: SnapshotGrowth) -> None:
    """Raise Conflict if a change enlarges a snapshot that is then too large."""
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
