"""Drains of tiers: the record of a tier that drains stays until other tiers hold its blocks."""

from app.errors import Conflict
from app.ingest.fleet import Fleet


def check_drained(name: str, fleet: Fleet) -> None:
    """Raise Conflict if a connected node reports blocks that only the tier holds."""
    waiting = []
    for stats in sorted(fleet.stats(), key=lambda stats: stats.node):
        for tier in stats.tiers:
            if tier.name == name and not tier.from_settings:
                left = tier.blocks if tier.draining_blocks is None else tier.draining_blocks
                waiting += [f"{left:,} on {stats.node}"] if left else []
    if waiting:
        raise Conflict(
            f"the tier {name!r} drains, and only it holds some blocks ({', '.join(waiting)}): wait until none is left, "
            "or set its spill to 'off' to cancel the drain"
        )
