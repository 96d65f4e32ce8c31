"""Folders with models whose weights are random numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from struct import pack

import numpy as np

SMALL = {"embed": (64, 32), "layers.0.q": (32, 32), "layers.0.k": (16, 32)}
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "rope_theta": 10000.0}


def write_weights(path: Path, shapes: Mapping[str, tuple[int, ...]] = SMALL, seed: int = 1) -> None:
    """Write random bfloat16 tensors in the format safetensors. A tensor's numbers depend on the seed and its name."""
    header: dict[str, object] = {}
    content = []
    end = 0
    for name, shape in shapes.items():
        chance = np.random.default_rng([seed, *name.encode()])
        data = ((chance.standard_normal(shape) * 0.05).astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + len(data)]}
        content.append(data)
        end += len(data)
    described = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(pack("<Q", len(described)) + described + b"".join(content))


def write_folder(folder: Path, seed: int = 1, files: int = 1, **config: object) -> Path:
    """Write a model of small weight files into a folder, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    for at in range(files):
        write_weights(
            folder / f"model-{at}.safetensors", {f"{at}.{name}": shape for name, shape in SMALL.items()}, seed
        )
    return folder


def llama_shapes(config: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Llama model with this configuration."""
    hidden, inner, words = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (words, hidden),
        "lm_head.weight": (words, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        shapes |= {f"{at}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (hidden, hidden) for name in "qo"}
        shapes |= {f"{at}.self_attn.{name}_proj.weight": (keys, hidden) for name in "kv"}
        shapes |= {f"{at}.mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        shapes[f"{at}.mlp.down_proj.weight"] = (hidden, inner)
    return shapes | {"model.norm.weight": (hidden,)}
