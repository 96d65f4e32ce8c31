"""Changes of records. `generation` is the generation of the record's type that the change created."""

from typing import Any, cast

import msgspec

from app.observe.catalogue.plane_event import PlaneEvent

RecordEvents = tuple[type[PlaneEvent], type[PlaneEvent], type[PlaneEvent]]


class PinEmptied(PlaneEvent, tag="pin.emptied"):
    """A node that cached blocks of a guaranteed or permanent pin no longer caches any."""

    severity = "warning"

    pin: str
    tenant: str
    strength: str
    """`guaranteed` or `permanent`."""
    blocks: int
    """Blocks that the pin covers."""


class RecordsChanged(PlaneEvent, tag="records.changed"):
    """One request changed so many records of a type that they have no separate events. The audit log has each."""

    type: str
    generation: int
    created: int
    """Number of records that were created."""
    changed: int
    """Number of records that were changed."""
    deleted: int
    """Number of records that were deleted."""


def _event(noun: str, word: str, fields: tuple[str, ...]) -> type[PlaneEvent]:
    event: Any = msgspec.defstruct(
        f"{noun.capitalize()}{word.capitalize()}",
        [(field, int if field == "generation" else str) for field in fields],
        bases=(PlaneEvent,),
        namespace={"__doc__": f"A {noun} was {word}."},
        module=__name__,
        tag=f"{noun}.{word}",
    )
    return cast("type[PlaneEvent]", event)


_FIELDS: dict[str, tuple[str, ...]] = {
    "quota": ("tenant", "generation"),
    "pin": ("pin", "tenant", "generation"),
    "policy": ("policy", "generation"),
    "tier": ("tier", "generation"),
    "ceiling": ("tenant",),
    "rate": ("rate",),
    "tokenizer": ("tokenizer",),
}
RECORD_EVENTS: dict[str, RecordEvents] = {
    noun: (_event(noun, "created", fields), _event(noun, "changed", fields), _event(noun, "deleted", fields))
    for noun, fields in _FIELDS.items()
}
"""Events about the creation, a change and the deletion of a record, by its type: its name, then audited fields of it
and the generation."""
