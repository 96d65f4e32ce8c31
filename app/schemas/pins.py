"""Pins: prefixes that must stay."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from app.schemas.records import ManagedBy, Selector
from app.schemas.status import RecordStatus
from app.schemas.tokenizers import TokenizerUsed
from dataplane.protocol.control import Strength, Tier
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS


class PinPut(msgspec.Struct, forbid_unknown_fields=True):
    """The whole intent about a prefix: exactly one of `tokens`, `keys`, `prefix`, `text` and `messages`."""

    model: Annotated[
        str | None,
        Meta(description="Model name; the pin holds in every space of it. A prefix brings its own."),
    ] = None
    tenant: Annotated[
        str | None,
        Meta(
            description="Tenant as shown; `_default` (also when left out) for the empty salt. A prefix brings its own."
        ),
    ] = None
    tokens: Annotated[
        list[int] | None,
        Meta(description="Token ids of the prefix, cut in chunks; only full chunks are cached and pinned."),
    ] = None
    keys: Annotated[list[str] | None, Meta(description="Keys of the chunks, 64 hex digits each.")] = None
    prefix: Annotated[str | None, Meta(description="Label of a hot prefix, as `/prefixes` lists it now.")] = (
        None
    )
    text: Annotated[
        str | None,
        Meta(
            description="Text of the prefix; tokens are made of it by the tokenizer registered for the model."
        ),
    ] = None
    messages: Annotated[
        list[dict[str, Any]] | None,
        Meta(description="The first messages of a chat; the tokenizer's chat template makes a text of them."),
    ] = None
    add_generation_prompt: Annotated[
        bool, Meta(description="As the template has it: the turn of the model is opened after the messages.")
    ] = False
    chunk_tokens: Annotated[int, Meta(description="Tokens in a chunk, as the engines have it.")] = (
        DEFAULT_CHUNK_TOKENS
    )
    strength: Annotated[
        Strength,
        Meta(
            description="`soft`: last to go; `guaranteed`: stays until the end, inside the budgets; `permanent`: as "
            "guaranteed, first in line for the budget, untouched by `invalidate`, without an end."
        ),
    ] = "guaranteed"
    tier: Annotated[
        Tier,
        Meta(
            description="`host`: in the pools of nodes; `gpu`: besides, a replica of each block in the memory of each "
            "GPU whose engines read the model, as far as `dataplane.gpu_pool_bytes` and the tenant's pin budget go."
        ),
    ] = "host"
    refresh_on_hit: Annotated[bool, Meta(description="Every hit moves the end to `ttl_s` from then.")] = False
    ttl_s: Annotated[float | None, Meta(description="Ends this many seconds from now.")] = None
    expires_at: Annotated[
        float | str | None, Meta(description="Ends then: Unix seconds, or RFC 3339 with an offset.")
    ] = None
    note: Annotated[str, Meta(description="For people; at most 1,024 characters.")] = ""
    managed_by: ManagedBy = ""
    selector: Selector = None


class PinPatch(msgspec.Struct, forbid_unknown_fields=True):
    """What may change of a pin while it stays the same pin. Null takes a field back to its default: `ttl_s` and
    `expires_at` to no end."""

    strength: Strength | msgspec.UnsetType | None = msgspec.UNSET
    tier: Tier | msgspec.UnsetType | None = msgspec.UNSET
    refresh_on_hit: bool | msgspec.UnsetType | None = msgspec.UNSET
    ttl_s: float | msgspec.UnsetType | None = msgspec.UNSET
    expires_at: float | str | msgspec.UnsetType | None = msgspec.UNSET
    note: str | msgspec.UnsetType | None = msgspec.UNSET
    managed_by: str | msgspec.UnsetType | None = msgspec.UNSET
    selector: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET


class PinExtend(msgspec.Struct, forbid_unknown_fields=True):
    """Let a pin end later."""

    ttl_s: Annotated[
        float, Meta(description="It ends no sooner than this many seconds from now; a later end stays.")
    ]


class PinOrigin(msgspec.Struct, frozen=True):
    """What a pin was made from."""

    source: str
    """`tokens`, `keys`, `prefix`, `text` or `messages`."""
    tokens: int | None = None
    """How many; null when it was made from keys."""
    chunk_tokens: int | None = None
    prefix: str | None = None
    """The label that it had."""
    tokenizer: TokenizerUsed | None = None
    """Which made tokens of the text."""


class PinOnNode(msgspec.Struct, frozen=True):
    """How much of a pin is on one node, in blocks: its chunks times the spaces of its model there."""

    resolved: int
    resident: int
    bytes: int
    replicas: int
    """Copies of its blocks in the memory of the node's GPUs, of all of them together."""
    replica_bytes: int
    replicas_wanted: int
    """As many as it would have with endless room: one of each resident block on each GPU whose engines read it."""


class PinAnswer(msgspec.Struct, frozen=True):
    """A pin record and how it stands on the nodes. Block counts are sums over nodes."""

    name: str
    model: str
    tenant: str
    strength: Strength
    tier: Tier
    refresh_on_hit: bool
    ttl_s: float | None
    """What every hit moves the end to; null when the end is fixed."""
    key_count: int
    keys_digest: str
    """SHA-256 of the packed keys, in hex."""
    expires_at: float | None
    """The end; of a pin that refreshes the latest that nodes report."""
    note: str
    managed_by: str
    selector: dict[str, str] | None
    """Labels of the nodes that it is for; null: all."""
    owner: str
    """Who put it first."""
    origin: PinOrigin | None
    etag: str
    """For `If-Match`."""
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
    degraded: int
    """Resident blocks that the budgets have no room for: kept as under a soft pin."""
    replicas: int
    """Copies of its blocks in the memory of GPUs; a block may have one on each."""
    replica_bytes: int
    replicas_wanted: int
    """As many as there would be with endless room: one of each resident block on each GPU whose engines read it."""
    expired: bool
    summary: str
    """Such as `resolved 12 chunks, 9 resident, 96 MiB`."""
    nodes: dict[str, PinOnNode]
    """By name."""
    status: RecordStatus


class PinList(msgspec.Struct, frozen=True):
    items: list[PinAnswer]
    total: int
    """Of all pages."""
    next_cursor: str
    """For the next page; empty on the last."""
