"""The state of all nodes in the format of LMCache's `/status` and `/config`, as far as Larder has equivalents."""

import time
from collections.abc import Sequence

from app import __version__
from app.ingest.fleet import Fleet
from app.schemas.lmcache.objects import Json
from app.settings import Settings
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS
from dataplane.protocol.spaces import LMCACHE
from dataplane.protocol.stats.gateways import GatewayInstance
from dataplane.protocol.stats.node import NodeStats

SPOKEN = "0.5.6"
"""Version of LMCache whose interface is implemented."""
HASH = "sha256"
PUBLISHING_S = 0.5
"""Seconds between the stats that nodes publish."""


class LmcacheStatus:
    def __init__(self, fleet: Fleet, settings: Settings) -> None:
        self._fleet = fleet
        self._settings = settings

    @property
    def version(self) -> str:
        return f"{SPOKEN}-{self.commit}"

    @property
    def commit(self) -> str:
        """Identifies Larder in the place of LMCache's commit."""
        return f"larder{__version__}"

    def unhealthy(self) -> str:
        """Return why the cache cannot serve LMCache's clients; an empty string if it can."""
        if not self._fleet.living():
            return "no node is connected"
        problems = [stats.gateway.problem for stats in self._fleet.stats() if stats.gateway is not None]
        if not problems:
            return "no node has its LMCache gateway on"
        return problems[0] if all(problems) else ""

    def threads(self) -> Json:
        """Return the lost nodes in the format of LMCache's stopped threads."""
        now = time.monotonic()
        silent = [
            {
                "name": node.name,
                "level": "critical",
                "last_run_ago": round(now - node.seen, 3),
                "interval": PUBLISHING_S,
            }
            for node in sorted(self._fleet.nodes.values(), key=lambda node: node.name)
            if node.lost
        ]
        return {"healthy": not silent, "unhealthy_count": len(silent), "unhealthy_threads": silent}

    def status(self) -> Json:
        """Return `/status`. Numbers are sums over the connected nodes."""
        stats = self._fleet.stats()
        gateways = [node.gateway for node in stats if node.gateway is not None]
        healthy = not self.unhealthy()
        instances = [instance for gateway in gateways for instance in gateway.instances]
        lookups = sum(gateway.lookups for gateway in gateways)
        return {
            "is_healthy": healthy,
            "engine_type": "Larder",
            "chunk_size": gateways[0].chunk_tokens if gateways else DEFAULT_CHUNK_TOKENS,
            "hash_algorithm": HASH,
            "active_sessions": lookups,
            "active_prefetch_jobs": lookups,
            "active_p2p_lookup_jobs": 0,
            "storage_manager": _storage(stats, healthy=healthy),
            "p2p_enabled": False,
            "worker_liveness": {"enabled": True, "tracked_instances": len(instances)},
            "registered_non_cuda_instance_ids": [instance.instance for instance in instances if not instance.copies],
            "non_cuda_context_meta": {
                str(instance.instance): _meta(instance) for instance in instances if not instance.copies
            },
            "registered_cache_context_ids": [instance.instance for instance in instances if instance.copies],
            "cache_context_meta": _contexts(instances, stats),
        }

    def config(self) -> Json:
        """Return `/config`: settings that have an equivalent in LMCache."""
        stats = self._fleet.stats()
        gateways = [node.gateway for node in stats if node.gateway is not None]
        first = gateways[0] if gateways else None
        host, _, port = (first.url if first else "").removeprefix("tcp://").rpartition(":")
        common = self._settings.common
        policy = stats[0].policy.algorithm if stats else ""
        total = sum(node.pool.capacity_bytes for node in stats)
        return {
            "mp": {
                "transport": "zmq",
                "host": host,
                "port": int(port) if port.isdigit() else 0,
                "chunk_size": first.chunk_tokens if first else DEFAULT_CHUNK_TOKENS,
                "hash_algorithm": HASH,
                "engine_type": "default",
                "supported_transfer_mode": "auto",
                "shm_name": first.memory_name.removeprefix("lmcache_l1_pool_") if first else "",
                "run_script_api_enabled": False,
            },
            "storage_manager": {
                "l1_manager_config": {"memory_config": {"size_in_bytes": total, "use_lazy": False}},
                "eviction_config": {"eviction_policy": policy, **_watermarks(stats)},
                "l2_adapter_config": {"adapters": []},
            },
            "observability": {"enabled": True, "metrics_enabled": True},
            "http": {"host": common.http_host, "port": common.http_port},
        }


def _storage(stats: Sequence[NodeStats], *, healthy: bool) -> Json:
    total = sum(node.pool.capacity_bytes for node in stats)
    used = sum(node.pool.used_bytes for node in stats)
    spaces = [space for node in stats for space in node.spaces if space.gateway == LMCACHE]
    eviction = {
        "is_healthy": healthy,
        "thread_alive": healthy,
        "eviction_policy": stats[0].policy.algorithm if stats else "",
        **_watermarks(stats),
    }
    manager = {
        "is_healthy": healthy,
        "total_object_count": sum(space.blocks for space in spaces),
        "write_locked_count": 0,
        "read_locked_count": sum(engine.leased_blocks for node in stats for engine in node.engines),
        "staging_bytes": sum(node.pool.reserved_bytes for node in stats),
        "memory_used_bytes": used,
        "memory_total_bytes": total,
        "memory_configured_bytes": total,
        "capacity_bytes_by_backend": {"dram": total},
        "memory_usage_ratio": used / total if total else 0.0,
    }
    return {
        "is_healthy": healthy,
        "l1_manager": manager,
        "l1_managers": {"_default": manager},
        "l1_usage": [used, total],
        "l1_capacity_bytes_by_backend": {"dram": total},
        "l1_eviction_controller": eviction,
        "l1_eviction_controllers": {"_default": eviction},
        "eviction_controller": eviction,
        "l2_adapters": [],
        "num_l2_adapters": 0,
    }


def _watermarks(stats: Sequence[NodeStats]) -> Json:
    return {
        "trigger_watermark": min((node.policy.high_watermark for node in stats), default=1.0),
        "eviction_ratio": 0.0,
    }


def _meta(instance: GatewayInstance) -> Json:
    return {"model_name": instance.model, "world_size": instance.world_size, "dtype": instance.dtype}


def _contexts(instances: Sequence[GatewayInstance], stats: Sequence[NodeStats]) -> Json:
    """Return the registered workers by their number, and the cached models without one by their space."""
    contexts = {
        str(instance.instance): _described(
            instance.model, instance.world_size, instance.layout, instance.dtype, instance.chunk_bytes
        )
        for instance in instances
    }
    served = {(instance.model, instance.world_size) for instance in instances}
    for space in (space for node in stats for space in node.spaces):
        if space.gateway == LMCACHE and space.rank == 0 and (space.model, space.world_size) not in served:
            contexts[space.space] = _described(space.model, space.world_size, "", space.dtype, space.block_bytes)
    return contexts


def _described(model: str, world_size: int, layout: str, dtype: str, chunk_bytes: int) -> Json:
    described = {
        "layout": layout,
        "dtype": dtype,
        "chunk_bytes": chunk_bytes,
        "cache_size_per_token": chunk_bytes // DEFAULT_CHUNK_TOKENS,
    }
    return {"model_name": model, "world_size": world_size, "kv_cache_layout": described}
