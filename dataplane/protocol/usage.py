"""What tenants used, as counters that a node tells and a ledger adds up.

A counter begins at 0 with its account and never falls. An account is one tenant in the spaces of one model that differ
by rank, pipeline stage and KV group alone; it is named by the first of them, the leading space. Its `number` is its own
in the life of the process: the same tenant and space under a higher number is counted from 0 again.
"""

import msgspec

OTHERS = "/other"
"""Shown for all tenants together that have no account of their own, because there are very many. No salt is like it."""
MAX_USAGE_PART = 500
"""Accounts in one answer."""


class UsageCounters(msgspec.Struct, array_like=True, frozen=True):
    """One account's counters since it was opened."""

    number: int
    tenant: str
    """As shown: `_default` for the empty salt, `/other` for those without an account."""
    model: str
    space: str
    """Identity of the leading space, 32 hex digits."""
    held_kib_s: int
    """Integral over time of the charged bytes, in KiB seconds; rounded down when told, never in between."""
    requested_tokens: int
    """Of look-ups by engines whose spaces include a leading one, each once."""
    served_tokens: int
    """Of blocks of leading spaces that engines acquired."""
    stored_blocks: int
    """In all ranks together, as are bytes and evictions."""
    stored_bytes: int
    evicted_blocks: int
    evicted_bytes: int
    refused: dict[str, int]
    """Refused blocks by the name of the reason, in all ranks together."""


class ReadUsage(msgspec.Struct, tag_field="op", tag="read_usage", forbid_unknown_fields=True):
    """Ask a node for the counters of all accounts, part by part. Answered with `UsageRead`. For one reader: what it has
    noted, the node may forget."""

    nonce: str
    noted: float = 0.0
    """`UsageRead.at` of the first part of the last reading that was taken note of as a whole; 0 before the first."""
    after: int = 0
    """`UsageRead.next` of the part before; 0 for the first."""


class UsageRead(msgspec.Struct, tag_field="op", tag="usage_read"):
    """Accounts by number."""

    nonce: str
    at: float
    """Unix seconds of the node: the counters are those of this time, look-ups and acquires up to a second older."""
    accounts: list[UsageCounters]
    next: int
    """Ask for what comes after with this number; 0 when there is no more."""
