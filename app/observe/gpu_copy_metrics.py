"""Metrics of GPU copies: the pools on a node's GPUs, and the copies of each pin. A node without GPUs has none.

The number of pin labels is bounded: the 50 pins of the tier `gpu` with the most GPU copies, and `other` for the rest.
"""

from app.observe.page import MetricsPage, gauge, largest, metrics_of
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pins import GpuCopyPoolStats, PinStats

POOL_LABELS = 64
PIN_LABELS = 50
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
    pins = [pin for pin in stats.pins if pin.tier == "gpu"]
    named = frozenset(largest({pin.name: pin.gpu_copies for pin in pins}, PIN_LABELS))
    for field, declared in PINS.items():
        page.add_by(declared, ((pin.name, getattr(pin, field)) for pin in pins), stats.node, named=named)
