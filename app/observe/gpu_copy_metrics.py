"""Metrics of GPU copies: the pools on a node's GPUs, and the copies of each pin. A node without GPUs has none.

The number of pin labels is bounded: the 50 pins of the tier `gpu` with the most GPU copies, and `other` for the rest.
"""

from app.observe.page import MetricsPage, counter, gauge
from dataplane.protocol.stats.node import NodeStats
from dataplane.protocol.stats.pins import PinStats

POOL_LABELS = 64
PIN_LABELS = 50
OTHER = "other"
_POOL = ("node", "device")
POOLS = {
    "capacity_bytes": gauge("larder_gpu_copy_pool_capacity_bytes", "Memory of the GPU that GPU copies may use.", _POOL),
    "used_bytes": gauge(
        "larder_gpu_copy_pool_used_bytes", "Memory of the GPU that is in use, in whole extents.", _POOL
    ),
    "gpu_copies": gauge("larder_gpu_copy_pool_gpu_copies", "Blocks that engines may read on the GPU.", _POOL),
    "gpu_copy_bytes": gauge(
        "larder_gpu_copy_pool_gpu_copy_bytes", "Bytes of blocks that engines may read on the GPU.", _POOL
    ),
    "wanted": gauge(
        "larder_gpu_copy_pool_wanted_blocks",
        "Blocks in the node's pool that pins require on the GPU and that engines there could read.",
        _POOL,
    ),
    "copying": gauge("larder_gpu_copy_pool_copying_blocks", "Blocks that are being copied.", _POOL),
    "leaving_bytes": gauge(
        "larder_gpu_copy_pool_leaving_bytes", "Bytes of withdrawn GPU copies that an engine still uses.", _POOL
    ),
    "readers": gauge("larder_gpu_copy_pool_readers", "Engines that have mapped the pool.", _POOL),
    "copied_blocks": counter("larder_gpu_copy_pool_copied_blocks", "Blocks copied to the GPU.", _POOL),
    "copied_bytes": counter("larder_gpu_copy_pool_copied_bytes", "Bytes copied to the GPU.", _POOL),
    "evicted_blocks": counter(
        "larder_gpu_copy_pool_evicted_blocks",
        "GPU copies that were removed, to make room or because their pin expired.",
        _POOL,
    ),
    "read_blocks": counter(
        "larder_gpu_copy_pool_read_blocks", "GPU copies that the data plane itself copied to engines.", _POOL
    ),
    "failed_copies": counter("larder_gpu_copy_pool_failed_copies", "Copies to the GPU that failed.", _POOL),
}
PROBLEM = gauge(
    "larder_gpu_copy_pool_problem", "1 while the pool is smaller than its capacity or unusable, else 0.", _POOL
)
_PIN = ("node", "pin")
PINS = {
    "gpu_copies": gauge(
        "larder_pin_gpu_copies", "GPU copies of the blocks of a pin of the tier gpu, on all GPUs.", _PIN
    ),
    "gpu_copy_bytes": gauge("larder_pin_gpu_copy_bytes", "Bytes of the GPU copies of a pin of the tier gpu.", _PIN),
    "gpu_copies_wanted": gauge(
        "larder_pin_gpu_copies_wanted",
        "GPU copies that a gpu pin would have with unlimited memory: of each block on each GPU whose engines read it.",
        _PIN,
    ),
}


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
