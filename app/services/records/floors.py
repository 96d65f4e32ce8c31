"""Check whether the floors of all tenants fit on their nodes. This module does no I/O."""

from collections.abc import Mapping, Sequence

from app.ingest.fleet import FleetNode
from dataplane.base.labels import matches
from dataplane.base.units import format_size

Floor = tuple[Mapping[str, str] | None, int]
"""Selector of a quota, and the bytes that it guarantees; 0 when the floor is not enforced."""


def excess(
    before: Mapping[str, Floor], after: Mapping[str, Floor], nodes: Sequence[FleetNode], *, whole: bool = True
) -> str | None:
    """Return why these floors, by tenant, exceed the capacity of a connected node; None if they fit.

    Floors that were too large before may stay, and shrink. Without a connected node, nodes check later. Unless the
    caller may see the `whole`, the message has no number: with its own floor, the caller could compute the sum of all
    others.
    """
    for node in nodes:
        total, capacity = _sum(after, node), _capacity(node)
        if total > max(capacity, _sum(before, node)):
            if not whole:
                return "this floor does not fit beside the floors of other tenants; ask an admin"
            return (
                f"the floors of all tenants would be {format_size(total)} ({total} bytes) on {node.name}, which holds "
                f"{format_size(capacity)} ({capacity} bytes)"
            )
    return None


def _sum(floors: Mapping[str, Floor], node: FleetNode) -> int:
    return sum(size for selector, size in floors.values() if size and matches(node.labels, selector))


def _capacity(node: FleetNode) -> int:
    return node.capacity_bytes if node.stats is None else node.stats.pool.capacity_bytes
