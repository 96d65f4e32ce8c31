"""Pins: prefixes that are kept in the cache."""

from typing import Any, ClassVar

import msgspec

from app.schemas.base.fields import (
    ChunkTokens,
    Keys,
    ModelName,
    Moment,
    NewTenantName,
    PrefixLabel,
    Rule,
    TokenIds,
    TtlS,
    at_most_one,
    given,
    implies,
)
from app.schemas.base.listing import Page
from app.schemas.base.records import ManagedBy, Note, Selector
from app.schemas.base.status import RecordStatus
from app.schemas.records.tokenizers import TokenizerUsed
from dataplane.protocol.control.records import Strength, Tier
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS
from dataplane.protocol.stats.pins import PinInTier

KEY_SOURCES = ("tokens", "keys", "text", "messages")
"""Fields that give the keys of a prefix; a request has at most one of them."""
PROMPT_RULE = implies(given("add_generation_prompt", True), given("messages"))
"""Only a chat template has a generation prompt."""


class PinSource(msgspec.Struct, forbid_unknown_fields=True):
    """The prefix that is pinned. A patch does not change it."""

    model: ModelName | None = None
    """Model name; the pin applies in all of its spaces. Implied by `prefix`."""
    tenant: NewTenantName | None = None
    """Tenant, as shown; defaults to `_default`, the empty salt. Implied by `prefix`."""
    tokens: TokenIds | None = None
    """Token ids of the prefix, split into chunks; only full chunks are cached and pinned."""
    keys: Keys | None = None
    """Keys of the chunks, 64 hex digits each."""
    prefix: PrefixLabel | None = None
    """Label of a hot prefix that `/prefixes` currently lists."""
    text: str | None = None
    """Text of the prefix, which the tokenizer registered for the model turns into tokens."""
    messages: list[dict[str, Any]] | None = None
    """First messages of a chat, rendered with the tokenizer's chat template."""
    add_generation_prompt: bool = False
    """Append the template's generation prompt after the messages."""
    chunk_tokens: ChunkTokens = DEFAULT_CHUNK_TOKENS
    """Tokens per chunk, as configured in the engines."""


class PinPut(PinSource, forbid_unknown_fields=True):
    """A complete pin record. Exactly one of `tokens`, `keys`, `prefix`, `text` and `messages` is required."""

    strength: Strength = "guaranteed"
    """`soft`: evicted last. `guaranteed`: kept until the pin expires, within the budgets. `permanent`: like
    `guaranteed`, but without an expiry, first to get the budget, and not affected by `invalidate`."""
    tier: Tier = "host"
    """`host`: in the pools of nodes. `gpu`: also as GPU copies on each GPU whose engines read the model, within
    `dataplane.gpu_pool_bytes` and the tenant's pin budget."""
    refresh_on_hit: bool = False
    """Extend the expiry to `ttl_s` after every hit."""
    ttl_s: TtlS | None = None
    """Time to live in seconds from now."""
    expires_at: Moment | None = None
    """Expiry: Unix seconds, or RFC 3339 with an offset."""
    note: Note = ""
    managed_by: ManagedBy = ""
    selector: Selector = None

    EXACTLY_ONE: ClassVar = ("prefix", *KEY_SOURCES)
    RULES: ClassVar[tuple[Rule, ...]] = (
        PROMPT_RULE,
        {"anyOf": [given("prefix"), given("model")]},
        implies(given("refresh_on_hit", True), given("ttl_s")),
        at_most_one("ttl_s", "expires_at"),
        implies(given("strength", "permanent"), {"not": {"anyOf": [given("ttl_s"), given("expires_at")]}}),
    )


class PinExtend(msgspec.Struct, forbid_unknown_fields=True):
    """Extend the life of a pin."""

    ttl_s: TtlS
    """Earliest expiry in seconds from now; a later expiry is kept."""


class PinOrigin(msgspec.Struct, frozen=True):
    """Source of a pin's keys."""

    source: str
    """`tokens`, `keys`, `prefix`, `text` or `messages`."""
    tokens: int | None = None
    """Number of tokens; null for a pin made from keys."""
    chunk_tokens: int | None = None
    prefix: str | None = None
    """Label of the hot prefix."""
    tokenizer: TokenizerUsed | None = None
    """The tokenizer that encoded the text."""


