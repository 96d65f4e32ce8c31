"""Documents: all records of an owner in one text, applied atomically."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args

import msgspec

from app.schemas.base.fields import NAME, NEW_TENANT, OWNER, TIER_NAME, bounds, whole
from app.schemas.base.records import ManagedBy
from app.schemas.fleet.pushes import TypeName
from app.schemas.records.pins import PinPut
from app.schemas.records.policies import PolicyPut
from app.schemas.records.quotas import QuotaPut
from app.schemas.records.tiers import TierPut

Action = Literal["create", "update", "delete", "unchanged", "ended"]


@dataclass(frozen=True)
class Section:
    """The records of one type in a document."""

    put: type[msgspec.Struct]
    key: str
    """Field of a record in a list, beside those of its PUT."""
    names: str
    """Pattern of names."""

    @property
    def entry(self) -> str:
        """Name of the schema of a record in a list."""
        return self.put.__name__.removesuffix("Put") + "Entry"

    def schema(self) -> dict[str, Any]:
        """Return the schema of a section: a map by name, or a list."""
        by_name = {
            "type": "object",
            "additionalProperties": _record(self.put.__name__),
            "propertyNames": {"pattern": whole(self.names)},
        }
        return {"anyOf": [by_name, {"type": "array", "items": _record(self.entry)}, {"type": "null"}]}


def _record(schema: str) -> dict[str, Any]:
    """Return the schema of a record in a document, where a pin has no label of a hot prefix."""
    return {"$ref": f"#/components/schemas/{schema}", "properties": {"prefix": {"type": "null"}}}


SECTIONS: Mapping[str, Section] = {
    "quotas": Section(QuotaPut, "tenant", NEW_TENANT),
    "pins": Section(PinPut, "name", NAME),
    "policies": Section(PolicyPut, "name", NAME),
    "tiers": Section(TierPut, "name", TIER_NAME),
}
DOCUMENT: dict[str, Any] = {
    "type": "object",
    "required": ["apiVersion"],
    "properties": {
        "apiVersion": {"const": "larder/v1"},
        "managed_by": {"anyOf": [{"type": "string", "pattern": whole(OWNER)}, {"type": "null"}]},
        **{name: section.schema() for name, section in SECTIONS.items()},
    },
    "additionalProperties": False,
}
"""Schema of a document."""
Document = Annotated[dict[str, Any], bounds(**{"$ref": "#/components/schemas/Document"})]


class ApplyPut(msgspec.Struct, forbid_unknown_fields=True):
    """Documents to apply, and options."""

    document: Document | str | list[Document | str]
    """One or more documents `{apiVersion: larder/v1, managed_by: NAME, quotas: …, pins: …, policies: …, tiers: …}`, as
    JSON values or as YAML or JSON text. Each record has the fields of its PUT body. Records are lists whose items have
    a `tenant` or `name`, or maps keyed by it."""
    dry_run: bool = False
    """Report the changes without making them."""
    prune: bool = False
    """Delete records of this owner, of all types, that are not in the document."""
    managed_by: ManagedBy = ""  # if the document names none
    take_over: bool = False
    """Take over records that have another owner or none."""
    expect: Annotated[dict[TypeName, int], bounds(propertyNames={"enum": list(get_args(TypeName))})] | None = None
    """`generations` of an earlier answer: refuse the request if a record has changed since then."""


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

    document: Document
    ended: int
    """Number of expired pins, which the document omits."""
    generations: dict[TypeName, int]
    """Generation of each type at the time of the export. Empty for callers that are limited to tenants."""
