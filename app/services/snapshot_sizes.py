"""How large the snapshots of each type may become: what nodes cannot be sent is not recorded either.

A snapshot travels as one message, and a message that is too large is dropped by whoever should receive it: nobody's
records would be applied any more. What is counted here is never less than what is sent, adds up record by record, and
is read from the database only when somebody else changed it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.errors import Conflict, FieldError
from app.store.weights import PIN_BYTES, RECORD_BYTES, Weight
from dataplane.protocol.control import MAX_PINNED_KEYS, MAX_RECORDS, MAX_SNAPSHOT_BYTES, SnapshotType
from dataplane.protocol.salts import DEFAULT_TENANT
from dataplane.protocol.units import format_size

MOST_BYTES = MAX_SNAPSHOT_BYTES // 4 * 3
"""Of all records of a type: no node is ever sent more."""


@dataclass
class Growth:
    """What a change adds to a type; negative for what it takes away."""

    records: int = 0
    bytes: int = 0
    keys: int = 0
    """Of pins."""

    def add(
        self,
        kind: SnapshotType,
        name: str,
        before: Mapping[str, Any] | None,
        after: Mapping[str, Any] | None,
    ) -> None:
        """One record, by what the audit keeps of it."""
        if before is not None:
            self.records -= 1
            self.bytes -= record_bytes(kind, name, before)
            self.keys -= before.get("key_count", 0)
        if after is not None:
            self.records += 1
            self.bytes += record_bytes(kind, name, after)
            self.keys += after.get("key_count", 0)


def record_bytes(kind: SnapshotType, name: str, fields: Mapping[str, Any]) -> int:
    """At least what the record takes in a snapshot; the same as the database sums up."""
    if kind == "pins":
        return PIN_BYTES + _bytes(name) + _bytes(fields["model"]) + _salt_bytes(fields["tenant"])
    return RECORD_BYTES + (_salt_bytes(name) if kind == "quotas" else _bytes(name))


def check(kind: SnapshotType, after: Weight, growth: Growth) -> None:
    """Refuse what makes a snapshot that is too large larger. Raises Conflict."""
    if growth.bytes > 0 and after.bytes > MOST_BYTES:
        message = (
            f"all {kind} of the fleet together would be a snapshot of more than {format_size(MOST_BYTES)}, which is "
            "the most that nodes are sent; take some away first"
        )
    elif growth.records > 0 and after.records > MAX_RECORDS:
        message = f"nodes take at most {MAX_RECORDS:,} {kind} of the fleet together; take some away first"
    elif growth.keys > 0 and after.keys > MAX_PINNED_KEYS:
        message = f"nodes take at most {MAX_PINNED_KEYS:,} keys of all {kind} together; take some away first"
    else:
        return
    raise Conflict(f"{kind}: {message}", [FieldError(kind, message)])


def _salt_bytes(tenant: str) -> int:
    """Of a salt, or of how it is shown."""
    return 0 if tenant == DEFAULT_TENANT else _bytes(tenant)


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
