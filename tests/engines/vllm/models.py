"""Tiny models without weights, for which vLLM creates random weights, and adapters for one of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from struct import pack
from types import SimpleNamespace
from typing import Any

import numpy as np

HYBRID = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "sliding_window": 256,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    "query_pre_attn_scalar": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "hidden_activation": "gelu_pytorch_tanh",
}
"""Layers with a window of 256 tokens beside layers without one: two KV-cache groups."""

_SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
STATEFUL = {
    "gdn": {
        **_SMALL,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "mlp_only_layers": [0, 1, 2],
        "head_dim": 64,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    },
    "mamba2": {
        **_SMALL,
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "shared_intermediate_size": 512,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "mamba_n_heads": 8,
        "mamba_d_head": 64,
        "mamba_d_state": 32,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 64,
        "position_embedding_type": "rope",
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
    },
    "short_conv": {
        **_SMALL,
        "architectures": ["Lfm2ForCausalLM"],
        "model_type": "lfm2",
        "block_auto_adjust_ff_dim": False,
        "block_dim": 256,
        "conv_dim": 256,
        "layer_types": ["conv", "full_attention", "conv", "full_attention"],
    },
}
"""Models whose layers with recurrent state stand beside attention."""


def write_hybrid(folder: Path, config: Mapping[str, object] = HYBRID) -> Path:
    """Write a hybrid model into the folder, and return the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_adapter(folder: Path, seed: int) -> Path:
    """Write a LoRA adapter for the model of `benchmarks.peers.vllm_model` into the folder, and return the folder."""
    chance = np.random.default_rng(seed)
    header: dict[str, object] = {}
    content = b""
    for layer in range(4):
        for name, size in (("q_proj", 256), ("v_proj", 128)):
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            for part, shape in (("lora_A", (8, 256)), ("lora_B", (size, 8))):
                data = chance.standard_normal(shape).astype("<f4").tobytes()
                offsets = [len(content), len(content) + len(data)]
                header[f"{at}.{part}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
                content += data
    described = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(pack("<Q", len(described)) + described + content)
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 160, "target_modules": ["q_proj", "v_proj"]})
    )
    return folder


def lora(path: Path | str, name: str = "a", number: int = 1, **fields: Any) -> Any:
    """Return vLLM's request for an adapter."""
    found = {"load_inplace": False, "is_3d_lora_weight": False, "base_model_name": None, **fields}
    return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=str(path), **found)
