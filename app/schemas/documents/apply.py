"""Documents: all records of an owner in one text, applied atomically."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from app.schemas.base.records import ManagedBy
from app.schemas.fleet.pushes import TypeName

Action = Literal["create", "update", "delete", "unchanged", "ended"]


class ApplyPut(msgspec.Struct, forbid_unknown_fields=True):
    """Documents to apply, and options."""

    document: Annotated[
        dict[str, Any] | str | list[dict[str, Any] | str],
        Meta(
            description=(
                "One or more documents `{apiVersion: larder/v1, managed_by: NAME, quotas: …, pins: …, "
                "policies: …, tiers: …}`, as JSON values or as YAML or JSON text. Each record has the fields of its "
                "PUT body. Records are lists whose items have a `tenant` or `name`, or maps keyed by it."
            )
        ),
    ]
    dry_run: Annotated[bool, Meta(description="Report the changes without making them.")] = False
    prune: Annotated[
        bool, Meta(description="Delete records of this owner, of all types, that are not in the document.")
    ] = False
    managed_by: ManagedBy = ""
    """Owner of the records if the document names none."""
    take_over: Annotated[bool, Meta(description="Take over records that have another owner or none.")] = False
    expect: Annotated[
        dict[TypeName, int] | None,
        Meta(
            description=("`generations` of an earlier answer: refuse the request if a record has changed since then.")
        ),
    ] = None


class FieldChange(msgspec.Struct, frozen=True, gc=False):
    before: Any
    after: Any


class RecordChange(msgspec.Struct, frozen=True, gc=False):
    """Change of one record, done or (in a dry run) planned."""

    type: TypeName
    name: str
    action: Action
    """`ended`: the pin has expired and is not created."""
    managed_by: str
    """Owner after the change."""
    fields: dict[str, FieldChange]
    """Changed fields; empty for `unchanged` and `ended`."""


class TypeStatus(msgspec.Struct, frozen=True):
    """Status of all records of a type."""

    applied: bool
    """Whether every living node has applied the newest generation; false if there is no living node."""
    behind: list[str]
    """Sorted names of the nodes that have not applied it."""


class ApplyAnswer(msgspec.Struct, frozen=True):
    """Result of an apply, which is atomic; in a dry run, the planned changes."""

    dry_run: bool
    created: int
    updated: int
    deleted: int
    unchanged: int
    records: list[RecordChange]
    """Changes, ordered by type and name."""
    generations: dict[TypeName, int]
    """Generation of each type after the apply; in a dry run, the generation that it read. Empty for callers that are
    limited to tenants."""
    status: dict[TypeName, TypeStatus]
    """Status on the nodes, by type."""


class ExportAnswer(msgspec.Struct, frozen=True):
    """Records as a document that `apply` accepts."""

    document: dict[str, Any]
    ended: int
    """Number of expired pins, which the document omits."""
    generations: dict[TypeName, int]
    """Generation of each type at the time of the export. Empty for callers that are limited to tenants."""
