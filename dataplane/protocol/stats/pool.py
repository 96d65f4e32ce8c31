"""The pool: its bytes, its spaces, and what is evicted and swept."""

from typing import Annotated

import msgspec

from dataplane.protocol.stats.figures import counter, gauge


class PoolStats(msgspec.Struct):
    """Use of the pool's bytes. used = ready + reserved + quarantined."""

    capacity_bytes: Annotated[int, gauge("larder_pool_capacity_bytes")] = 0
    """Size of the pool."""
    used_bytes: Annotated[int, gauge("larder_pool_used_bytes")] = 0
    """Bytes that are ready, reserved or quarantined."""
    ready_bytes: Annotated[int, gauge("larder_pool_ready_bytes")] = 0
    """Bytes of blocks that can be read."""
    reserved_bytes: Annotated[int, gauge("larder_pool_reserved_bytes")] = 0
    """Bytes being written."""
    quarantined_bytes: Annotated[int, gauge("larder_pool_quarantined_bytes")] = 0
    """Bytes that are not reused because a process could still write them."""
    pinned_bytes: Annotated[int, gauge("larder_pool_pinned_bytes")] = 0
    """Bytes that guaranteed pins hold."""
    pin_budget_bytes: Annotated[int, gauge("larder_pool_pin_budget_bytes")] = 0
    """Bytes that guaranteed pins may hold."""
    committed_bytes: Annotated[int, gauge("larder_pool_committed_bytes")] = 0
    """Memory of segments.

    The rest of the capacity is not yet allocated from the machine."""
    padding_bytes: Annotated[int, gauge("larder_pool_padding_bytes")] = 0
    """Internal fragmentation: bytes of slots beyond their blocks."""
    segments: int = 0
    blocks: Annotated[int, gauge("larder_pool_blocks")] = 0
    """Blocks in the pool."""
    max_blocks: int = 0
    prefaulted_bytes: Annotated[int, gauge("larder_pool_prefaulted_bytes")] = 0
    """Committed memory that was allocated ahead of use."""
    free_slot_bytes: Annotated[int, gauge("larder_pool_free_slot_bytes")] = 0
    """External fragmentation: free slots in committed segments."""
    huge_pages: Annotated[bool, gauge("larder_pool_huge_pages")] = False
    """1 when memory is in huge pages, else 0."""
    locked: Annotated[bool, gauge("larder_pool_locked")] = False
    """1 when memory is locked into RAM, else 0."""
    hinted_bytes: Annotated[int, gauge("larder_pool_hinted_bytes")] = 0
    """Bytes of blocks that requests asked to keep (`larder.pin`), or that are retained for a session."""
    sessions: Annotated[int, gauge("larder_sessions")] = 0
    """Sessions that requests named (`larder.session`)."""
    forgotten_sessions: Annotated[int, counter("larder_forgotten_sessions")] = 0
    """Sessions that the node forgot because there were too many."""


class Totals(msgspec.Struct):
    """Counters since the process started."""

    requested_blocks: Annotated[int, counter("larder_requested_blocks")] = 0
    """Blocks that engines requested."""
    hit_blocks: Annotated[int, counter("larder_hit_blocks")] = 0
    """Requested blocks that were cached."""
    stored_bytes: Annotated[int, counter("larder_stored_bytes")] = 0
    """Bytes of committed blocks."""
    read_bytes: Annotated[int, counter("larder_read_bytes")] = 0
    """Bytes of blocks that engines acquired."""
    stored_blocks: Annotated[int, counter("larder_stored_blocks")] = 0
    """Blocks committed."""
    evicted_blocks: int = 0
    evicted_bytes: int = 0
    evictions_cancelled: Annotated[int, counter("larder_evictions_cancelled")] = 0
    """Evictions cancelled because of a lease."""
    refused_blocks: int = 0
    aborted_blocks: Annotated[int, counter("larder_aborted_blocks")] = 0
    """Reserved blocks that engines gave up."""
    quarantined_blocks: Annotated[int, counter("larder_quarantined_blocks")] = 0
    """Blocks that were quarantined until a process ended."""
    invalidated_blocks: Annotated[int, counter("larder_invalidated_blocks")] = 0
    """Blocks invalidated."""
    corrupt_blocks: Annotated[int, counter("larder_corrupt_blocks")] = 0
    """Blocks dropped because their bytes do not match their checksum."""
    false_reports: Annotated[int, counter("larder_false_corruption_reports")] = 0
    """Corruption reports about intact blocks."""
    malformed_messages: Annotated[int, counter("larder_node_malformed_messages")] = 0
    """Malformed messages that the node received."""
    ring_dropped: Annotated[int, counter("larder_ring_dropped")] = 0
    """Accesses that engines could not record because their ring was full."""
    ring_entries_rejected: Annotated[int, counter("larder_ring_entries_rejected")] = 0
    """Ring entries that reference no live block.

    They reference no block, an unknown kind, or another incarnation."""
    events_dropped: int = 0
    hinted_ttl_blocks: Annotated[int, counter("larder_hinted_ttl_blocks")] = 0
    """Blocks stored with a hint `larder.ttl` of a request."""
    hinted_pin_blocks: Annotated[int, counter("larder_hinted_pin_blocks")] = 0
    """Blocks to which a hint `larder.pin` of a request applied."""
    refused_hinted_pin_blocks: Annotated[int, counter("larder_refused_hinted_pin_blocks")] = 0
    """Blocks to which a hint `larder.pin` did not apply, because such blocks held their share already."""
    released_session_blocks: Annotated[int, counter("larder_released_session_blocks")] = 0
    """Blocks that became the first victims because their session was released."""
    prefetched_session_blocks: Annotated[int, counter("larder_prefetched_session_blocks")] = 0
    """Blocks of tiers that were requested by a prefetch of their session."""


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
    victim_idle_s: Annotated[float | None, gauge("larder_victim_idle_seconds")] = None
    """Average time that victims had been idle.

    A moving average; None before the first."""
    admitted_blocks: Annotated[int, counter("larder_admission_admitted_blocks")] = 0
    """Blocks admitted while admission was restricted to keys seen before."""
    declined_blocks: Annotated[int, counter("larder_admission_declined_blocks")] = 0
    """Blocks refused while admission was restricted to keys seen before."""
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
    blocks: Annotated[int, gauge("larder_space_blocks")]
    """Blocks of the space."""
    bytes: Annotated[int, gauge("larder_space_bytes")]
    """Bytes of the space's blocks."""
    padding_bytes: Annotated[int, gauge("larder_space_padding_bytes")]
    """Bytes of the space's slots beyond its blocks."""
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
