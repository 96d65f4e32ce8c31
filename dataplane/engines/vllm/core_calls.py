"""Calls of vLLM's engine core that its connector interface does not report: an adapter is added, weights may change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any
from weakref import WeakSet

from dataplane.engines.identity import is_listed, listed
from dataplane.engines.vllm.adapters import files_of

HARMLESS = listed(
    {
        "they only answer": (
            "check_health check_preloaded_libs compute_weight_checksums determine_available_memory "
            "get_cache_block_size_bytes get_compilation_match_table get_encoder_timing_stats get_kv_cache_spec "
            "get_kv_connector_handshake_metadata get_model_inspection get_supported_kv_cache_layouts "
            "get_supported_tasks list_loras sleep_mode_backend supports_draft_weight_updates vocab_size wait_for_comm"
        ),
        "they keep copies, profiles or checks": (
            "annotate_profile profile save_sharded_state save_tensorized_model synchronize_device take_draft_token_ids"
        ),
        "they change settings, caches or connections": (
            "update_max_model_len update_environment_variables reset_encoder_cache reset_mm_cache set_kv_cache_layout "
            "init_weight_transfer_engine shutdown_weight_transfer_engine remove_lora pin_lora execute_dummy_batch "
            "release_late_interaction_query_cache"
        ),
    }
)
"""Calls to all workers (`collective_rpc`) after which weights are as before. After any other, for example
`reload_weights`, `update_weights`, `apply_model` or a method of a worker extension, they may be others."""
_WATCHED = "reports_to_larder"

_log = logging.getLogger("larder.vllm")


def may_change_weights(method: object) -> bool:
    """Return whether a call to all workers may change weights. `method`: its name, or a function that vLLM calls with
    each worker."""
    return not isinstance(method, str) or not is_listed(method, HARMLESS)


def watch(core_class: Any, connector_class: type) -> None:
    """Make the engine core report to its connectors of `connector_class`: to `adapter_loaded` which files an adapter
    was made of, which may have changed by the first request, and to `reset_cache` that weights may have changed. Until
    the engine's own prefix cache is empty, it may save blocks of the earlier weights: `reset_cache` is called again
    then."""
    stale: WeakSet[Any] = WeakSet()

    def connectors(core: Any) -> Iterator[Any]:
        scheduler = getattr(core, "scheduler", None)  # missing while the engine starts
        return of_class(None if scheduler is None else scheduler.get_kv_connector())

    def of_class(connector: Any) -> Iterator[Any]:
        if isinstance(connector, connector_class):
            yield connector
        for child in getattr(connector, "_connectors", ()):  # of a MultiConnector, which may have another one
            yield from of_class(child)

    def add_lora(add: Callable[..., bool], core: Any, lora_request: Any) -> bool:
        before = files_of(lora_request.lora_path)
        added = add(core, lora_request)
        for connector in connectors(core):
            connector.adapter_loaded(lora_request, before)
        return added

    def collective_rpc(call: Callable[..., Any], core: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(core, method, *args, **kwargs)
        finally:  # also after an error, for which some weights may be others already
            if may_change_weights(method):
                for connector in connectors(core):
                    stale.add(core)
                    _log.info("%.80s may have changed weights: what is stored so far is a miss for this engine", method)
                    connector.reset_cache()

    def reset_prefix_cache(reset: Callable[..., bool], core: Any, *args: Any, **kwargs: Any) -> bool:
        done = reset(core, *args, **kwargs)
        if done and core in stale:
            stale.discard(core)
            for connector in connectors(core):
                connector.reset_cache()
        return done

    for report in (add_lora, collective_rpc, reset_prefix_cache):
        original = getattr(core_class, report.__name__, None)
        if original is not None and not hasattr(original, _WATCHED):
            reporting = _reporting(original, report)
            setattr(reporting, _WATCHED, True)
            setattr(core_class, report.__name__, reporting)


def _reporting(original: Callable[..., Any], report: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return report(original, *args, **kwargs)

    return call
