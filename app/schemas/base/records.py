"""Fields that all records pushed to nodes have in common."""

from typing import Annotated

from msgspec import Meta

ManagedBy = Annotated[
    str,
    Meta(
        description="Whose it is among those who apply files (`larder apply`): one file never deletes the records of "
        "another. Empty: nobody's.",
        max_length=128,
    ),
]
Selector = Annotated[
    Annotated[dict[str, str], Meta(max_length=32)] | None,
    Meta(description="Only for nodes that have all these labels; null: for every node."),
]
