"""Whether the floors of all tenants fit on the nodes that they are for. Pure."""

from collections.abc import Mapping, Sequence

from app.ingest.fleet import Node
from dataplane.protocol.labels import matches
from dataplane.protocol.units import format_size

Floor = tuple[Mapping[str, str] | None, int]
"""Selector of a quota, and the bytes that it guarantees; 0 when nothing binds."""


def excess(
    before: Mapping[str, Floor], after: Mapping[str, Floor], nodes: Sequence[Node], *, whole: bool = True
) -> str | None:
    """Why these floors, by tenant, are too much for one of the connected nodes; None when they are not.

    What was too much before may stay, and shrink. With no node, nodes tell. Unless the `whole` may be told, no number
    is: from it and one's own floor follows what all others have."""
    for node in nodes:
        total, capacity = _sum(after, node), _capacity(node)
        if total > max(capacity, _sum(before, node)):
            if not whole:
                return "there is no room for this floor beside those of other tenants; ask an admin"
            return (
                f"the floors of all tenants would be {format_size(total)} ({total} bytes) on {node.name}, which holds "
                f"{format_size(capacity)} ({capacity} bytes)"
            )
    return None


def _sum(floors: Mapping[str, Floor], node: Node) -> int:
    return sum(size for selector, size in floors.values() if size and matches(node.labels, selector))


def _capacity(node: Node) -> int:
    return node.capacity_bytes if node.stats is None else node.stats.pool.capacity_bytes
