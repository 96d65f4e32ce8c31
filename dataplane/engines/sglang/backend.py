"""SGLang's interface to storage backends of its hierarchical cache.

An error in a method of this class is logged and counts as a miss: it does not end the engine or one of its threads.
Only invalid settings end the engine, when it starts.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolName, PoolTransferResult

from dataplane.engines import weights
from dataplane.engines.guards import ErrorLog, guarded
from dataplane.engines.sglang.arguments import identity
from dataplane.engines.sglang.host_pages import HostPages, PoolRefused
from dataplane.engines.sglang.page_store import PageStore
from dataplane.engines.sglang.settings import CONTAINER, read_settings
from dataplane.protocol.barrier import UnsupportedMachine

MAX_TRANSFERS = 4096
"""Transfers between two calls of `get_stats` that are reported; the oldest are dropped first."""
GIB = 1 << 30

_log = logging.getLogger("larder.sglang")


class LarderBackend(HiCacheStorage):  # type: ignore[misc]
    """Stores pages of SGLang's host pool in Larder, and loads them."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        """Read the settings. Raise ValueError for an invalid one, or an older SGLang. `kwargs` is not used."""
        self._config = storage_config
        self._settings = read_settings(storage_config.extra_config or {})
        if not hasattr(storage_config, "dcp_size"):
            raise ValueError("expected SGLang 0.5.23 or later")
        if storage_config.dcp_size > 1:
            raise ValueError("dcp_size: expected 1, because Larder does not support decode context parallelism")
        if not (self._settings.model or storage_config.model_name):
            raise ValueError(f"{CONTAINER}.larder.model: expected a name, because SGLang has none for the model")
        self.errors = ErrorLog(_log)
        self._store: PageStore | None = None
        self._weight_version = ""
        self._lock = threading.RLock()
        """Held while a call chooses its namespace, and while that changes."""
        self._updates = 0
        """Changes of SGLang's weight version."""
        self._threads: dict[threading.Thread, int] = {}
        """SGLang's threads that are alive, with `_updates` at their first call. A flush of SGLang's caches ends its
        threads, and then starts others."""
        self._prefixes_missed = False
        """Whether SGLang has stored pages without naming those before them. This is logged once."""
        self._pages: HostPages | None = None
        self._loads: deque[tuple[int, float]] = deque(maxlen=MAX_TRANSFERS)
        """Pages and seconds of loads since the last call of `get_stats`, if SGLang collects metrics."""
        self._saves: deque[tuple[int, float]] = deque(maxlen=MAX_TRANSFERS)

    # ---- pools

    @guarded()
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Attach to the data plane with the space of this pool's pages."""
        super().register_mem_pool_host(mem_pool_host)
        self.close()
        try:
            self._pages = HostPages(mem_pool_host)
            self._weight_version = _launched_version()
            name, revision = identity(
                str(self._config.model_name or ""),
                vouched=bool(self._settings.model),
                has_draft_layers=self._pages.has_draft_layers,
            )
            config = replace(self._config, model_name=name)
            space = self._pages.space(config, self._settings, revision)
            self._store = PageStore(
                self._settings, space, self._pages, writes=self._config.is_storage_writer, errors=self.errors
            )
        except weights.WeightsUnknown as error:
            self._refuse(f"{error}; or name the weights with larder.model")
        except (PoolRefused, UnsupportedMachine, ValueError) as error:
            self._refuse(str(error))

    @guarded()
    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Refuse pools beside that of the KV cache, for example those of Mamba layers and of sliding windows."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        if host_pool_name != PoolName.KV:
            name = str(getattr(host_pool_name, "value", host_pool_name))
            self._refuse(f"the model has the additional host pool {name!r}")

    def _refuse(self, why: str) -> None:
        """Do without Larder: everything misses from now on."""
        _log.error("Larder is not used: %s", why)
        self.close()

    # ---- pages

    def _current(self) -> PageStore | None:
        """Return the store, after a change of SGLang's weight version without the pages of the earlier weights. Two
        engines may give the same version to other weights, so they share no pages then."""
        with self._lock:
            version = _weight_version()
            if version != self._weight_version:
                self.clear()
                self._weight_version = version
                self._updates += 1
            self._threads = {thread: update for thread, update in self._threads.items() if thread.is_alive()}
            self._threads.setdefault(threading.current_thread(), self._updates)
            return self._store

    def _is_flushed(self) -> bool:
        """Return whether SGLang's caches were flushed after the last change of the weight version. Until then, they
        have pages of the earlier weights, and a backup of these may be running. The caller holds the lock."""
        return all(update == self._updates for update in self._threads.values())

    @guarded(lambda: 0)
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Return how many leading pages are cached."""
        store = self._current()
        return store.exists(keys) if store is not None and keys else 0

    def exists(self, key: str) -> bool:
        """Return whether a page is cached."""
        return bool(self.batch_exists([key]))

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Load pages into the host pool. Return for each page whether it was loaded."""
        return self._load(keys, host_indices) or [False] * len(keys)

    @guarded()
    def _load(self, keys: list[str], host_indices: Any) -> list[bool] | None:
        store = self._current()
        if store is None or not keys:
            return None
        started = time.perf_counter()
        loaded = store.load(keys, host_indices)
        self._note(self._loads, sum(loaded), started)
        return loaded

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Store pages of the host pool. Return for each page whether it is cached now, or is being stored by another
        engine."""
        return self._save(keys, host_indices, getattr(extra_info, "prefix_keys", None)) or [False] * len(keys)

    @guarded()
    def _save(self, keys: list[str], host_indices: Any, before: list[str] | None) -> list[bool] | None:
        with self._lock:
            store = self._current()
            if store is None or not keys:
                return None
            if not self._is_flushed():
                if self.errors.due("not flushed"):
                    _log.warning("no pages are stored: SGLang's caches were not flushed after an update of weights")
                return None
            if before is None and not self._prefixes_missed:
                self._prefixes_missed = True
                _log.warning(
                    "invalidations of prefixes may miss pages, because SGLang does not name the pages before those that"
                    " it stores: set hicache_storage_pass_prefix_keys to true in the extra config"
                )
            packed, parent = store.keys_of(keys), store.keys_of(before[-1:] if before else ())
        started = time.perf_counter()
        saved = store.save(packed, host_indices, parent)
        self._note(self._saves, sum(saved), started)
        return saved

    def _note(self, transfers: deque[tuple[int, float]], pages: int, started: float) -> None:
        if self._config.enable_storage_metrics and pages:
            transfers.append((pages, time.perf_counter() - started))

    # ---- several pools: a model that needs them is refused

    @guarded(PoolTransferResult.empty)
    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """Return a miss if pages of several pools are asked for."""
        if pool_transfers:
            return PoolTransferResult.empty()
        return PoolTransferResult(self.batch_exists(keys, extra_info), {})

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        """Load nothing."""
        return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        """Store nothing."""
        return {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}

    # ---- SGLang's interface without `interface_v1`, which the settings require

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Load nothing: pages are loaded by `batch_get_v1`."""
        return None

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> Any:
        """Load nothing."""
        return [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Store nothing: pages are stored by `batch_set_v1`."""
        return False

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Store nothing."""
        return False

    # ---- operation

    @guarded()
    def clear(self) -> None:
        """Make everything stored so far a miss for this engine. Other engines keep it.

        Each rank chooses a new namespace for itself. Ranks that share pages would then miss each other's, so they do
        without Larder until the engine starts again.
        """
        with self._lock:
            if self._store is None:
                return
            if self._config.is_mla_model and self._config.tp_size > 1:
                self._refuse("the storage was cleared, and the ranks of this engine share their pages")
            else:
                self._store.clear()

    @guarded()
    def get_stats(self) -> Any:
        """Return the pages and bandwidths (GiB/s) of the transfers since the last call, for SGLang's metrics."""
        if not self._config.enable_storage_metrics or self._pages is None:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        stats = StorageMetrics()
        for transfers, pages, bandwidths in (
            (self._loads, stats.prefetch_pgs, stats.prefetch_bandwidth),
            (self._saves, stats.backup_pgs, stats.backup_bandwidth),
        ):
            while transfers:
                count, seconds = transfers.popleft()
                pages.append(count)
                bandwidths.append(count * self._pages.page_bytes / GIB / max(seconds, 1e-9))
        return stats

    @guarded()
    def close(self) -> None:
        """Disconnect. Everything misses from now on."""
        store, self._store = self._store, None
        if store is not None:
            store.close()


def _launched_version() -> str:
    """Return the version of the weights with which SGLang was started."""
    from sglang.srt.runtime_context import get_server_args

    return str(getattr(get_server_args(), "weight_version", None) or "")


def _weight_version() -> str:
    """Return the version of the weights that SGLang uses now: an update in place may name one."""
    from sglang.srt import runtime_context

    try:
        return str(runtime_context.get_serving().weight_version)
    except (AttributeError, ValueError):  # an older release, or a process without SGLang's arguments
        return _launched_version()
