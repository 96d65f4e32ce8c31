"""Fields of all records that nodes receive."""

from typing import Annotated

import msgspec
from msgspec import Meta

Note = Annotated[str, Meta(description="Free-form note; at most 1,024 characters.")]
ManagedBy = Annotated[
    str,
    Meta(
        description=(
            "Owner of the record in `larder apply`: applying one owner's file never deletes another "
            "owner's records. Empty for no owner."
        ),
        max_length=128,
    ),
]
Selector = Annotated[
    Annotated[dict[str, str], Meta(max_length=32)] | None,
    Meta(description="Labels that a node must have for the record to apply to it; null for every node."),
]


def written(record: type[msgspec.Struct]) -> tuple[str, ...]:
    """Return the columns of a record that clients write: its fields besides its key, which comes first, and its
    generation."""
    return tuple(name for name in record.__struct_fields__[1:] if name != "generation")
