"""Whether a node's cache is cold: one definition for the API, metrics, the dashboard and the command line."""

from dataplane.protocol.stats.node import NodeStats

WARM_AGAIN = 0.5
"""Share of the lost bytes that a cold cache must hold to count as filled again."""


def is_cold(stats: NodeStats) -> bool:
    """Return whether the cache lost the blocks of the previous process, not on purpose, and does not yet hold half as
    much."""
    start = stats.start
    if start.kind != "cold" or start.released or start.lost_blocks <= 0:
        return False
    if start.lost_bytes <= 0:  # only the number of blocks was recorded
        return stats.pool.blocks < WARM_AGAIN * start.lost_blocks
    return stats.pool.ready_bytes < WARM_AGAIN * start.lost_bytes
