"""Usage by hour or day: bytes held, tokens requested, and prefill time saved."""

from typing import Literal

import msgspec

GroupBy = Literal["tenant", "model", "node"]
Step = Literal["1h", "1d"]


class TierUsageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that memory or one tier held, and tokens and bytes that it served."""

    byte_hours: float
    """Bytes held times hours."""
    served_tokens: int
    """Tokens of blocks that engines read: for a tier, the first read of each block after it was loaded from the
    tier; for memory, all other reads."""
    served_bytes: int
    """Bytes of these blocks, over all ranks."""


class UsageCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a period. Numbers above 2^53 are rounded."""

    byte_hours: float
    """Bytes in memory times hours."""
    requested_tokens: int
    """Tokens of look-ups, counted once per request regardless of the number of ranks."""
    served_tokens: int
    """Tokens that engines read from the cache, from memory and from tiers."""
    served_bytes: int
    """Bytes that engines read from the cache, over all ranks. Nodes of older releases do not report this number."""
    saved_prefill_s: float
    """Estimated seconds of prefill: served tokens divided by the configured rates."""
    unrated_tokens: int
    """Served tokens of models without a rate; the estimate does not include them."""
    stored_blocks: int
    stored_bytes: int
    evicted_blocks: int
    evicted_bytes: int
    refused_blocks: int
    tiers: dict[str, TierUsageCounts]
    """`memory`, and each tier that held or served blocks, by name. Blocks that nodes of older releases serve count as
    served by memory."""


class UsageItem(UsageCounts, frozen=True, kw_only=True):
    """Usage of one group in one step."""

    start: float
    """Start of the step in Unix seconds."""
    group: str
    """The tenant, model or node. The tenant `/other` stands for tenants without an account of their own."""


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Steps with usage, ordered by time and group."""

    group_by: GroupBy
    step: Step
    start: float = msgspec.field(name="from")
    end: float = msgspec.field(name="to")
    """The steps start at or after `from` and before `to`; both are whole steps (UTC)."""
    items: list[UsageItem]
    totals: UsageCounts
