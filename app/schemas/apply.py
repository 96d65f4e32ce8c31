"""Documents: the whole intent of a team as one text, applied at once."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from app.schemas.pushes import TypeName
from app.schemas.records import ManagedBy

Action = Literal["create", "update", "delete", "unchanged", "ended"]


class ApplyPut(msgspec.Struct, forbid_unknown_fields=True):
    """What is to be, and how far to go for it."""

    document: Annotated[
        dict[str, Any] | str | list[dict[str, Any] | str],
        Meta(
            description="`{apiVersion: larder/v1, managed_by: NAME, quotas: …, pins: …, policies: …}`, as JSON or as "
            "the text of YAML or JSON, or several of these. Records have the fields of their PUT bodies, and are "
            "lists with `tenant` or `name`, or maps by these."
        ),
    ]
    dry_run: Annotated[bool, Meta(description="Say what would be done, and do nothing.")] = False
    prune: Annotated[
        bool, Meta(description="Delete the owner's records, of all types, that are not in the document.")
    ] = False
    managed_by: ManagedBy = ""
    """Owner of the records, when the document names none."""
    take_over: Annotated[
        bool, Meta(description="Make records of other owners, or of nobody, this owner's.")
    ] = False
    expect: Annotated[
        dict[TypeName, int] | None,
        Meta(description="`generations` of an earlier answer: refuse when something was changed since."),
    ] = None


class FieldChange(msgspec.Struct, frozen=True, gc=False):
    before: Any
    after: Any


class RecordChange(msgspec.Struct, frozen=True, gc=False):
    """What happened, or would happen, to one record."""

    type: TypeName
    name: str
    action: Action
    """`ended`: a pin whose time has passed is not made."""
    managed_by: str
    """The owner, afterwards."""
    fields: dict[str, FieldChange]
    """Fields that change; empty for `unchanged` and `ended`."""


class TypeStatus(msgspec.Struct, frozen=True):
    """All records of a type."""

    applied: bool
    """Every living node has applied the type's generation, and there is one."""
    behind: list[str]
    """Nodes that have not, in order."""


class ApplyAnswer(msgspec.Struct, frozen=True):
    """Everything in it is done (or would be), or nothing is."""

    dry_run: bool
    created: int
    updated: int
    deleted: int
    unchanged: int
    records: list[RecordChange]
    """By type and name."""
    generations: dict[TypeName, int]
    """Of each type, afterwards; of a dry run those that it looked at. Empty for callers who are limited to tenants."""
    status: dict[TypeName, TypeStatus]
    """How far each type got on the nodes."""


class ExportAnswer(msgspec.Struct, frozen=True):
    """Records as a document that `apply` takes."""

    document: dict[str, Any]
    ended: int
    """Pins that have ended, which are not in it."""
    generations: dict[TypeName, int]
    """Of each type, at the moment that the document shows. Empty for callers who are limited to tenants."""
