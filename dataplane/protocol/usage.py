"""Usage of tenants, as counters that a node reports and a ledger sums up.

A counter starts at 0 when its account opens and never decreases. An account is one tenant in the spaces of one model
that differ only by rank, pipeline stage and KV group; it is named by the first of them, the leading space. Its `number`
is unique in the life of the process: if the same tenant and space appear under a higher number, they are counted from 0
again.
"""

import msgspec

OTHERS = "/other"
"""Shown for all tenants that have no account of their own because there are too many tenants. No salt can equal it."""
MAX_USAGE_PART = 500
"""Limit of accounts in one answer."""


class UsageCounters(msgspec.Struct, array_like=True, frozen=True):
    """One account's counters since it was opened."""

    number: int
    tenant: str
    """Display name: `_default` for the empty salt, `/other` for tenants without an account."""
    model: str
    space: str
    """Identity of the leading space, 32 hex digits."""
    held_kib_s: int
    """Integral over time of the charged bytes, in KiB seconds; rounded down in reports only."""
    requested_tokens: int
    """Tokens of look-ups by engines whose spaces include a leading one, each look-up counted once."""
    served_tokens: int
    """Tokens of blocks of leading spaces that engines acquired."""
    stored_blocks: int
    """Sum over all ranks, as are stored bytes and evictions."""
    stored_bytes: int
    evicted_blocks: int
    evicted_bytes: int
    refused: dict[str, int]
    """Refused blocks by name of the reason, over all ranks."""


class ReadUsage(msgspec.Struct, tag_field="op", tag="read_usage", forbid_unknown_fields=True):
    """Ask a node for the counters of all accounts, part by part. Answered with `UsageRead`. There must be only one
    reader: the node may drop what the reader has noted."""

    nonce: str
    noted: float = 0.0
    """`UsageRead.at` of the first part of the last reading that the reader noted completely; 0 before the first."""
    after: int = 0
    """`UsageRead.next` of the previous answer; 0 for the first."""


class UsageRead(msgspec.Struct, tag_field="op", tag="usage_read"):
    """Accounts, ordered by number."""

    nonce: str
    at: float
    """Unix seconds of the node: the counters are as of this time; look-ups and acquires may lag by up to a second."""
    accounts: list[UsageCounters]
    next: int
    """Value of `ReadUsage.after` for the next part; 0 when there is no more."""
