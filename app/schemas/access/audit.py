"""Audit entries."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from app.schemas.base.listing import Page


class AuditEntry(msgspec.Struct, frozen=True):
    id: int
    at: float
    actor: str
    """Name of the token; `local` for a request that needs none."""
    token_id: str
    source: str
    """Address of the client."""
    action: str
    """`create`, `update` or `delete` for a record; otherwise the name of the action, such as `invalidate`."""
    kind: str
    """`quota`, `pin`, `policy`, `tier`, `blocks`, `node`, `token`, …"""
    name: str
    type: str
    """Type of the record, for records that are pushed to nodes (`quotas`, `pins`, `policies` or `tiers`); otherwise
    empty."""
    generation: int
    """The generation that the change created; 0 for an action that changes no record: `invalidate`, `demote`,
    `resize`."""
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str
    trace_id: str
    decision: Literal["allowed", "denied", "unreadable"]
    """`unreadable`: the entry was changed in the database and cannot be decoded. Then all other fields except the
    id and the reason are empty."""
    reason: str
    """Why the action was denied, or why the entry cannot be read."""
    hash: str
    """SHA-256 over the entry and the hash of the one before it."""


class AuditList(Page, frozen=True):
    items: list[AuditEntry]


class AuditVerified(msgspec.Struct, frozen=True):
    """Result of verifying the audit log."""

    intact: bool
    entries: int
    """Number of entries with an intact hash chain, from the first on."""
    head_id: int
    """Id of the last intact entry."""
    head_hash: str
    """Hash of the last intact entry: store it, and pass it as `expect` to a later verification."""
    fault: str
    """Description of the first entry that was changed, removed or added; empty if the log is intact."""


@dataclass(frozen=True)
class AuditFilters:
    """Filters; None matches everything. Times are Unix seconds, both ends included."""

    actor: str | None = None
    action: str | None = None
    kind: str | None = None
    name: str | None = None
    decision: str | None = None
    since: float | None = None
    until: float | None = None
