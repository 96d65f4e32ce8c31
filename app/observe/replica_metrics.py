"""Metrics of replicas on a node's GPUs: what their pools keep, and what of each pin is there. Nothing without GPUs.

Pins are bounded: the largest 50 of the tier `gpu` by replicas, the rest as `other`.
"""

from app.observe.page import C, Declared, G, Page
from dataplane.protocol.events import NodeStats, PinStats

POOL_LABELS = 64
PIN_LABELS = 50
OTHER = "other"
_POOL = ("node", "device")
POOLS = {
    "capacity_bytes": Declared(
        "larder_replica_pool_capacity_bytes", G, "Memory of the GPU that replicas may take.", _POOL
    ),
    "used_bytes": Declared(
        "larder_replica_pool_used_bytes", G, "Memory of the GPU that is taken, in whole extents.", _POOL
    ),
    "replicas": Declared(
        "larder_replica_pool_replicas", G, "Blocks that engines may read on the GPU.", _POOL
    ),
    "replica_bytes": Declared("larder_replica_pool_replica_bytes", G, "Bytes of these blocks.", _POOL),
    "wanted": Declared(
        "larder_replica_pool_wanted_blocks",
        G,
        "Blocks in the node's pool that pins want on the GPU, and engines there could read.",
        _POOL,
    ),
    "copying": Declared("larder_replica_pool_copying_blocks", G, "Blocks that are being copied.", _POOL),
    "leaving_bytes": Declared(
        "larder_replica_pool_leaving_bytes", G, "Withdrawn, but still in use by an engine.", _POOL
    ),
    "readers": Declared("larder_replica_pool_readers", G, "Engines that have mapped the pool.", _POOL),
    "copied_blocks": Declared("larder_replica_pool_copied_blocks", C, "Blocks copied to the GPU.", _POOL),
    "copied_bytes": Declared("larder_replica_pool_copied_bytes", C, "Bytes copied to the GPU.", _POOL),
    "evicted_blocks": Declared(
        "larder_replica_pool_evicted_blocks",
        C,
        "Replicas that made way for others, or whose pin ended.",
        _POOL,
    ),
    "read_blocks": Declared(
        "larder_replica_pool_read_blocks", C, "Replicas that the data plane itself copied to engines.", _POOL
    ),
    "failed_copies": Declared(
        "larder_replica_pool_failed_copies", C, "Copies to the GPU that failed.", _POOL
    ),
}
PROBLEM = Declared(
    "larder_replica_pool_problem", G, "1 while the pool is smaller than its capacity, or of no use.", _POOL
)
_PIN = ("node", "pin")
PINS = {
    "replicas": Declared("larder_pin_replicas", G, "Replicas of a gpu pin's blocks, on all GPUs.", _PIN),
    "replica_bytes": Declared("larder_pin_replica_bytes", G, "Bytes of a gpu pin's replicas.", _PIN),
    "replicas_wanted": Declared(
        "larder_pin_replicas_wanted",
        G,
        "Replicas that a gpu pin would have with endless room: of each block on each GPU whose engines read it.",
        _PIN,
    ),
    "resident": Declared("larder_pin_resident_blocks", G, "Blocks of a gpu pin in the node's pool.", _PIN),
}


def add(page: Page, stats: NodeStats) -> None:
    """One node's samples."""
    for pool in stats.replica_pools[:POOL_LABELS]:
        for name, declared in POOLS.items():
            page.add(declared, getattr(pool, name), stats.node, pool.device)
        page.add(PROBLEM, pool.problem != "", stats.node, pool.device)
    for pin in _bounded(stats.pins):
        for name, declared in PINS.items():
            page.add(declared, getattr(pin, name), stats.node, pin.name)


def _bounded(pins: list[PinStats]) -> list[PinStats]:
    """Those of the tier `gpu` with most replicas, and one `other` that sums up the rest, with a pin of that name."""
    wanted = [pin for pin in pins if pin.tier == "gpu"]
    largest = sorted((pin for pin in wanted if pin.name != OTHER), key=lambda pin: (-pin.replicas, pin.name))
    kept, folded = largest[:PIN_LABELS], largest[PIN_LABELS:]
    folded += [pin for pin in wanted if pin.name == OTHER]
    if not folded:
        return kept
    other = PinStats(OTHER, resolved=0, resident=0, bytes=0, guaranteed=0)
    for name in PINS:
        setattr(other, name, sum(getattr(pin, name) for pin in folded))
    return [*kept, other]
