"""Cached blocks."""

import msgspec

from app.schemas.records.prefixes import NodeError


class BlockAnswer(msgspec.Struct, frozen=True):
    """One block of one node."""

    node: str
    key: str
    """64 hex digits."""
    tenant: str
    model: str
    space: str
    """Id of the space, 32 hex digits."""
    tier: str
    state: str
    """`ready`, `reserved` (being written), `quarantined`, or `invalidated`: unreadable, but not yet freed."""
    bytes: int
    charged_bytes: int
    """Size with padding."""
    leases: int
    """Leases that are held now."""
    pins: list[str]
    """Pins that include the block, at most 8."""
    strength: str
    """Strength of the strongest of these pins; empty without pins."""
    guaranteed: bool
    """Whether the block fits into the pin budgets, so that it is not evicted."""
    stored_at: float
    used_at: float
    hits: int
    """Number of uses since the block was stored."""
    checksum: str
    """32 hex digits; empty if the block has no checksum."""
    parent: str
    """Key of the preceding block; empty for the first block of a chain, or if the engine did not report it."""
    descriptor: int
    segment: int
    offset: int


class BlockList(msgspec.Struct, frozen=True):
    items: list[BlockAnswer]
    """Blocks, grouped by node."""
    next_cursor: str
    """`cursor` of the next page; empty on the last. A page with fewer items than `limit`, or none, may not be the
    last."""
    failed_nodes: list[NodeError]
    """Nodes that did not answer; their blocks are missing."""


class BlockCopies(msgspec.Struct, frozen=True):
    """All copies of one key."""

    key: str
    items: list[BlockAnswer]
    total: int
    failed_nodes: list[NodeError]
