"""Usage of tenants, as counters that a node reports and a ledger sums up.

A counter starts at 0 when its account opens and never decreases. An account is one tenant in the spaces of one model
that differ only by rank, pipeline stage and KV group; it is named by the first of them, the leading space. Its `number`
is unique in the life of the process: if the same tenant and space appear under a higher number, they are counted from 0
again.
"""

import msgspec

from dataplane.protocol.message_bases import ReplyOfNode

OTHERS = "/other"
"""Shown for all tenants that have no account of their own because there are too many tenants. No salt can equal it."""
UNKNOWN_MODEL = "/unknown"
"""Shown as the model of blocks in tiers whose space no engine has attached since the start of the node. No model has
this name."""
MAX_USAGE_TIERS = 32
"""Maximum number of tiers that one account counts by name. Usage of further tiers is counted under `OTHERS`."""
MAX_USAGE_PART = 500
"""Limit of accounts in one answer."""


class TierUsageCounters(msgspec.Struct, array_like=True, frozen=True):
    """Counters of one tier in one account since the account was opened."""

    held_kib_s: int
    """Integral over time of the bytes that the tier charges, in KiB seconds."""
    served_tokens: int
    """Tokens of blocks that engines acquired for the first time after they were loaded from the tier, counted as
    `UsageCounters.served_tokens`, which include them."""
    served_bytes: int
    """Bytes of those blocks, over all ranks; `UsageCounters.served_bytes` include them."""


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
    served_bytes: int = 0
    """Bytes of acquired blocks, over all ranks."""
    tiers: dict[str, TierUsageCounters] = {}
    """Counters by name of the tier. `held_kib_s` of the account counts memory alone. Older nodes send neither
    `served_bytes` nor `tiers`."""


class ReadUsage(msgspec.Struct, tag_field="op", tag="read_usage", forbid_unknown_fields=True):
    """Ask a node for the counters of all accounts, part by part. Answered with `UsageRead`. There must be only one
    reader: the node may drop what the reader has noted."""

    nonce: str
    noted: float = 0.0
    """`UsageRead.at` of the first part of the last reading that the reader noted completely; 0 before the first."""
    after: int = 0
    """`UsageRead.next` of the previous answer; 0 for the first."""


class UsageRead(ReplyOfNode, tag="usage_read"):
    """Accounts, ordered by number."""

    at: float
    """Unix seconds of the node: the counters are as of this time; look-ups and acquires may lag by up to a second."""
    accounts: list[UsageCounters]
    next: int
    """Value of `ReadUsage.after` for the next part; 0 when there is no more."""
