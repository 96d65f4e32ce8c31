"""Look-ups: the chunks of a prefix that a node has, and lists of blocks."""

import msgspec

from dataplane.protocol.message_bases import ReplyOfNode, RequestToNode
from dataplane.protocol.spaces import Space

MAX_LISTED_BLOCKS = 500
"""Limit for one answer."""


class LookupChain(RequestToNode, tag="lookup"):
    """Report what an engine of a model would find of a chain, space by space. Changes nothing. Answered with
    `Looked`."""

    model: str
    keys: bytes
    """Packed keys of a chain, first block first."""
    tenant: str | None = None
    """Salt: blocks of other tenants count as misses. None: blocks of every tenant count."""
    after: int = 0
    """`Looked.next` of the previous answer; 0 for the first."""


class ListBlocks(RequestToNode, tag="list_blocks", omit_defaults=True):
    """List cached blocks, part by part; a block that stays cached throughout is in exactly one part. Answered with
    `Blocks`. Fields at their default are not sent, so that nodes that do not know a field understand requests that do
    not use it."""

    tenant: str | None = None
    """Salt; '' is the default tenant."""
    model: str | None = None
    space: str | None = None
    """One space, by its identity (32 hex digits)."""
    keys: bytes = b""
    """Packed keys; list only their blocks. Empty: list all blocks."""
    after: int = 0
    """`Blocks.next` of the previous answer; 0 for the first."""
    limit: int = 100
    """At most MAX_LISTED_BLOCKS."""
    gateway: str | None = None
    """List only blocks in spaces of this gateway; '' for spaces without a gateway."""


class SpaceHits(msgspec.Struct):
    """Blocks of a chain in one space."""

    identity: str
    """32 hex digits."""
    space: Space
    hits: dict[str, int]
    """Leading blocks, without a gap, that a reader would get, by tier."""
    resident: dict[str, int]
    """All readable blocks of the chain, including those behind gaps, by tier."""
    engines: int = 0
    """Attached engines that use the space."""


class Looked(ReplyOfNode, tag="looked"):
    spaces: list[SpaceHits]
    """Spaces of the model that engines of this node have or had, including those that hold no block of the chain."""
    next: int
    """Value of `LookupChain.after` for the remaining spaces; 0 when there are no more."""


class CachedBlock(msgspec.Struct):
    """One block that is not free."""

    key: str
    """64 hex digits."""
    tenant: str
    """Salt of the tenant."""
    model: str
    space: str
    """Identity, 32 hex digits."""
    tier: str
    state: str
    """`ready`, `reserved` (being written), `quarantined`, or `invalidated` (not yet freed, but a miss for readers)."""
    bytes: int
    charged_bytes: int
    """Size with padding."""
    leases: int
    """Leases held now, by the engines' own counters."""
    pins: list[str]
    """Names of pins that include the block; at most 8."""
    strength: str
    """Strength of the strongest of these pins; empty if there are none."""
    guaranteed: bool
    """The block is within the pin budgets and is not evicted."""
    stored_at: float
    used_at: float
    hits: int
    """Number of uses since the block was stored."""
    checksum: str
    """32 hex digits; empty if the block has no checksum."""
    parent: str
    """Key of the preceding block, 64 hex digits; empty if the block is the first of its chain or its engine did not
    report it."""
    descriptor: int
    segment: int
    offset: int
    kv_group: int = 0
    world_size: int = 1
    rank: int = 0


class Blocks(ReplyOfNode, tag="blocks"):
    blocks: list[CachedBlock]
    """May be empty although more blocks follow: one request scans a bounded number of blocks."""
    next: int
    """Value of `after` for the next part; 0 when there is no more."""
