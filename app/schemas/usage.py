"""Usage: what tenants held, asked for and were spared, by the hour or day."""

from typing import Literal

import msgspec

GroupBy = Literal["tenant", "model", "node"]
Step = Literal["1h", "1d"]


class Used(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over a time. Numbers beyond 2^53 are rounded."""

    byte_hours: float
    """Bytes held in caches, times hours."""
    requested_tokens: int
    """Of look-ups; once a request, whatever the number of ranks."""
    served_tokens: int
    """That engines took from the cache."""
    saved_prefill_s: float
    """Estimate: served tokens over the rates that are set."""
    unrated_tokens: int
    """Served tokens of models without a rate, which the estimate leaves out."""
    stored_blocks: int
    stored_bytes: int
    evicted_blocks: int
    evicted_bytes: int
    refused_blocks: int


class UsageItem(Used, frozen=True, kw_only=True):
    """What one of the group used in one step."""

    start: float
    """Begin of the step."""
    group: str
    """The tenant (`/other`: those that had no account of their own), model or node."""


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Steps in which something was used, by time and then by group."""

    group_by: GroupBy
    step: Step
    start: float = msgspec.field(name="from")
    end: float = msgspec.field(name="to")
    """The steps begin at or after `from` and before `to`; both are whole steps (UTC)."""
    items: list[UsageItem]
    totals: Used
