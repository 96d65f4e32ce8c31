"""Metrics under LMCache's Prometheus names, so that its dashboards and alerts keep working.

Each metric has LMCache's labels where their values are known, and `node`. LMCache leaves some metrics empty while
engines copy by themselves (stores, retrieves, loaded chunks); Larder fills them in both modes. Metrics of LMCache
without an exact counterpart are omitted: the same name with another meaning would be worse than none.
"""

from app.observe.page import NODE, MetricDeclaration, MetricsPage, counter, gauge
from dataplane.protocol.stats.gateways import GatewayOperation, GatewayStats
from dataplane.protocol.stats.node import NodeStats

_L1 = ("node", "l1_tag")
_L1_BYTES = ("node", "l1_tag", "backend")
_DEVICE = ("node", "device")
_NODE = NODE
TAG, BACKEND, DEVICE = "_default", "dram", "cpu"


def _counter(name: str, text: str, labels: tuple[str, ...] = _NODE) -> MetricDeclaration:
    return counter(f"lmcache_mp_{name}", text, labels)


def _gauge(name: str, text: str, labels: tuple[str, ...] = _NODE) -> MetricDeclaration:
    return gauge(f"lmcache_mp_{name}", text, labels)


WRITTEN = _counter("l1_write_chunks", "Chunks that clients stored (LMCache's name).", _L1)
READ = _counter("l1_read_chunks", "Chunks that clients read (LMCache's name).", _L1)
EVICTED = _counter("l1_evicted_chunks", "Blocks evicted (LMCache's name).", _L1)
NO_ROOM = _counter("l1_allocation_failure_chunks", "Blocks refused (LMCache's name).", _L1)
LOOKUPS = _counter("lookups_requests", "Look-ups (LMCache's name).")
REQUESTED = _counter("lookup_requested_tokens", "Tokens that look-ups requested, when they end (LMCache's name).")
HIT = _counter("lookup_hit_tokens", "Tokens that look-ups found and requests used (LMCache's name).")
HIT_L1 = _counter("lookup_hit_l1_tokens", "Tokens that look-ups found in memory and requests used (LMCache's name).")
HIT_L2 = _counter(
    "lookup_hit_l2_tokens", "Tokens that look-ups found in tiers behind memory and requests used (LMCache's name)."
)
LOADED = _counter("num_chunks_loaded", "Chunks that clients read (LMCache's name).")
STORES = _counter("num_submitted_stores", "Attempted stores (LMCache's name).", _DEVICE)
STORED = _counter("num_finished_stores", "Successful stores (LMCache's name).", _DEVICE)
RETRIEVES = _counter("num_submitted_retrieves", "Attempted retrievals (LMCache's name).", _DEVICE)
RETRIEVED = _counter("num_finished_retrieves", "Successful retrievals (LMCache's name).", _DEVICE)
DROPPED = _counter("event_bus_dropped_events", "Events that the node could not publish (LMCache's name).")
USED = _gauge("l1_memory_usage_bytes", "Bytes in use (LMCache's name).", _L1_BYTES)
USAGE = _gauge("l1_usage_ratio", "Share of the pool in use (LMCache's name).", _L1_BYTES)
STAGING = _gauge("l1_staging_bytes", "Bytes being written (LMCache's name).", _L1_BYTES)
JOBS = _gauge("active_prefetch_jobs", "Look-ups in progress (LMCache's name).")


def add(page: MetricsPage, stats: NodeStats, gateway: GatewayStats) -> None:
    """Add the samples of one node."""
    node, pool = stats.node, stats.pool
    l1, memory = (node, TAG), (node, TAG, BACKEND)
    page.add(WRITTEN, gateway.chunks_in, *l1)
    page.add(READ, gateway.chunks_out, *l1)
    page.add(EVICTED, stats.totals.evicted_blocks, *l1)
    page.add(NO_ROOM, stats.totals.refused_blocks, *l1)
    page.add(REQUESTED, gateway.requested_chunks * gateway.chunk_tokens, node)
    page.add(HIT, gateway.hit_chunks * gateway.chunk_tokens, node)
    page.add(HIT_L1, (gateway.hit_chunks - gateway.tier_hit_chunks) * gateway.chunk_tokens, node)
    page.add(HIT_L2, gateway.tier_hit_chunks * gateway.chunk_tokens, node)
    page.add(LOADED, gateway.chunks_out, node)
    page.add(DROPPED, stats.totals.events_dropped, node)
    page.add(USED, pool.used_bytes, *memory)
    page.add(USAGE, pool.used_bytes / pool.capacity_bytes if pool.capacity_bytes else 0.0, *memory)
    page.add(STAGING, pool.reserved_bytes, *memory)
    page.add(JOBS, gateway.lookups, node)
    done = {operation.operation: operation for operation in gateway.operations}
    page.add(LOOKUPS, _begun(done, "lookup"), node)
    # A prepared store that finds all chunks cached is never committed and does not count as a store.
    page.add(STORES, _begun(done, "store", "commit_store") + _failed(done, "prepare_store"), node, DEVICE)
    page.add(STORED, _succeeded(done, "store", "commit_store"), node, DEVICE)
    page.add(RETRIEVES, _begun(done, "retrieve", "prepare_retrieve"), node, DEVICE)
    page.add(RETRIEVED, _succeeded(done, "retrieve", "commit_retrieve"), node, DEVICE)


def _begun(done: dict[str, GatewayOperation], *names: str) -> int:
    return sum(done[name].requests for name in names if name in done)


def _failed(done: dict[str, GatewayOperation], *names: str) -> int:
    return sum(sum(done[name].failures.values()) for name in names if name in done)


def _succeeded(done: dict[str, GatewayOperation], *names: str) -> int:
    return _begun(done, *names) - _failed(done, *names)
