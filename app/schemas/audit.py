"""Audit: who changed what."""

from typing import Any, Literal

import msgspec


class AuditAnswer(msgspec.Struct, frozen=True):
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
    generation: int
    """The generation that the change made; 0 for what changes no record: `invalidate`, `demote`, `resize`."""
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str
    trace_id: str
    decision: Literal["allowed", "denied"]
    reason: str
    """Why it was denied."""
    hash: str
    """Over the entry and the hash of the one before it."""


class AuditList(msgspec.Struct, frozen=True):
    items: list[AuditAnswer]
    total: int
    next_cursor: str
    """For the next page; empty on the last."""
