"""How much is done for a figure."""

import msgspec

from benchmarks.harness.memory import MiB


class Effort(msgspec.Struct, frozen=True):
    rounds: int
    """In each of which both servers have a turn."""
    samples: int
    """Of a latency, in a turn."""
    seconds: float
    """Of a turn that counts how often something is done."""
    pool_bytes: int
    """Of each server."""
    batch_chunks: int
    """That a store or retrieval moves."""
    abandoned: int
    """Look-ups whose results are never fetched, at Larder."""
    abandoned_at_lmcache: int


FULL = Effort(
    rounds=7,
    samples=1000,
    seconds=3.0,
    pool_bytes=2048 * MiB,
    batch_chunks=16,
    abandoned=1_000_000,
    abandoned_at_lmcache=20_000,
)
QUICK = Effort(
    rounds=4, samples=60, seconds=0.4, pool_bytes=512 * MiB, batch_chunks=4, abandoned=2_000, abandoned_at_lmcache=500
)
