"""Fields of all records that nodes receive."""

from typing import Annotated

import msgspec
from msgspec import Meta

from app.schemas.base.fields import Labels, NoteText, OwnerName

Note = Annotated[NoteText, Meta(description="Free-form note; at most 1,024 characters.")]
ManagedBy = Annotated[
    OwnerName,
    Meta(
        description=(
            "Owner of the record in `larder apply`: applying one owner's file never deletes another "
            "owner's records. Empty for no owner."
        )
    ),
]
Selector = Annotated[
    Labels | None, Meta(description="Labels that a node must have for the record to apply to it; null for every node.")
]


def written(record: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the columns of a record that clients write: its fields besides its key, which comes first, and its
    generation."""
    return tuple(name for name in record.__struct_fields__[1:] if name != "generation")
