"""Metrics of GPU copies: the pools on a node's GPUs, and the copies of each pin. A node without GPUs has none.

The number of pin labels is bounded: the 50 pins of the tier `gpu` with the most GPU copies, and `other` for the rest.
"""

from app.observe.page import MetricsPage, gauge, metrics_of
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pins import GpuCopyPoolStats, PinStats

POOL_LABELS = 64
PIN_LABELS = 50
OTHER = "other"
_POOL = ("node", "device")
POOLS = metrics_of(GpuCopyPoolStats, _POOL)
PROBLEM = gauge(
    "larder_gpu_copy_pool_problem", "1 while the pool is smaller than its capacity or unusable, else 0.", _POOL
)
_PIN = ("node", "pin")
PINS = metrics_of(PinStats, _PIN)


def add(page: MetricsPage, stats: NodeStats) -> None:
    """Add the samples of one node."""
    for pool in stats.gpu_copy_pools[:POOL_LABELS]:
        page.add_fields(POOLS, pool, stats.node, pool.device)
        page.add(PROBLEM, pool.problem != "", stats.node, pool.device)
    for pin in _bounded(stats.pins):
        page.add_fields(PINS, pin, stats.node, pin.name)


def _bounded(pins: list[PinStats]) -> list[PinStats]:
    """Return the pins of the tier `gpu` with the most GPU copies, and one `other` with the sum of the rest, which
    includes a pin named `other`."""
    on_gpus = [pin for pin in pins if pin.tier == "gpu"]
    largest = sorted((pin for pin in on_gpus if pin.name != OTHER), key=lambda pin: (-pin.gpu_copies, pin.name))
    named, folded = largest[:PIN_LABELS], largest[PIN_LABELS:]
    folded += [pin for pin in on_gpus if pin.name == OTHER]
    if not folded:
        return named
    other = PinStats(OTHER, resolved=0, resident=0, bytes=0, guaranteed=0)
    for name in PINS:
        setattr(other, name, sum(getattr(pin, name) for pin in folded))
    return [*named, other]
