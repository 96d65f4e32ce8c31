"""Pins: prefixes that must stay."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from app.schemas.status import RecordStatus
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS
from dataplane.protocol.salts import DEFAULT_TENANT

Strength = Literal["guaranteed"]


class PinPut(msgspec.Struct, forbid_unknown_fields=True):
    """The whole intent about a prefix: exactly one of `tokens` and `keys`."""

    model: Annotated[str, Meta(description="Model name; the pin holds in every space of it.")]
    tenant: Annotated[str, Meta(description="Tenant as shown; `_default` for the empty salt.")] = (
        DEFAULT_TENANT
    )
    tokens: Annotated[
        list[int] | None,
        Meta(description="Token ids of the prefix, cut in chunks; only full chunks are cached and pinned."),
    ] = None
    keys: Annotated[list[str] | None, Meta(description="Keys of the chunks, 64 hex digits each.")] = None
    chunk_tokens: Annotated[int, Meta(description="Tokens in a chunk, as the engines have it.")] = (
        DEFAULT_CHUNK_TOKENS
    )
    strength: Strength = "guaranteed"
    ttl_s: Annotated[float | None, Meta(description="Ends this many seconds from now.")] = None
    expires_at: Annotated[
        float | str | None, Meta(description="Ends then: Unix seconds, or RFC 3339 with an offset.")
    ] = None
    note: Annotated[str, Meta(description="For people; at most 1,024 characters.")] = ""


class PinAnswer(msgspec.Struct, frozen=True):
    """A pin record and how it stands on the nodes. Block counts are sums over nodes."""

    name: str
    model: str
    tenant: str
    strength: Strength
    key_count: int
    keys_digest: str
    """SHA-256 of the packed keys, in hex."""
    expires_at: float | None
    note: str
    generation: int
    """The generation of `pins` that last changed this record."""
    created_at: float
    updated_at: float
    resolved: int
    """Blocks that the pin names."""
    resident: int
    """Of these, in the pool now."""
    bytes: int
    guaranteed: int
    """Resident blocks inside the pin budget: they will not be evicted."""
    expired: bool
    status: RecordStatus


class PinList(msgspec.Struct, frozen=True):
    items: list[PinAnswer]
    total: int
