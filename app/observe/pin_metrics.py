"""Metrics of pins: the blocks that each pin covers, and how many of them are in the pools of nodes.

The number of pin labels is bounded: the 50 pins that cover the most blocks, and `other` for the rest.
"""

from collections.abc import Container, Iterable, Sequence

from app.observe.page import MetricsPage, gauge
from dataplane.protocol.stats.node import NodeStats

PIN_LABELS = 50
OTHER = "other"
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
    ranked = sorted((name for name in covered if name != OTHER), key=lambda name: (-covered[name], name))
    named = dict.fromkeys(ranked[:PIN_LABELS])
    for name, blocks in _folded(covered.items(), named).items():
        page.add(BLOCKS, blocks, name)
    for stats in nodes:
        resident = ((pin.name, pin.resident) for pin in stats.pins)
        for name, blocks in _folded(resident, named).items():
            page.add(RESIDENT, blocks, stats.node, name)


def _folded(counts: Iterable[tuple[str, int]], named: Container[str]) -> dict[str, int]:
    """Return the counts of named pins, and the sum of the others as `other`."""
    folded: dict[str, int] = {}
    for name, count in counts:
        shown = name if name in named else OTHER
        folded[shown] = folded.get(shown, 0) + count
    return folded
