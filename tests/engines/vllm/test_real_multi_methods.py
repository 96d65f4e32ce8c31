"""What vLLM's MultiConnector makes of each method of Larder's connector beside another connector."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from tests.engines.vllm.engine import PYTHON, REPOSITORY

EXPECTED: dict[str, Any] = {
    "clear_connector_metadata": [None, None],
    "errors": [0, 0, 0],
    "get_block_ids_with_load_errors": [3, 7],
    "get_external_cache_hit_sources": [32],
    "get_finished_count": None,
    "get_handshake_metadata": ["OtherHandshake"] * 2,
    "get_mem_pool_context": None,
    "get_transfer_results": [["o", "r"], ["l", "p"], ["p"]],  # "r" once, when both have ended it
    "has_pending_block_frees": True,
    "has_pending_push_work": False,
    "request_finished": [
        True,
        {
            "do_remote_prefill": True,
            "larder": {"loaded_tokens": 32, "missed_tokens": 40, "loaded_from": {"host": 32}, "reason": "too_short"},
        },
        {"r": 1},
    ],
    "requires_kv_delivery": [True, False],
    "reset_cache": [True, False],
    "set_xfer_handshake_metadata": 2,
    "supports_divergent_local_hybrid_hits": False,
    "take_events": ["event"],
    "update_connector_output": [2, 2],
    "update_state_after_alloc": [1, 32],
}
"""Result of each method in both orders."""
WAITS = [[None, False], [32, False]]
"""`get_num_new_matched_tokens` before and after the workers have reported their groups."""
ELSEWHERE = {
    "bind_connector_metadata", "build_connector_worker_meta", "handle_preemptions", "start_load_kv", "wait_for_save",
    "set_xfer_handshake_metadata_pp_aware", "shutdown",
    "build_kv_connector_stats", "build_prom_metrics", "get_kv_connector_stats",
    "request_finished_all_groups", "get_finished",
}  # fmt: skip
"""Methods that the script calls on the way, or that give the result of another."""
FORWARDED = {
    "all_children_support_hma", "bind_gpu_block_pool", "bind_kv_cache_manager", "build_connector_meta",
    "finish_forward", "get_loaded_kv_cache_group_ids", "get_required_kvcache_layout", "on_new_request",
    "register_finished_partial_tail", "register_kv_caches", "requires_piecewise_for_cudagraph", "reset_capture_state",
    "save_kv_layer", "set_host_xfer_buffer_ops", "sub_connectors", "wait_for_layer_load",
}  # fmt: skip
"""Methods that MultiConnector passes on as they are; test_real_multi_connector.py runs them."""


@pytest.fixture(scope="module")
def found(plugins: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [str(PYTHON), str(REPOSITORY / "tests" / "engines" / "vllm" / "scripts" / "multi_connector.py")],
        env={**os.environ, **plugins},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_every_method_of_multi_connector_is_known(found: dict[str, Any]) -> None:
    known = {*EXPECTED, *ELSEWHERE, *FORWARDED, "get_num_new_matched_tokens"} - {"errors"}
    assert set(found["methods"]) == known, "decide what Larder must do under the new method"


@pytest.mark.parametrize("larder_first", [True, False])
@pytest.mark.parametrize("method", EXPECTED)
def test_a_method_gives_both_connectors_their_part(found: dict[str, Any], method: str, larder_first: bool) -> None:
    assert found["orders"][0 if larder_first else 1][method] == EXPECTED[method]


@pytest.mark.parametrize("larder_first", [True, False])
def test_a_request_waits_until_larder_knows_its_workers(found: dict[str, Any], larder_first: bool) -> None:
    assert found["orders"][0 if larder_first else 1]["get_num_new_matched_tokens"] == WAITS


def test_the_api_server_reads_larders_statistics_by_name(found: dict[str, Any]) -> None:
    assert found["statistics"] == {"class": True, "reduced": {"LarderConnector": {"lookups": 3.0}}, "metric": 2.0}


def test_a_second_connector_of_larder_ends_the_engine_when_it_starts(found: dict[str, Any]) -> None:
    """vLLM would end with the first response in which both report."""
    assert "expected one LarderConnector, got a second one in a MultiConnector" in found["second"]


def test_adapters_are_known_in_nested_multi_connectors(found: dict[str, Any]) -> None:
    assert found["nested"] == ["a"]
