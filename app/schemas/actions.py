"""Actions on what is cached: which blocks, and what each node answered."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS


class ScopePost(msgspec.Struct, forbid_unknown_fields=True):
    """Which blocks: those that match every field that is given; at least one is."""

    tenant: Annotated[str | None, Meta(description="Tenant as shown; `_default` for the empty salt.")] = None
    model: Annotated[str | None, Meta(description="All spaces of a model.")] = None
    space: Annotated[str | None, Meta(description="One space, by its 32 hex digits; nodes list them.")] = None
    tokens: Annotated[
        list[int] | None,
        Meta(
            description="Token ids of a prefix: its blocks and everything stored behind it. Needs tenant and model."
        ),
    ] = None
    keys: Annotated[
        list[str] | None, Meta(description="The same by the keys of its chunks, 64 hex digits each.")
    ] = None
    chunk_tokens: Annotated[int, Meta(description="Tokens in a chunk, as the engines have it.")] = (
        DEFAULT_CHUNK_TOKENS
    )


class NodeAction(msgspec.Struct, frozen=True):
    """One node's answer: the sweep that it started, or why it did nothing."""

    node: str
    sweep: int | None
    """As `sweeps` of the node and the fact `sweep.done` name it."""
    error: str | None


class ActionAnswer(msgspec.Struct, frozen=True):
    items: list[NodeAction]
    """Every connected node, by name."""
    total: int
