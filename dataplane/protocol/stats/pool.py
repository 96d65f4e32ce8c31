"""The pool: its bytes, its spaces, and what is evicted and swept."""

from typing import Annotated

import msgspec

from dataplane.protocol.stats.figures import counter, gauge


class PoolStats(msgspec.Struct):
    """Use of the pool's bytes. used = ready + reserved + quarantined."""

    capacity_bytes: Annotated[int, gauge("larder_pool_capacity_bytes", "Size of the pool.")] = 0
    used_bytes: Annotated[int, gauge("larder_pool_used_bytes", "Bytes that are ready, reserved or quarantined.")] = 0
    ready_bytes: Annotated[int, gauge("larder_pool_ready_bytes", "Bytes of blocks that can be read.")] = 0
    reserved_bytes: Annotated[int, gauge("larder_pool_reserved_bytes", "Bytes being written.")] = 0
    quarantined_bytes: Annotated[
        int,
        gauge("larder_pool_quarantined_bytes", "Bytes that are not reused because a process could still write them."),
    ] = 0
    pinned_bytes: Annotated[int, gauge("larder_pool_pinned_bytes", "Bytes that guaranteed pins hold.")] = 0
    pin_budget_bytes: Annotated[int, gauge("larder_pool_pin_budget_bytes", "Bytes that guaranteed pins may hold.")] = 0
    committed_bytes: Annotated[int, gauge("larder_pool_committed_bytes", "Memory of segments.")] = 0
    """Memory of segments; the rest of the capacity is not yet allocated from the machine."""
    padding_bytes: Annotated[
        int, gauge("larder_pool_padding_bytes", "Internal fragmentation: bytes of slots beyond their blocks.")
    ] = 0
    segments: int = 0
    blocks: Annotated[int, gauge("larder_pool_blocks", "Blocks in the pool.")] = 0
    max_blocks: int = 0
    prefaulted_bytes: Annotated[
        int, gauge("larder_pool_prefaulted_bytes", "Committed memory that was allocated ahead of use.")
    ] = 0
    free_slot_bytes: Annotated[
        int, gauge("larder_pool_free_slot_bytes", "External fragmentation: free slots in committed segments.")
    ] = 0
    huge_pages: Annotated[bool, gauge("larder_pool_huge_pages", "1 when memory is in huge pages, else 0.")] = False
    locked: Annotated[bool, gauge("larder_pool_locked", "1 when memory is locked into RAM, else 0.")] = False
    hinted_bytes: Annotated[
        int, gauge("larder_pool_hinted_bytes", "Bytes of blocks that requests asked to keep (`larder.pin`).")
    ] = 0
    """Charged bytes of blocks under hinted pins."""


class Totals(msgspec.Struct):
    """Counters since the process started."""

    requested_blocks: Annotated[int, counter("larder_requested_blocks", "Blocks that engines requested.")] = 0
    hit_blocks: Annotated[int, counter("larder_hit_blocks", "Requested blocks that were cached.")] = 0
    stored_bytes: Annotated[int, counter("larder_stored_bytes", "Bytes of committed blocks.")] = 0
    read_bytes: Annotated[int, counter("larder_read_bytes", "Bytes of blocks that engines acquired.")] = 0
    stored_blocks: Annotated[int, counter("larder_stored_blocks", "Blocks committed.")] = 0
    evicted_blocks: int = 0
    evicted_bytes: int = 0
    evictions_cancelled: Annotated[
        int, counter("larder_evictions_cancelled", "Evictions cancelled because of a lease.")
    ] = 0
    refused_blocks: int = 0
    aborted_blocks: Annotated[int, counter("larder_aborted_blocks", "Reserved blocks that engines gave up.")] = 0
    quarantined_blocks: Annotated[
        int, counter("larder_quarantined_blocks", "Blocks that were quarantined until a process ended.")
    ] = 0
    invalidated_blocks: Annotated[int, counter("larder_invalidated_blocks", "Blocks invalidated.")] = 0
    corrupt_blocks: Annotated[
        int, counter("larder_corrupt_blocks", "Blocks dropped because their bytes do not match their checksum.")
    ] = 0
    false_reports: Annotated[
        int, counter("larder_false_corruption_reports", "Corruption reports about intact blocks.")
    ] = 0
    malformed_messages: Annotated[
        int, counter("larder_node_malformed_messages", "Malformed messages that the node received.")
    ] = 0
    ring_dropped: Annotated[
        int, counter("larder_ring_dropped", "Accesses that engines could not record because their ring was full.")
    ] = 0
    ring_entries_rejected: Annotated[
        int, counter("larder_ring_entries_rejected", "Ring entries that reference no live block.")
    ] = 0
    """Access ring entries that referenced no block, an unknown kind, or another incarnation."""
    events_dropped: int = 0
    hinted_ttl_blocks: Annotated[
        int, counter("larder_hinted_ttl_blocks", "Blocks stored with a hint `larder.ttl` of a request.")
    ] = 0
    hinted_pin_blocks: Annotated[
        int, counter("larder_hinted_pin_blocks", "Blocks to which a hint `larder.pin` of a request applied.")
    ] = 0
    refused_hinted_pin_blocks: Annotated[
        int,
        counter(
            "larder_refused_hinted_pin_blocks",
            "Blocks to which a hint `larder.pin` did not apply, because such blocks held their share already.",
        ),
    ] = 0


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
    blocks: Annotated[int, gauge("larder_space_blocks", "Blocks of the space.")]
    bytes: Annotated[int, gauge("larder_space_bytes", "Bytes of the space's blocks.")]
    padding_bytes: Annotated[int, gauge("larder_space_padding_bytes", "Bytes of the space's slots beyond its blocks.")]
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
