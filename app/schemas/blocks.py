"""Blocks: what is cached, one by one."""

import msgspec

from app.schemas.prefixes import NodeError


class BlockAnswer(msgspec.Struct, frozen=True):
    """One block of one node."""

    node: str
    key: str
    """64 hex digits."""
    tenant: str
    model: str
    space: str
    """Identity, 32 hex digits."""
    tier: str
    state: str
    """`ready`, `reserved` (being written), `quarantined`, or `invalidated`: a miss that is still there."""
    bytes: int
    charged_bytes: int
    """With padding."""
    leases: int
    """Held at this moment."""
    pins: list[str]
    """Pins that want it; at most 8."""
    strength: str
    """Of the strongest of them; empty without any."""
    guaranteed: bool
    """Inside the pin budgets: it will not be evicted."""
    stored_at: float
    used_at: float
    hits: int
    """Times it was used since it was stored."""
    checksum: str
    """32 hex digits; empty: it has none."""
    parent: str
    """Key of the block before it; empty: the first of its chain, or its engine did not say."""
    descriptor: int
    segment: int
    offset: int


class BlockList(msgspec.Struct, frozen=True):
    items: list[BlockAnswer]
    """Node by node."""
    next_cursor: str
    """For the next page; empty on the last. A page may hold fewer items than `limit`, or none, and not be the last."""
    silent: list[NodeError]
    """Nodes whose blocks are missing."""


class BlockCopies(msgspec.Struct, frozen=True):
    """One key, everywhere."""

    key: str
    items: list[BlockAnswer]
    total: int
    silent: list[NodeError]
