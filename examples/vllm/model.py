"""A tiny model with random weights and a tokenizer of one token per word: `w3` to `w4095`. Nothing is downloaded."""

import json
import random
from pathlib import Path
from typing import Any

VOCABULARY = ["<unk>", "<s>", "</s>", *(f"w{number}" for number in range(3, 4096))]
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": len(VOCABULARY),
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
}
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "WhitespaceSplit"},
    "post_processor": None,
    "decoder": None,
    "model": {
        "type": "WordLevel",
        "vocab": {word: number for number, word in enumerate(VOCABULARY)},
        "unk_token": "<unk>",
    },
}
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
}


def write_model(folder: Path) -> Path:
    """Write the model into a new folder, and return the folder. vLLM creates random weights (`--load-format dummy`)."""
    folder.mkdir()
    for name, content in (
        ("config.json", CONFIG),
        ("tokenizer.json", TOKENIZER),
        ("tokenizer_config.json", TOKENIZER_CONFIG),
    ):
        (folder / name).write_text(json.dumps(content))
    return folder


def words(count: int, seed: int) -> str:
    """Return a text of `count` tokens that depends on the seed alone."""
    return " ".join(random.Random(seed).choices(VOCABULARY[3:], k=count))
