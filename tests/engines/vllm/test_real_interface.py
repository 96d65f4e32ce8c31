"""vLLM's connector interface: a new method fails a test, and no error of the connector reaches the engine."""

import json
import os
import subprocess

import pytest

from benchmarks.peers.environment import CONNECTOR, NEXT_VLLM, VLLM_RELEASES, Peer, python
from tests.engines.vllm.engine import REPOSITORY

METHODS = {
    "bind_connector_metadata",
    "bind_gpu_block_pool",
    "build_connector_meta",
    "build_connector_worker_meta",
    "build_kv_connector_stats",
    "build_prom_metrics",
    "clear_connector_metadata",
    "get_block_ids_with_load_errors",
    "get_finished",
    "get_finished_count",
    "get_handshake_metadata",
    "get_kv_connector_kv_cache_events",
    "get_kv_connector_stats",
    "get_num_new_matched_tokens",
    "get_required_kvcache_layout",
    "handle_preemptions",
    "has_connector_metadata",
    "has_pending_push_work",
    "on_new_request",
    "register_kv_caches",
    "request_finished",
    "requires_kv_delivery",
    "requires_piecewise_for_cudagraph",
    "reset_cache",
    "role",
    "save_kv_layer",
    "set_host_xfer_buffer_ops",
    "set_xfer_handshake_metadata",
    "set_xfer_handshake_metadata_pp_aware",
    "shutdown",
    "start_load_kv",
    "take_events",
    "update_connector_output",
    "update_state_after_alloc",
    "wait_for_layer_load",
    "wait_for_save",
}
"""Methods in all releases. The connector defines each of them, or the base class's method is right for it."""
REMOVED = {"0.29": {"prefer_cross_layer_blocks", "register_cross_layers_kv_cache"}}
"""Methods that a release has removed. The base class's methods were right for the connector."""
ADDED = {
    "0.28": {"supports_divergent_local_hybrid_hits"},
    "0.30": {
        "bind_kv_cache_manager",
        "finish_forward",
        "get_transfer_results",
        "has_pending_block_frees",
        "register_finished_partial_tail",
        "reset_capture_state",
    },
    "0.31": {"get_mem_pool_context"},
    "0.32": {"get_external_cache_hit_sources", "get_loaded_kv_cache_group_ids"},
    "0.33": {"restore_kv_caches", "supports_sleep_mode", "unregister_kv_caches"},
}
"""Methods by the release that has added them."""

FIELDS = {
    "LoRARequest": ["lora_name", "lora_int_id", "lora_path", "base_model_name", "load_inplace", "is_3d_lora_weight"],
    "PoolingParams": [
        "use_activation", "dimensions", "step_tag_id", "returned_token_ids", "task", "requires_token_ids",
        "skip_reading_prefix_cache", "late_interaction_params", "extra_kwargs", "output_kind", "late_chunking_params",
    ],
    "Request": [
        "request_id", "prompt_token_ids", "sampling_params", "pooling_params", "client_index", "arrival_time",
        "prompt_embeds", "prompt_is_token_ids", "mm_features", "lora_request", "cache_salt", "priority",
        "trace_headers", "block_hasher", "resumable", "session_id", "reasoning_ended", "reasoning_parser_kwargs",
        "abort_immediately", "kv_hints",
    ],
}  # fmt: skip
"""What vLLM computes a request from. Keys have each of these that changes KV."""
FIELDS_ADDED = {"0.28": {"session_id"}, "0.31": {"kv_hints"}, "0.33": {"late_chunking_params"}}
FIELDS_REMOVED = {"0.32": {"tensorizer_config_dict"}}


def so_far(release: str, changes: dict[str, set[str]]) -> set[str]:
    """Return what a release and those before it have changed."""
    return set().union(*(names for changed, names in changes.items() if minor(changed) <= minor(release)))


def later(release: str, changes: dict[str, set[str]]) -> set[str]:
    """Return what the releases after `release` have changed."""
    return set().union(*(names for changed, names in changes.items() if minor(changed) > minor(release)))


def minor(release: str) -> int:
    return int(release.split(".")[1])


@pytest.mark.parametrize("peer", [CONNECTOR, *VLLM_RELEASES.values(), NEXT_VLLM], ids=lambda peer: peer.name)
def test_every_method_of_the_interface_is_known_and_errors_have_default_results(peer: Peer) -> None:
    program = python(peer)
    if program is None:
        pytest.skip(f"{peer.name} is not built: run `make engines`")
    script = REPOSITORY / "tests" / "engines" / "vllm" / "scripts" / "interface.py"
    done = subprocess.run(
        [str(program), str(script)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    release = found["release"]
    methods = METHODS | later(release, REMOVED) | so_far(release, ADDED)
    assert set(found["methods"]) == methods, "decide whether the connector must define the new method"
    for kind, fields in FIELDS.items():
        present = [name for name in found["fields"][kind] if name not in later(release, FIELDS_REMOVED)]
        expected = [name for name in fields if name not in later(release, FIELDS_ADDED)]
        assert present == expected, "decide whether the new field changes KV"
    for name, options, cached, cat, again, dog in found["images"]:
        assert cat == again
        if name and options and cached:  # vLLM hashes the name with the options, which cannot be told from contents
            assert cat == dog != ""
        elif cached and not name:
            assert cat != dog
        else:
            assert cat == dog == ""
    assert found["options"] == [[], [], ["video_pruning_method", "target_modules"]]
    assert found["chunks"] == [48] * 4, "both sides choose the same, whatever `cache_config.block_size` is"
    assert found["policy"] == "recompute"
    assert found["watched"] == ["add_lora", "collective_rpc", "reset_prefix_cache"]
    assert found["slept"] == [[["r"]] * 3, [[]] * 3], "results of the sleep are returned once, after the sleep"
    assert found["holds"] == [True, True, True, False], "the second runner zeroes blocks before it names their requests"
    answers = found["answers"]
    assert answers.pop("get_num_new_matched_tokens") == [0, False]
    assert answers.pop("build_connector_meta") == "LarderMetadata"
    assert [answers.pop(name) for name in ("request_finished", "request_finished_all_groups")] == [[False, None]] * 2
    assert answers.pop("reset_cache") is False
    assert answers.pop("has_pending_push_work") is False
    assert set(answers.values()) == {None}
    assert "the engine continues without the result of this call" in done.stderr
