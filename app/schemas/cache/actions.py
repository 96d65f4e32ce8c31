"""Actions on cached blocks: the blocks and nodes that they address, and the answer of each node."""

from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from app.schemas.base.fields import (
    ChunkTokens,
    Keys,
    ModelName,
    NewTenantName,
    NodeName,
    RecordName,
    Rule,
    SpaceText,
    TenantName,
    TierName,
    TierRecordName,
    TokenIds,
    at_most_one,
    bounds,
    given,
    implies,
)
from app.schemas.records.pins import KEY_SOURCES, PROMPT_RULE, PinPut
from app.schemas.records.policies import PolicyPut
from app.schemas.records.quotas import QuotaPut
from app.schemas.records.tiers import TierPut
from app.schemas.records.tokenizers import TokenizerUsed
from dataplane.protocol.control.moves import MAX_MOVE_S
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS
from dataplane.protocol.tiers import MEMORY

SCOPE_FIELDS = ("tenant", "model", "space", *KEY_SOURCES)


class TargetedPost(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The nodes that the action addresses; all nodes if neither field is given. A node that is not connected answers
    with an error."""

    node: NodeName | None = None
    """Name of one node."""
    nodes: Annotated[list[NodeName], Meta(min_length=1, max_length=1000)] | None = None
    """Names of several nodes."""

    RULES: ClassVar[tuple[Rule, ...]] = (at_most_one("node", "nodes"),)


class KeySource(TargetedPost, kw_only=True):
    """The prefix that the action addresses, given in one of these forms."""

    tokens: TokenIds | None = None
    """Token ids, split into chunks; only full chunks count."""
    keys: Keys | None = None
    """Keys of the chunks, 64 hex digits each."""
    text: str | None = None
    """Text, which the tokenizer registered for the model turns into tokens."""
    messages: list[dict[str, Any]] | None = None
    """Messages of a chat, rendered with the tokenizer's chat template."""
    add_generation_prompt: bool = False
    """Append the template's generation prompt after the messages."""
    chunk_tokens: ChunkTokens = DEFAULT_CHUNK_TOKENS
    """Tokens per chunk, as configured in the engines."""


class ScopePost(KeySource, kw_only=True):
    """The blocks that match every given field; at least one field is required. A prefix includes all blocks that were
    stored after it."""

    tenant: TenantName | None = None
    """Tenant, as shown; `_default` is the empty salt."""
    model: ModelName | None = None
    """Model, with all of its spaces."""
    space: SpaceText | None = None
    """One space: 32 hex digits, as nodes list it."""

    RULES: ClassVar[tuple[Rule, ...]] = (
        *TargetedPost.RULES,
        PROMPT_RULE,
        at_most_one(*KEY_SOURCES),
        implies({"anyOf": [given("tokens"), given("text"), given("messages")]}, given("tenant"), given("model")),
    )


class SweepPost(ScopePost, kw_only=True):
    """The blocks that match every given field; at least one field is required. A prefix includes all blocks that were
    stored after it."""

    dry_run: bool = False
    """Only count the blocks, without changing them."""

    AT_LEAST_ONE: ClassVar = SCOPE_FIELDS


class VerifyPost(ScopePost, kw_only=True):
    """The blocks that match every given field; all blocks without any field. A prefix includes only its own blocks."""


class MovePost(ScopePost, kw_only=True):
    """The blocks that match every given field; at least one field is required. A prefix includes all blocks that were
    stored after it."""

    tier: TierName
    """Name of the tier to copy blocks to, or `memory` to load blocks from tiers."""
    source: TierName = MEMORY
    """Name of the tier to copy blocks from, or `memory`. Must be `memory` if `tier` is."""
    release: bool = False
    """Remove each block from memory, or from the tier `source`, once the tier holds it and no engine reads it. Blocks
    under guaranteed and permanent pins stay."""
    deadline_s: Annotated[float, Meta(gt=0, le=MAX_MOVE_S)] = 300.0
    """Seconds after which blocks that have not been moved stay where they are."""
    dry_run: bool = False
    """Only count the blocks, without moving them."""

    AT_LEAST_ONE: ClassVar = SCOPE_FIELDS
    RULES: ClassVar[tuple[Rule, ...]] = (
        *ScopePost.RULES,
        implies(given("tier", MEMORY), {"properties": {"source": {"const": MEMORY}}}),
    )


class CompressPost(ScopePost, kw_only=True):
    """Selects the blocks that match every given field. Without fields, it selects all blocks of the tier. A prefix
    includes all blocks that were stored after it."""

    tier: Annotated[TierName, TierRecordName]
    """Name of the tier whose blocks are encoded again, with the current `compress` of its record."""
    deadline_s: Annotated[float, Meta(gt=0, le=MAX_MOVE_S)] = 300.0
    """Seconds after which blocks that have not been encoded stay as they are."""
    dry_run: bool = False
    """Only count the blocks, without encoding them."""


class ClearPost(TargetedPost, kw_only=True):
    """Drop all cached blocks."""

    confirm: Annotated[bool, bounds(const=True)]
    """Must be true to confirm that everything is dropped."""
    permanent: bool = False
    """Also drop blocks under permanent pins. The pins remain, and hold the blocks again once they are stored again."""
    dry_run: bool = False
    """Only count the blocks, without changing them."""


class LookupPost(KeySource, kw_only=True):
    """A prefix in one tenant and one model."""

    model: ModelName
    """Model name with which engines attach."""
    tenant: TenantName | None = None
    """Tenant, as shown; defaults to `_default`, the empty salt."""

    EXACTLY_ONE: ClassVar = KEY_SOURCES
    RULES: ClassVar[tuple[Rule, ...]] = (*TargetedPost.RULES, PROMPT_RULE)


class DryRunPost(TargetedPost, kw_only=True):
    """Records to try, in place of the existing ones."""

    quotas: Annotated[dict[NewTenantName, QuotaPut], Meta(min_length=1, max_length=1000)] | None = None
    """Quotas by tenant, as shown."""
    pins: Annotated[dict[RecordName, PinPut], Meta(min_length=1, max_length=1000)] | None = None
    """Pins by name."""
    policies: Annotated[dict[RecordName, PolicyPut], Meta(min_length=1, max_length=1)] | None = None
    """At most one policy, by name; it is checked as if it were in force."""
    tiers: Annotated[dict[TierRecordName, TierPut], Meta(min_length=1, max_length=100)] | None = None
    """Tiers by name. A node that a tier does not select checks its other tiers."""

    AT_LEAST_ONE: ClassVar = ("quotas", "pins", "policies", "tiers")


class DryRunFault(msgspec.Struct, frozen=True):
    """Why a node would refuse a record."""

    path: str
    code: str
    message: str


class Eviction(msgspec.Struct, frozen=True):
    """Bytes of a tenant that a node would evict as soon as it applies a quota."""

    tenant: str
    tier: str
    """Name of the tier; empty for memory."""
    bytes: int
    """By the latest statistics of the node; blocks that engines read are evicted once they are released."""


class NodeVerdict(msgspec.Struct, frozen=True):
    """Answer of one node to the records of one type."""

    node: str
    type: str
    """`quotas`, `pins`, `policies` or `tiers`."""
    selected: bool
    """Whether at least one of these records selects the node. A node that none selects checks its other records."""
    accepted: bool
    faults: list[DryRunFault]
    error: str | None
    """Why the node did not answer; null if it did."""
    evictions: list[Eviction]
    """What lower limits of these quotas would evict there at once; empty for other types."""


class DryRunAnswer(msgspec.Struct, frozen=True):
    items: list[NodeVerdict]
    total: int
    accepted: bool
    """Whether all named nodes (all connected nodes if none is named) accept the records."""


class NodeAction(msgspec.Struct, frozen=True):
    """Error of a node that did not answer."""

    node: str
    sweep: int | None
    """Number of the sweep in the node's `sweeps` and in the event `sweep.ended`."""
    error: str | None


class NodeSweep(msgspec.Struct, frozen=True):
    """Answer of one node: the sweep that it started and its extent, or an error."""

    node: str
    sweep: int | None
    """Number of the sweep in the node's `sweeps` and in the event `sweep.ended`; null for a dry run."""
    error: str | None
    blocks: int | None = None
    """Matching blocks; null if the node does not report them."""
    bytes: int | None = None
    """Bytes of the matching blocks."""


class ActionAnswer(msgspec.Struct, frozen=True):
    items: list[NodeSweep]
    """Answers of the addressed nodes, by name."""
    total: int
    tokenizer: TokenizerUsed | None = None
    """The tokenizer that encoded the text."""
    blocks: int = 0
    """Sum over the nodes that report it."""
    bytes: int = 0


class VerifyProgress(msgspec.Struct, frozen=True):
    """Progress of a verification."""

    number: int
    """Number of the verification in the event `verification.ended`."""
    blocks: int
    """Blocks to check."""
    checked: int
    corrupt: int
    """Blocks that did not match their checksum; they were dropped."""
    without_checksum: int
    gone: int
    """Blocks that were evicted or invalidated before they were checked."""
    unread: int
    """Blocks that were not read: too large to read without delaying engines, or the machine refused the read."""
    started_at: float
    ended_at: float | None
    tenant: str | None
    """Tenant whose blocks are verified; null for all tenants, and from nodes of older releases."""


class NodeVerification(msgspec.Struct, frozen=True):
    node: str
    verification: VerifyProgress | None
    error: str | None


class VerifyAnswer(msgspec.Struct, frozen=True):
    items: list[NodeVerification]
    total: int
    tokenizer: TokenizerUsed | None = None


class MoveProgress(msgspec.Struct, frozen=True):
    """Progress of a move."""

    number: int
    """Number of the move in the event `move.ended`."""
    tier: str
    blocks: int
    """Blocks in the scope when the move began."""
    bytes: int
    moved_blocks: int
    """Blocks that were copied to the tier, or loaded into memory."""
    moved_bytes: int
    present_blocks: int
    """Blocks that the tier, or memory, held already."""
    released_blocks: int
    """Blocks that were removed from memory, or from the tier `source`."""
    released_bytes: int
    refused: dict[str, int]
    """Blocks that were not moved, or not removed from where they were, by reason."""
    started_at: float
    ended_at: float | None
    dry_run: bool
    source: str
    """Name of the tier that blocks are copied from, or `memory`."""
    tenant: str | None
    """Tenant whose blocks are moved; null for all tenants, and from nodes of older releases."""
    cancelled: bool
    """Whether it was cancelled before it ended. Blocks that had been moved by then stay moved."""


class NodeMove(msgspec.Struct, frozen=True):
    node: str
    move: MoveProgress | None
    error: str | None


class MoveAnswer(msgspec.Struct, frozen=True):
    items: list[NodeMove]
    """Answers of the addressed nodes, by name."""
    total: int
    tokenizer: TokenizerUsed | None = None
    blocks: int = 0
    """Sum over the nodes."""
    bytes: int = 0


class SpaceLookup(msgspec.Struct, frozen=True):
    """Chunks of the prefix in one space of a node, by tier."""

    space: str
    revision: str
    layout: str
    dtype: str
    kv_group: int
    world_size: int
    pipeline_stage: int
    rank: int
    hits: dict[str, int]
    resident: dict[str, int]


class NodeLookup(msgspec.Struct, frozen=True):
    """How much of a prompt an engine on a node could load.

    Of one engine, the smallest value of its ranks, stages and KV groups counts; of several kinds of engines, the
    largest. Kinds of which no engine is attached count only if there are no others.
    """

    node: str
    hit_tokens: dict[str, int]
    """Tokens by tier."""
    hit_chunks: dict[str, int]
    resident_chunks: dict[str, int]
    """Chunks by tier, also after a missing chunk."""
    spaces: list[SpaceLookup]
    """Per space, at most 100."""
    error: str | None


class LookupAnswer(msgspec.Struct, frozen=True):
    items: list[NodeLookup]
    """Answers of the addressed nodes, by name."""
    total: int
    chunks: int
    """Chunks of the prefix."""
    chunk_tokens: int
    tokenizer: TokenizerUsed | None


class PrefixLocation(msgspec.Struct, frozen=True):
    """A node that holds the start of the prefix."""

    node: str
    hit_tokens: dict[str, int]
    """Tokens by tier."""
    hit_chunks: dict[str, int]
    engine_socket: str
    """Where engines on its machine attach; empty, like `control_url`, for callers that are limited to tenants."""
    control_url: str


class LocateAnswer(msgspec.Struct, frozen=True):
    items: list[PrefixLocation]
    """Nodes that hold part of the prefix, the one that holds most first."""
    total: int
    chunks: int
    chunk_tokens: int
    tokenizer: TokenizerUsed | None
    failed_nodes: list[NodeAction]
    """Nodes that did not answer."""
