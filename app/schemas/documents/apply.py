"""Documents: all records of an owner in one text, applied atomically."""

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from app.schemas.base.fields import OWNER, bounds, whole
from app.schemas.base.records import ManagedBy
from app.schemas.fleet.pushes import TypeName

Action = Literal["create", "update", "delete", "unchanged", "ended"]


Document = Annotated[
    dict[str, Any],
    bounds(
        required=["apiVersion"],
        properties={"apiVersion": {"const": "larder/v1"}, "managed_by": {"type": "string", "pattern": whole(OWNER)}},
        propertyNames={"enum": ["apiVersion", "managed_by", *get_args(TypeName)]},
    ),
]


class ApplyPut(msgspec.Struct, forbid_unknown_fields=True):
    """Documents to apply, and options."""

    document: Annotated[
        Document | str | list[Document | str],
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
        Annotated[dict[TypeName, int], bounds(propertyNames={"enum": list(get_args(TypeName))})] | None,
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
