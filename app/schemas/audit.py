"""Audit: who changed what."""

from typing import Any, Literal

import msgspec


class AuditAnswer(msgspec.Struct, frozen=True):
    id: int
    at: float
    actor: str
    """`local` until requests are authenticated."""
    action: Literal["create", "update", "delete", "invalidate", "demote", "resize"]
    kind: Literal["quota", "pin", "policy", "blocks", "node"]
    name: str
    generation: int
    """The generation that the change made; 0 for what changes no record: `invalidate`, `demote`, `resize`."""
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str


class AuditList(msgspec.Struct, frozen=True):
    items: list[AuditAnswer]
    total: int
