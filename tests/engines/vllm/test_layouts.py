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


@pytest.mark.parametrize("kind", ["CircularBufferSpec", "RSWASpec", "HiddenStateCacheSpec"])
def test_caches_without_a_block_for_each_run_of_tokens_are_refused(kind: str) -> None:
    attention = type("AttentionSpec", (), {})
    with pytest.raises(CacheRefused, match=f"group 0 has the unsupported kind {kind}"):
        space(kind=spec(kind, attention))


def states(**fields: object) -> Any:
    """Return the spec of a group of states of 20 bytes. `fields`: others than the usual ones."""
    made = spec("MambaSpec")
    usual: dict[str, object] = {
        "block_size": PAGE_TOKENS,
        "shapes": ((2, 3), (2, 2)),
        "dtypes": (torch.bfloat16, torch.bfloat16),
        "mamba_type": "mamba2",
        "mamba_cache_mode": "align",
    }
    made.__dict__.update(usual | fields)
    return made


def hybrid(mamba: Any, padded_bytes: int = 32, speculative: Any = None, **cache: Any) -> tuple[Space, Space]:
    """Return the spaces of the states and of the attention of a worker whose first group has states."""
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=1),
        model_config=SimpleNamespace(dtype=torch.bfloat16),
        speculative_config=speculative,
        cache_config=SimpleNamespace(**{"cache_dtype": "auto", **cache}),
    )
    groups = [
        SimpleNamespace(kv_cache_spec=mamba, layer_names=["mamba"]),
        SimpleNamespace(kv_cache_spec=spec("FullAttentionSpec"), layer_names=["attn"]),
    ]
    caches = SimpleNamespace(kv_cache_groups=groups, num_blocks=BLOCKS, kv_cache_layout="LBHNC")
    tensors = {
        "mamba": torch.zeros(BLOCKS, 1, 1, padded_bytes, dtype=torch.int8),
        "attn": torch.zeros(BLOCKS, 2, PAGE_TOKENS, 8, dtype=torch.bfloat16),
    }
    found = copies_of(config, caches, tensors, rank=0, identity=ModelIdentity("m", "1"), chunk_tokens=CHUNK_TOKENS)
    assert [each.layout.page_tokens for each in found] == [CHUNK_TOKENS, PAGE_TOKENS]
    state, attention = (each.layout.space for each in found)
    return state, attention


def test_a_state_is_one_block_for_a_chunk_without_its_padding() -> None:
    state, attention = hybrid(states())
    assert (state.block_bytes, state.tail_blocks, state.block_tokens) == (20, 1, CHUNK_TOKENS)
    assert (attention.tail_blocks, attention.block_tokens) == (0, CHUNK_TOKENS)
    assert (attention.kv_group, state.kv_group) == (0, 1), "accounts of requests are of a group that has each chunk"
    assert hybrid(states(), padded_bytes=48)[0] == state


def test_other_states_are_other_spaces_of_the_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def names(*spaces: Space) -> list[str]:
        return [each.layout for each in spaces]

    usual = names(*hybrid(states()))
    others = [
        states(dtypes=(torch.bfloat16, torch.float16)),
        states(shapes=((3, 2), (2, 2))),
        states(mamba_type="gdn_attention"),
    ]
    found = [names(*hybrid(each)) for each in others]
    monkeypatch.setattr("dataplane.engines.vllm.layouts._release", lambda: "0.99.0")
    found.append(names(*hybrid(states())))
    assert names(*hybrid(states())) == found[-1]
    assert all(layout not in usual for each in found for layout in each)
    assert len({layout for each in found for layout in each}) == 2 * len(found)


@pytest.mark.parametrize(
    ("fields", "cache", "message"),
    [
        ({"mamba_cache_mode": "none"}, {}, "only with mamba_cache_mode 'align' .*, got 'none'"),
        ({"mamba_cache_mode": "all"}, {}, "only with mamba_cache_mode 'align' .*, got 'all'"),
        ({}, {"use_replayssm": True}, "use_replayssm"),
        ({"shapes": ((2, 3), (8, 8))}, {}, "states of 32 elements; expected 140 bytes"),
    ],
)
def test_states_that_vllm_does_not_keep_whole_are_refused(
    fields: dict[str, object], cache: dict[str, Any], message: str
) -> None:
    with pytest.raises(CacheRefused, match=message):
        hybrid(states(**fields), **cache)


def test_states_beside_speculative_decoding_are_refused() -> None:
    with pytest.raises(CacheRefused, match="recurrent state and speculative decoding"):
        hybrid(states(), speculative=object())


def test_layers_of_a_group_on_several_devices_are_refused() -> None:
    elsewhere = SimpleNamespace(device=torch.device("cuda:1"), data_ptr=lambda: 1)
    with pytest.raises(CacheRefused, match="on several devices: cpu, cuda:1"):
        space(others={LAYERS[1]: elsewhere})


def test_scales_that_each_process_computes_are_refused() -> None:
    assert space(calculate_kv_scales=True) == space(), "without fp8, there are none"
    assert space(cache_dtype="fp8", calculate_kv_scales=False) == space(cache_dtype="fp8")
    with pytest.raises(CacheRefused, match="each process has its own scales"):
        space(cache_dtype="fp8", calculate_kv_scales=True)
