"""`larder size`: bytes of a token, from the configurations of models."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from app.cli import larder

LLAMA = {
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK = {
    "num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "dtype": "bfloat16",
}  # fmt: skip
MIXED = {**LLAMA, "layer_types": ["linear_attention"] * 24 + ["full_attention"] * 6 + ["sliding_attention"] * 2}


def run(folder: Path, config: Any, *arguments: str) -> Result:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    return CliRunner().invoke(larder, ["size", str(folder), *arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("config", "arguments", "token_bytes", "rank_token_bytes"),
    [
        (LLAMA, (), 131072, 131072),
        (LLAMA, ("--dtype", "fp8"), 65536, 65536),
        (LLAMA, ("--tensor-parallel", "4"), 131072, 32768),
        (LLAMA, ("--tensor-parallel", "16"), 262144, 16384),
        ({**LLAMA, "head_dim": 64}, (), 65536, 65536),
        ({**LLAMA, "num_key_value_heads": None}, (), 4 * 131072, 4 * 131072),
        ({"text_config": LLAMA, "torch_dtype": "float32"}, ("--dtype", "float32"), 262144, 262144),
        (DEEPSEEK, ("--tensor-parallel", "8"), 61 * 576 * 2, 61 * 576 * 2),
        (MIXED, (), 131072 // 4, 131072 // 4),
        ({**LLAMA, "full_attention_interval": 4}, (), 131072 // 4, 131072 // 4),
        ({**LLAMA, "hybrid_override_pattern": "M-M*-M*"}, (), 131072 // 16, 131072 // 16),
        ({**LLAMA, "num_kv_shared_layers": 16}, (), 131072 // 2, 131072 // 2),
    ],
)
def test_a_token_takes_the_bytes_of_its_layers(
    tmp_path: Path, config: Any, arguments: tuple[str, ...], token_bytes: int, rank_token_bytes: int
) -> None:
    done = run(tmp_path, config, *arguments, "-o", "json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["token_bytes"], found["rank_token_bytes"]) == (token_bytes, rank_token_bytes)


def test_it_is_a_few_lines_and_shows_the_omitted_counts(tmp_path: Path) -> None:
    assert run(tmp_path, MIXED, "--pool", "64GiB", "--tensor-parallel", "2").output.splitlines() == [
        "8 layers, 8 heads of keys and values of 128, bfloat16",
        "token: 32 KiB (16 KiB on each of 2 ranks)",
        "block of 256 tokens: 8 MiB",
        "1 GiB: 32,768 tokens",
        "pool of 64GiB: 2,097,152 tokens",
        "not counted: the states of 24 layers that keep no keys and values",
    ]


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ("{", (), "not JSON"),
        ("[]", (), "expected an object"),
        ({}, (), "num_hidden_layers: expected a number of 1 to 16,777,216, got None"),
        ({**LLAMA, "num_hidden_layers": -1}, (), "num_hidden_layers: expected"),
        ({**LLAMA, "num_key_value_heads": "8"}, (), "num_key_value_heads: expected"),
        ({**LLAMA, "torch_dtype": "int4"}, (), "dtype: expected one of float32, bfloat16, float16, fp8, got 'int4'"),
        (LLAMA, ("--pool", "much"), "--pool: "),
        (LLAMA, ("--tensor-parallel", "0"), "0 is not in the range"),
    ],
)
def test_invalid_values_are_refused(tmp_path: Path, config: Any, arguments: tuple[str, ...], message: str) -> None:
    done = run(tmp_path, config, *arguments)
    assert done.exit_code in (1, 2)
    assert message in done.output


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(larder, ["size", str(tmp_path / "none.json")])
    assert (done.exit_code, "none.json: No such file or directory" in done.output) == (1, True)
