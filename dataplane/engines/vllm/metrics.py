"""Statistics of the connector for vLLM's log and vLLM's `/metrics`."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

COUNTERS = {
    "lookups": "Requests that were looked up in Larder and then scheduled. Requests that read no cache, such as those "
    "with prompt_logprobs, do not count.",
    "lookup_tokens": "Tokens of the requests looked up, without those in the engine's own cache.",
    "hit_tokens": "Tokens of lookup_tokens that were found in Larder and are loaded.",
    "lookup_seconds": "Time spent on look-ups, including the hashing of tokens.",
    "recomputed_tokens": "Tokens that were found and are not loaded, as a rule because computing them is faster.",
    "tier_waits": "Requests that waited for blocks from tiers behind memory, or for blocks that an engine was writing.",
    "tier_waits_given_up": "Waits of tier_waits that ended before all blocks were in memory.",
    "tier_wait_seconds": "Time of the waits of tier_waits.",
    "tier_tokens": "Tokens that came into memory during waits.",
    "loaded_tokens": "Tokens loaded from Larder.",
    "loaded_bytes": "Bytes copied from Larder into the engine's blocks.",
    "load_seconds": "Time that loads took on the connector's own thread.",
    "step_loaded_tokens": "Tokens of loaded_tokens that were copied inside the step that used them.",
    "step_load_seconds": "Time that steps waited for the copies of step_loaded_tokens.",
    "lost_loads": "Loads that ended early because a block was no longer cached or failed its checksum.",
    "cancelled_loads": "Loads under way that ended because their request was aborted or the cache was reset.",
    "late_loads": "Loads that ended early because they took longer than larder.load_timeout_s, larder.step_load_s, or "
    "the computation of their tokens.",
    "failed_loads": "Loads that failed in part or entirely; the missing tokens were recomputed.",
    "saved_blocks": "Blocks stored in Larder.",
    "saved_bytes": "Bytes stored in Larder.",
    "save_seconds": "Time that saves took on the connector's own thread.",
    "dropped_saves": "Saves dropped because of larder.pending_save_bytes, or because an earlier copy hangs.",
    "unknown_weights": "Workers that do without Larder because the weights that they have loaded cannot be identified.",
    "ignored_hints": "Options larder.* of requests that were ignored: unknown or wrong, or the node takes no hints.",
    "errors": "Errors that the connector caught and logged; the engine continued.",
}
"""Help text of each counter, by name."""
BY_REASON = {
    "refused_blocks": "Blocks that Larder refused to store, by `reason`: an error code.",
    "unkeyed_requests": "Requests that were neither loaded nor saved, by `reason`: `salt` (not a tenant name), "
    "`adapter` (what vLLM loaded is not known), `media` (identified by a name), `pooling` (extra options).",
}
"""Help text of each counter with the label `reason`, which is `<name>:<reason>` in counts."""


class LarderStats(KVConnectorStats):  # type: ignore[misc]
    """Counts of an interval."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        return {name: round(value, 4) for name, value in sorted(self.data.items())}

    def is_empty(self) -> bool:
        return not self.data


class LarderPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """The counters as `vllm:larder_*_total`."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._counter_cls(name=f"vllm:larder_{name}", documentation=text, labelnames=labelnames)
            for name, text in COUNTERS.items()
        }
        self._by_reason = {
            name: self._counter_cls(name=f"vllm:larder_{name}", documentation=text, labelnames=[*labelnames, "reason"])
            for name, text in BY_REASON.items()
        }
        for values in per_engine_labelvalues.values():
            for counter in self._counters.values():
                counter.labels(*values)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        values = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            kind, _, reason = name.partition(":")
            if kind in self._by_reason:
                self._by_reason[kind].labels(*values, reason).inc(value)
            elif kind in self._counters:
                self._counters[kind].labels(*values).inc(value)
