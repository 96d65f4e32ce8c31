"""A small model without weights, which vLLM makes up: the same ones in every process of one version."""

import json
from pathlib import Path

FULL_CHUNKS = 1024
"""Tokens in whole chunks of the prompt of 1,200 tokens that `generate` asks with."""
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
}


def write_model(folder: Path, **shape: int) -> Path:
    """The folder, with the model in it. `shape` replaces fields of `MODEL`."""
    (folder / "config.json").write_text(json.dumps(MODEL | shape))
    return folder
