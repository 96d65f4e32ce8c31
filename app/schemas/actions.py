"""Actions on what is cached: which blocks, on which nodes, and what each node answered."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from app.schemas.pins import PinPut
from app.schemas.policies import PolicyPut
from app.schemas.quotas import QuotaPut
from app.schemas.tokenizers import TokenizerUsed
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS


class Aimed(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """On which nodes; without either, every one. Who is not connected says so."""

    node: Annotated[str | None, Meta(description="One node, by name.")] = None
    nodes: Annotated[
        Annotated[list[str], Meta(min_length=1, max_length=1000)] | None,
        Meta(description="Some nodes, by name."),
    ] = None


class KeySource(Aimed, kw_only=True):
    """The prefix that is meant, said in one of these ways."""

    tokens: Annotated[
        list[int] | None, Meta(description="Token ids, cut in chunks; only full chunks count.")
    ] = None
    keys: Annotated[list[str] | None, Meta(description="Keys of its chunks, 64 hex digits each.")] = None
    text: Annotated[
        str | None, Meta(description="Text; tokens are made of it by the tokenizer registered for the model.")
    ] = None
    messages: Annotated[
        list[dict[str, Any]] | None,
        Meta(description="Messages of a chat; the tokenizer's chat template makes a text of them."),
    ] = None
    add_generation_prompt: Annotated[
        bool, Meta(description="As the template has it: the turn of the model is opened after the messages.")
    ] = False
    chunk_tokens: Annotated[int, Meta(description="Tokens in a chunk, as the engines have it.")] = (
        DEFAULT_CHUNK_TOKENS
    )


class ScopePost(KeySource, kw_only=True):
    """Which blocks: those that match every field that is given; at least one is. A prefix takes along everything that
    was stored behind it."""

    tenant: Annotated[str | None, Meta(description="Tenant as shown; `_default` for the empty salt.")] = None
    model: Annotated[str | None, Meta(description="All spaces of a model.")] = None
    space: Annotated[str | None, Meta(description="One space, by its 32 hex digits; nodes list them.")] = None


class SweepPost(ScopePost, kw_only=True):
    """Which blocks: those that match every field that is given; at least one is. A prefix takes along everything that
    was stored behind it."""

    dry_run: Annotated[bool, Meta(description="Only count the blocks; nothing is done to them.")] = False


class VerifyPost(ScopePost, kw_only=True):
    """Which blocks: those that match every field that is given; without any, all. Of a prefix its own blocks."""


class ClearPost(Aimed, kw_only=True):
    """Everything."""

    confirm: Annotated[bool, Meta(description="True: yes, really everything.")]
    permanent: Annotated[
        bool, Meta(description="Also what permanent pins hold; the pins stay and hold what is stored anew.")
    ] = False
    dry_run: Annotated[bool, Meta(description="Only count the blocks; nothing is done to them.")] = False


class LookupPost(KeySource, kw_only=True):
    """A prefix of one tenant and one model."""

    model: Annotated[str, Meta(description="Model name, as engines attach with it.")]
    tenant: Annotated[
        str | None, Meta(description="Tenant as shown; `_default` (also when left out) for the empty salt.")
    ] = None


class DryRunPost(Aimed, kw_only=True):
    """Records as they would be put, over those that are there."""

    quotas: Annotated[
        Annotated[dict[str, QuotaPut], Meta(max_length=1000)] | None, Meta(description="By tenant, as shown.")
    ] = None
    pins: Annotated[
        Annotated[dict[str, PinPut], Meta(max_length=1000)] | None, Meta(description="By name.")
    ] = None
    policies: Annotated[
        Annotated[dict[str, PolicyPut], Meta(max_length=1)] | None,
        Meta(description="By name, at most one; it is tried as if it were in force."),
    ] = None


class DryRunFault(msgspec.Struct, frozen=True):
    """Why a node would refuse."""

    path: str
    code: str
    message: str


class NodeVerdict(msgspec.Struct, frozen=True):
    """What one node would say to one kind of records."""

    node: str
    type: str
    """`quotas`, `pins` or `policies`."""
    accepted: bool
    faults: list[DryRunFault]
    error: str | None
    """Why it said nothing."""


class DryRunAnswer(msgspec.Struct, frozen=True):
    items: list[NodeVerdict]
    total: int
    accepted: bool
    """By every node that was named or is connected."""


class NodeAction(msgspec.Struct, frozen=True):
    """One node's answer: the sweep that it started, or why it did nothing."""

    node: str
    sweep: int | None
    """As `sweeps` of the node and the fact `sweep.done` name it."""
    error: str | None


class NodeSweep(msgspec.Struct, frozen=True):
    """One node's answer: the sweep that it started and how much it is about, or why it did nothing."""

    node: str
    sweep: int | None
    """As `sweeps` of the node and the fact `sweep.done` name it; null of a dry run."""
    error: str | None
    blocks: int | None = None
    """That it is about: 0 when nothing matches. Null when the node does not tell."""
    bytes: int | None = None
    """Stored in them."""


class ActionAnswer(msgspec.Struct, frozen=True):
    items: list[NodeSweep]
    """Every node that was asked, by name."""
    total: int
    tokenizer: TokenizerUsed | None = None
    """Which made tokens of the text."""
    blocks: int = 0
    """Of all nodes that tell."""
    bytes: int = 0


class Progress(msgspec.Struct, frozen=True):
    """How far a verification is."""

    number: int
    """As the fact `verify.done` names it."""
    blocks: int
    """That it was begun for."""
    checked: int
    corrupt: int
    """Dropped: they are misses now."""
    without_checksum: int
    gone: int
    """Evicted or invalidated meanwhile."""
    unread: int
    """Too large to be read without keeping engines waiting, or the machine refused."""
    started_at: float
    ended_at: float | None


class NodeVerification(msgspec.Struct, frozen=True):
    node: str
    verification: Progress | None
    error: str | None


class VerifyAnswer(msgspec.Struct, frozen=True):
    items: list[NodeVerification]
    total: int
    tokenizer: TokenizerUsed | None = None


class SpaceLookup(msgspec.Struct, frozen=True):
    """What one space of a node has of the prefix, in chunks by tier."""

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
    """What an engine on a node would be served: of the ranks of one engine the least, of several kinds of engines the
    most."""

    node: str
    hit_tokens: dict[str, int]
    """By tier."""
    hit_chunks: dict[str, int]
    resident_chunks: dict[str, int]
    """Behind gaps, too."""
    spaces: list[SpaceLookup]
    """At most 100."""
    error: str | None


class LookupAnswer(msgspec.Struct, frozen=True):
    items: list[NodeLookup]
    """Every node that was asked, by name."""
    total: int
    chunks: int
    """Of the prefix."""
    chunk_tokens: int
    tokenizer: TokenizerUsed | None


class Place(msgspec.Struct, frozen=True):
    """A node that holds the start of the prefix."""

    node: str
    hit_tokens: dict[str, int]
    """By tier."""
    hit_chunks: dict[str, int]
    engine_socket: str
    """Where engines of its machine attach; empty, like the next, for callers who are limited to tenants."""
    control_url: str


class LocateAnswer(msgspec.Struct, frozen=True):
    items: list[Place]
    """Who holds most of it comes first; nodes that hold nothing are left out."""
    total: int
    chunks: int
    chunk_tokens: int
    tokenizer: TokenizerUsed | None
    silent: list[NodeAction]
    """Nodes that did not answer."""
