"""Engines that are attached, or whose bytes are still held."""

from typing import Annotated

import msgspec

from dataplane.protocol.spaces import LMCACHE_SCHEDULERS, TIER_MOVER
from dataplane.protocol.stats.figures import gauge


class EngineStats(msgspec.Struct):
    client: int
    pid: int
    group: str
    engine: str
    attached_at: float
    spaces: list[str]
    """Models of the engine's spaces; at most 8 names, each cut to 64 characters."""
    connected: bool
    reserved_bytes: Annotated[int, gauge("larder_engine_reserved_bytes")] = 0
    """Bytes that engines of this name are writing."""
    quarantined_bytes: Annotated[int, gauge("larder_engine_quarantined_bytes")] = 0
    """Bytes that are not reused until the processes of engines of this name are gone."""
    ring_dropped: int = 0
    ring_entries_rejected: int = 0
    leased_blocks: Annotated[int, gauge("larder_engine_leased_blocks")] = 0
    """Blocks that engines of this name lease.

    By the engine's own counters."""
    alive: bool = True
    """The process is not proven gone."""
    waits_for_pids: list[int] = []
    """After the connection closed: processes that must be gone before the engine's bytes are released; at most 8."""
    expelled: str = ""
    """`barred`: an operator expelled the process, which may not attach; its leases do not count. `readmitted`: the
    process may attach again; the leases of this attachment still do not count. Empty: neither."""
    read_bytes: int = 0
    """Bytes of the blocks that the engine acquired, since the data plane started."""
    read_tokens: int = 0
    """Tokens of these blocks, counted once per request: in spaces of rank, stage and group 0. An engine of several
    processes reads them in the process of rank 0."""
    stored_bytes: int = 0
    """Bytes of the blocks that the engine stored, since the data plane started."""

    @property
    def is_engine(self) -> bool:
        """Whether this is a real engine, not one that a gateway keeps for itself or that loads from tiers."""
        return self.group != TIER_MOVER and (bool(self.pid) or self.group != LMCACHE_SCHEDULERS)
