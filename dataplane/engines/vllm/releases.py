"""Differences between vLLM's releases, from 0.27 on, that the connector works around.

* 0.27 to 0.29 learn which loads have failed by block numbers alone (`NAMES_FAILED_REQUESTS`). So caches in which a
  number does not say which tokens are missing are refused: those with several groups, or with windows.
* 0.27 to 0.29 do not hand connectors the KV-cache manager. The connector follows the scheduler's outputs
  (`RequestBlocks`), and loads no hit inside a step, because it cannot remove blocks from vLLM's own cache.
* 0.27 to 0.31 have no sources of external hits (`HIT_SOURCES`).
* 0.27 and 0.28 do not name the layout of KV caches. Their spaces are named by the tensors alone.
* 0.27 to 0.32 do not tell workers of a sleep. `has_pending_push_work` ends the copies before it.

Every other module uses what all these releases have.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

    HIT_SOURCES: dict[str, Any] = {
        "host": CacheHitSource.HOST,
        "disk": CacheHitSource.DISK,
        "remote": CacheHitSource.EXTERNAL_UNSPECIFIED,
    }
    """vLLM's names of `dataplane.protocol.misses.SOURCES`. Its name for remote stores is that of unknown ones."""
except ImportError:
    HIT_SOURCES = {}

NAMES_FAILED_REQUESTS = hasattr(base, "KVConnectorTransferResults")
"""Whether the connector can report a failed load by the request's name. If not, it reports the numbers of blocks."""


def transfer_results(sent: set[str], received: set[str], failed: set[str]) -> Any:
    """Return the result of `get_transfer_results`, which only releases call that have its type."""
    return base.KVConnectorTransferResults(finished_sending=sent, finished_recving=received, failed_recving=failed)
