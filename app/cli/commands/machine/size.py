"""`larder size`: the bytes that a model's KV cache takes."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from app.cli.support.printing import show
from app.cli.support.printing.terminal import say
from app.cli.support.resources.options import Output, output_option
from dataplane.base.units import parse_size

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}
"""Bytes of a number, by type."""
NESTED = ("text_config", "llm_config", "language_config")
"""Names under which configurations of multimodal models have that of the language model."""
MAX_NUMBER = 1 << 24
ATTENTION = ("full_attention", "sliding_attention", "chunked_attention", "attention")
"""Types of layers that keep keys and values of each token."""


@dataclass(frozen=True)
class ModelSize:
    """Sizes of a model's KV cache, in bytes over all ranks unless they say otherwise."""

    layers: int
    """Layers that keep keys and values of each token."""
    other_layers: int
    """Layers that keep a state per sequence (Mamba, linear attention), which is not counted."""
    kind: str
    """Attention, in words."""
    dtype: str
    token_bytes: int
    rank_token_bytes: int
    """Bytes of a token on one rank."""


@click.command()
@click.argument("config", metavar="CONFIG", type=click.Path(path_type=Path))
@click.option("--dtype", type=click.Choice([*ITEM_BYTES]), help="Type of the KV cache; default: the model's.")
@click.option("--tensor-parallel", "ranks", type=click.IntRange(1, 1024), default=1, show_default=True, help="Ranks.")
@click.option(
    "--block-tokens", type=click.IntRange(1, 1 << 20), default=256, show_default=True, help="Tokens of a block."
)
@click.option("--pool", metavar="SIZE", help="Also show how many tokens a pool of this size, such as 64GiB, holds.")
@output_option
def size(config: Path, dtype: str | None, ranks: int, block_tokens: int, pool: str | None, output: Output) -> None:
    """Show the bytes that a token of a model takes in the KV cache.

    CONFIG is the model's config.json, as on Hugging Face, or a folder with it.
    """
    pool_bytes = None
    if pool is not None:
        try:
            pool_bytes = parse_size(pool)
        except ValueError as error:
            raise click.UsageError(f"--pool: {error}") from None
    model_size = size_of(_read(config), dtype, ranks)
    tokens = None if pool_bytes is None else pool_bytes // model_size.token_bytes
    block_bytes = model_size.token_bytes * block_tokens
    if output.data({**asdict(model_size), "block_bytes": block_bytes, "pool_tokens": tokens}):
        return
    say(f"{model_size.kind}, {model_size.dtype}")
    ranked = f" ({show.size(model_size.rank_token_bytes)} on each of {ranks} ranks)" if ranks > 1 else ""
    say(f"token: {show.size(model_size.token_bytes)}{ranked}")
    say(f"block of {block_tokens} tokens: {show.size(block_bytes)}")
    say(f"1 GiB: {(1 << 30) // model_size.token_bytes:,} tokens")
    if tokens is not None:
        say(f"pool of {pool}: {tokens:,} tokens")
    if model_size.other_layers:
        say(f"not counted: the states of {model_size.other_layers} layers that keep no keys and values")


def _read(path: Path) -> dict[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise click.ClickException(f"{file}: not JSON") from None
    if not isinstance(content, dict):
        raise click.ClickException(f"{file}: expected an object with the model's configuration")
    return content


def size_of(config: Mapping[str, Any], dtype: str | None = None, ranks: int = 1) -> ModelSize:
    """Return the size of a model from its configuration as transformers writes it. Raises ClickException."""
    text = next((config[name] for name in NESTED if isinstance(config.get(name), dict)), config)
    layer_count = _number(text, "num_hidden_layers")
    layers = _attention_layers(text, layer_count)
    if dtype is None:
        dtype = next(
            (
                str(section.get(name))
                for section in (text, config)
                for name in ("dtype", "torch_dtype")
                if section.get(name)
            ),
            "bfloat16",
        ).removeprefix("torch.")
    if dtype not in ITEM_BYTES:
        raise click.ClickException(f"dtype: expected one of {', '.join(ITEM_BYTES)}, got {dtype!r}; pass --dtype")
    if text.get("kv_lora_rank"):
        numbers = _number(text, "kv_lora_rank") + _number(text, "qk_rope_head_dim", 0)
        rank_numbers = numbers
        kind = f"latent attention of {numbers} numbers"
        copies = 1  # each rank has the same
    else:
        query_heads = _number(text, "num_attention_heads")
        heads = _number(text, "num_key_value_heads", query_heads)
        width = _number(text, "head_dim", 0) or _number(text, "hidden_size") // query_heads
        rank_numbers = 2 * -(-heads // ranks) * width
        kind = f"{heads} heads of keys and values of {width}"
        copies = ranks
    rank_bytes = layers * rank_numbers * ITEM_BYTES[dtype]
    return ModelSize(
        layers, layer_count - layers, f"{layers} layers, {kind}", dtype, max(1, rank_bytes * copies), max(1, rank_bytes)
    )


def _attention_layers(text: Mapping[str, Any], layer_count: int) -> int:
    """Return the number of layers that keep keys and values of each token."""
    types = text.get("layer_types") or text.get("layers_block_type")
    pattern, interval = text.get("hybrid_override_pattern"), text.get("full_attention_interval")
    shared = _number(text, "num_kv_shared_layers", 0)
    if isinstance(types, list) and types:
        return max(0, sum(layer_type in ATTENTION for layer_type in types) - shared)
    if isinstance(pattern, str) and pattern:
        return pattern.count("*")
    if isinstance(interval, int) and interval > 0:
        return layer_count // interval
    return max(0, layer_count - shared)


def _number(text: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = text.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_NUMBER:
        if value == 0 and default is not None:
            return default
        raise click.ClickException(f"{name}: expected a number of 1 to {MAX_NUMBER:,}, got {str(value)[:80]}")
    return value
