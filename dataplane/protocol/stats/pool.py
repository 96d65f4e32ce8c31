"""The pool: its bytes, its spaces, and what is evicted and swept."""

import msgspec


class PoolStats(msgspec.Struct):
    """Use of the pool's bytes. used = ready + reserved + quarantined."""

    capacity_bytes: int = 0
    used_bytes: int = 0
    ready_bytes: int = 0
    reserved_bytes: int = 0
    quarantined_bytes: int = 0
    pinned_bytes: int = 0
    pin_budget_bytes: int = 0
    committed_bytes: int = 0
    """Memory of segments; the rest of the capacity is not yet allocated from the machine."""
    padding_bytes: int = 0
    """Internal fragmentation: bytes of slots beyond their blocks' size."""
    segments: int = 0
    blocks: int = 0
    max_blocks: int = 0
    prefaulted_bytes: int = 0
    """Memory whose pages were allocated ahead of use, for existing and future segments."""
    free_slot_bytes: int = 0
    """External fragmentation: free slots and slabs inside committed segments."""
    huge_pages: bool = False
    locked: bool = False
    """The memory is locked into RAM."""
    hinted_bytes: int = 0
    """Charged bytes of blocks under hinted pins."""


class Totals(msgspec.Struct):
    """Counters since the process started."""

    requested_blocks: int = 0
    hit_blocks: int = 0
    stored_bytes: int = 0
    """Bytes of committed blocks."""
    read_bytes: int = 0
    """Bytes of blocks that engines acquired."""
    stored_blocks: int = 0
    evicted_blocks: int = 0
    evicted_bytes: int = 0
    evictions_cancelled: int = 0
    """Evictions cancelled because a lease counter was not zero."""
    refused_blocks: int = 0
    aborted_blocks: int = 0
    quarantined_blocks: int = 0
    invalidated_blocks: int = 0
    corrupt_blocks: int = 0
    """Blocks dropped because their bytes did not match their checksum."""
    false_reports: int = 0
    """Reports of corrupt blocks that verification found intact."""
    malformed_messages: int = 0
    ring_dropped: int = 0
    ring_entries_rejected: int = 0
    """Access ring entries that referenced no block, an unknown kind, or another incarnation."""
    events_dropped: int = 0
    hinted_ttl_blocks: int = 0
    """Blocks stored with a hint `ttl`."""
    hinted_pin_blocks: int = 0
    """Blocks to which a hint `pin` applied."""
    refused_hinted_pin_blocks: int = 0
    """Blocks to which a hint `pin` did not apply, because hinted pins held their whole share of the account."""


class Evictions(msgspec.Struct):
    """Evicted blocks since the process started."""

    blocks: int = 0
    bytes: int = 0
    """Charged bytes, with padding."""


class PolicyStats(msgspec.Struct):
    """The eviction policy in force."""

    algorithm: str = "lru"
    admission: bool = False
    admission_idle_s: float = 240.0
    gate_closed: bool = False
    """The admission gate now requires that a key was seen before."""
    victim_idle_s: float | None = None
    """Moving average of the idle time of victims; None before the first."""
    admitted_blocks: int = 0
    """Blocks admitted while the gate was closed."""
    declined_blocks: int = 0
    high_watermark: float = 1.0
    low_watermark: float = 1.0


class SpaceStats(msgspec.Struct):
    """Cached contents of one space."""

    space: str
    """Identity, 32 hex digits."""
    model: str
    revision: str
    dtype: str
    world_size: int
    rank: int
    block_bytes: int
    blocks: int
    bytes: int
    padding_bytes: int
    segments: int
    gateway: str = ""
    """Gateway whose engines use the space."""


class SweepStats(msgspec.Struct):
    """An invalidation or demotion whose sweep is in progress."""

    sweep: int
    kind: str
    """`invalidate` or `demote`."""
    blocks: int
    """Blocks swept so far."""
    leased: int
    """Invalidated blocks whose lease has not ended."""
