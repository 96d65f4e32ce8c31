"""Applied changes, as alerts and annotations show them: audit entries without addresses and hashes."""

from typing import Any

import msgspec


class ChangedField(msgspec.Struct, frozen=True):
    """One changed field. Long values are truncated."""

    name: str
    before: Any
    """Null if the record did not exist."""
    after: Any
    """Null if the record was deleted."""


class ChangeAnswer(msgspec.Struct, frozen=True):
    """A change of a record, an action on a node, or an action on cached blocks."""

    audit_id: int | None
    """Id of the audit entry; null for callers who are limited to tenants."""
    at: float
    """Unix seconds."""
    actor: str
    """Token that made the change. Callers who are limited to tenants see only their own name."""
    action: str
    """`create`, `update` or `delete` for a record; otherwise the action, such as `drain` or `invalidate`."""
    kind: str
    """`quota`, `pin`, `policy`, `tier`, `ceiling`, `node`, `blocks`, …"""
    name: str
    tenant: str
    """Tenant that it concerns, as shown; empty for all."""
    node: str
    """Node that it concerns; empty for all."""
    type: str
    """Type of the record, if nodes receive it: `quotas`, `pins`, `policies` or `tiers`."""
    generation: int
    """Generation of the type that the change created; 0 if there is none."""
    summary: str
    """One line, such as `quota acme: limit_bytes 8 GiB → 1 GiB`."""
    fields: list[ChangedField]
    """At most 12."""


class Annotation(msgspec.Struct, frozen=True, rename="camel"):
    """A change for Grafana to draw. Times are Unix milliseconds."""

    time: int
    time_end: int
    """Time of the latest acknowledgement by a node; equal to `time` if there is none."""
    title: str
    text: str
    tags: list[str]
    """Such as `type:quota`, `tenant:acme`, `node:a`."""
    change: ChangeAnswer