class PinOnNode(msgspec.Struct, frozen=True):
    """Blocks of a pin on one node: its chunks times the spaces of its model there."""

    resolved: int
    resident: int
    bytes: int
    gpu_copies: int
    """GPU copies of its blocks on all GPUs of the node."""
    gpu_copy_bytes: int
    gpu_copies_wanted: int
    """Copies that unlimited room would allow: one of each resident block on each GPU whose engines read it."""
    tiers: dict[str, PinInTier]
    """What the node's tiers behind memory hold of it, by the name of the tier."""
    only_in_tiers: int
    """Blocks that should be in memory and that only a tier holds now."""
    not_loaded: str
    """Why these blocks are not being loaded now: `budget`, `failed` or `detached`. Empty if they are being loaded, or
    if there are none."""


class PinShared(msgspec.Struct, frozen=True):
    """Fields that the record of a pin and the answer about it have in common. Each is a column of the table."""

    name: str
    model: str
    tenant: str
    strength: Strength
    tier: Tier
    key_count: int
    keys_digest: str
    """SHA-256 of the packed keys, in hex."""
    expires_at: float | None
    """End of the pin in Unix seconds. In a record: as it was set. In an answer: for a pin with `refresh_on_hit`, the
    latest end that a node reports."""
    note: str
    managed_by: str
    selector: dict[str, str] | None
    """Labels of the nodes that the record selects; null for all nodes."""
    generation: int
    """The generation of `pins` that last changed this record; its ETag is this number in quotes."""


class PinRecord(PinShared, frozen=True):
    """A pin record, with the digest of its keys instead of the keys."""

    refresh_s: float | None
    """Seconds from a hit to the new end; null if the end is fixed."""


class PinAnswer(PinShared, frozen=True):
    """A pin record and its state on the nodes. Block counts are sums over nodes."""

    refresh_on_hit: bool
    ttl_s: float | None
    """Seconds from a hit to the new end; null if the end is fixed."""
    owner: str
    """Actor that created the pin; empty for another caller that is limited to tenants."""
    origin: PinOrigin | None
    etag: str
    """ETag for `If-Match`."""
    created_at: float
    updated_at: float
    resolved: int
    """Blocks that the pin covers."""
    resident: int
    """Covered blocks that are in the pool now."""
    bytes: int
    guaranteed: int
    """Resident blocks inside the pin budgets; they are not evicted."""
    degraded: int
    """Resident blocks outside the budgets; they are kept as under a soft pin."""
    gpu_copies: int
    """GPU copies of its blocks; a block may have one on each GPU."""
    gpu_copy_bytes: int
    gpu_copies_wanted: int
    """Copies that unlimited room would allow: one of each resident block on each GPU whose engines read it."""
    tiers: dict[str, PinInTier]
    """What tiers behind memory hold of it, by the name of the tier. A block may be in the pool and in tiers."""
    only_in_tiers: int
    """Blocks of a guaranteed or permanent pin that only a tier holds now. Nodes load them in the background, as far as
    the pin budgets have room."""
    not_loaded: str
    """Why some of these blocks are not being loaded now. `budget`: the pin budgets of a node have no room. `failed`: a
    load failed, and the node will try again. `detached`: no engine of the model has attached since the node started.
    Empty if they are being loaded, or if there are none."""
    expired: bool
    holds_nothing: bool
    """Whether the pin is guaranteed or permanent and no selected node has any of its blocks, in the pool or in a tier.
    Becomes false as soon as an engine stores one. It is false while `unlisted_tiers` is not empty."""
    unlisted_tiers: list[str]
    """Tiers of selected nodes that may hold blocks of the pin, because their contents are still being read or listed,
    while none of its blocks has been found. Empty otherwise."""
    summary: str
    """Human-readable counts, such as `resolved 12 chunks, 9 resident, 96 MiB`."""
    nodes: dict[str, PinOnNode]
    """State by node."""
    status: RecordStatus


SETTINGS = tuple(name for name in PinPut.__struct_fields__ if name not in PinSource.__struct_fields__)
"""Fields of a PUT that a patch may change."""
STORED = tuple(name for name in SETTINGS if name in PinRecord.__struct_fields__ and name != "expires_at")
"""Settings that are columns as they are given. The others set the end of the pin."""


class PinKeys(msgspec.Struct, frozen=True):
    keys: list[str]
    """Keys of the pin's chunks, 64 hex digits each. A put with these keys creates the same pin."""


class PinList(Page, frozen=True):
    items: list[PinAnswer]
