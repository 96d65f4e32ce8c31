"""Audit: who changed what."""

from typing import Any, Literal

import msgspec


class AuditEntry(msgspec.Struct, frozen=True):
    id: int
    at: float
    actor: str
    """Name of the token; `local` where none is needed."""
    token_id: str
    source: str
    """Address that the request came from."""
    action: str
    """`create`, `update` or `delete` of a record, or what else was done, such as `invalidate`."""
    kind: str
    """`quota`, `pin`, `policy`, `blocks`, `node`, `token`, …"""
    name: str
    type: str
    """Of the records that nodes are told of: `quotas`, `pins` or `policies`; empty for all else."""
    generation: int
    """The generation that the change made; 0 for what changes no record: `invalidate`, `demote`, `resize`."""
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str
    trace_id: str
    decision: Literal["allowed", "denied", "unreadable"]
    """`unreadable`: somebody changed the entry in the database until nobody could read it. All but its number and the
    reason is empty then."""
    reason: str
    """Why it was denied, or cannot be read."""
    hash: str
    """SHA-256 over the entry and the hash of the one before it."""


class AuditList(msgspec.Struct, frozen=True):
    items: list[AuditEntry]
    total: int
    next_cursor: str
    """For the next page; empty on the last."""


class AuditVerified(msgspec.Struct, frozen=True):
    """Whether the journal is what was written."""

    intact: bool
    entries: int
    """That hang together, from the first on."""
    head_id: int
    """The last of them."""
    head_hash: str
    """Its hash: remember it, and ask later whether it is still there."""
    fault: str
    """The first entry that was changed, is missing, or was added; empty when all is well."""
