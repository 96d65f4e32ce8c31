"""Spaces of KV caches: equal only if bytes are interchangeable. Tests use fakes of vLLM's configuration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dataplane.engines.vllm.layouts import CacheRefused, ModelIdentity, copies_of
from dataplane.protocol.spaces import Space
from tests.engines.vllm.fakes import BLOCKS, CHUNK_TOKENS, PAGE_TOKENS

LAYERS = ["model.layers.8.attn", "model.layers.9.attn"]


def spec(kind: str, *bases: type) -> Any:
    made = type(kind, bases, {})()
    made.block_size = PAGE_TOKENS
    return made


def space(layers: list[str] = LAYERS, kind: Any = None, others: dict[str, Any] | None = None, **cache: object) -> Space:
    """Return the space of a worker whose only KV-cache group has these layers, some with `others` as tensors. `cache`:
    options of its cache."""
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=1),
        model_config=SimpleNamespace(dtype=torch.bfloat16),
        cache_config=SimpleNamespace(**{"cache_dtype": "auto", **cache}),
    )
    group = SimpleNamespace(kv_cache_spec=kind or spec("FullAttentionSpec"), layer_names=layers)
    caches = SimpleNamespace(kv_cache_groups=[group], num_blocks=BLOCKS, kv_cache_layout="LBHNC")
    tensors = {name: torch.zeros(BLOCKS, 2, PAGE_TOKENS, 8, dtype=torch.bfloat16) for name in layers}
    tensors.update(others or {})
    (found,) = copies_of(config, caches, tensors, rank=0, identity=ModelIdentity("m", "1"), chunk_tokens=CHUNK_TOKENS)
    return found.layout.space


def test_other_layers_of_the_same_shape_are_another_space() -> None:
    assert space() == space()
    others = [
        ["model.layers.10.attn", "model.layers.11.attn"],
        ["model.layers.8.attn", "draft.layers.0.attn"],
        LAYERS[::-1],
    ]
    assert len({space(each).layout for each in [LAYERS, *others]}) == 4


@pytest.mark.parametrize("kind", ["CircularBufferSpec", "RSWASpec", "HiddenStateCacheSpec", "MambaSpec"])
def test_caches_without_a_block_for_each_run_of_tokens_are_refused(kind: str) -> None:
    attention = type("AttentionSpec", (), {})
    with pytest.raises(CacheRefused, match=f"group 0 has the unsupported kind {kind}"):
        space(kind=spec(kind, attention))


def test_layers_of_a_group_on_several_devices_are_refused() -> None:
    elsewhere = SimpleNamespace(device=torch.device("cuda:1"), data_ptr=lambda: 1)
    with pytest.raises(CacheRefused, match="on several devices: cpu, cuda:1"):
        space(others={LAYERS[1]: elsewhere})


def test_scales_that_each_process_computes_are_refused() -> None:
    assert space(calculate_kv_scales=True) == space(), "without fp8, there are none"
    assert space(cache_dtype="fp8", calculate_kv_scales=False) == space(cache_dtype="fp8")
    with pytest.raises(CacheRefused, match="each process has its own scales"):
        space(cache_dtype="fp8", calculate_kv_scales=True)
