"""Metrics of pins: the blocks that each pin covers, and how many of them are in the pools of nodes.

The number of pin labels is bounded: the 50 pins that cover the most blocks, and `other` for the rest.
"""

from collections.abc import Sequence

from app.observe.page import MetricsPage, gauge, largest
from dataplane.protocol.stats.node import NodeStats

PIN_LABELS = 50
BLOCKS = gauge(
    "larder_pin_blocks", "Blocks that a pin covers, on the node that knows the most spaces of its model.", ("pin",)
)
RESIDENT = gauge("larder_pin_resident_blocks", "Blocks of a pin in the node's pool.", ("node", "pin"))


def add(page: MetricsPage, nodes: Sequence[NodeStats]) -> None:
    """Add the samples of all nodes. `other` includes a pin named `other`."""
    covered: dict[str, int] = {}
    for stats in nodes:
        for pin in stats.pins:
            covered[pin.name] = max(covered.get(pin.name, 0), pin.resolved)
    named = frozenset(largest(covered, PIN_LABELS))
    page.add_by(BLOCKS, covered.items(), named=named)
    for stats in nodes:
        page.add_by(RESIDENT, ((pin.name, pin.resident) for pin in stats.pins), stats.node, named=named)
