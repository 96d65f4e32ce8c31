"""Fakes of vLLM's requests and KV caches, as far as the connector uses them."""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from dataplane.engines.pages import pages_of
from dataplane.engines.vllm.copies import CpuCopies
from dataplane.engines.vllm.messages import GroupLayout
from dataplane.protocol.spaces import Space

PAGE_TOKENS = 16
CHUNK_TOKENS = 64
BLOCKS = 65
TOKENS = list(range(1000, 1200))
"""Three whole chunks and eight tokens: 12 blocks of the engine and a part of one."""
CHUNKED = 192
"""Tokens of the whole chunks."""
SOURCE, TARGET = list(range(1, 14)), list(range(40, 27, -1))
"""Blocks for TOKENS."""


@dataclass
class Request:
    """A request. The test sets `num_computed_tokens`."""

    request_id: str
    all_token_ids: list[int]
    cache_salt: str | None = None
    num_computed_tokens: int = 0
    num_prompt_tokens: int = 0
    lora_request: Any = None
    mm_features: list[Any] = field(default_factory=list)
    prompt_embeds: Any = None
    prompt_is_token_ids: list[bool] | None = None
    pooling_params: Any = None
    kv_transfer_params: Any = None
    session_id: Any = None
    kv_hints: Any = None
    resumable: bool = False
    skip_reading_prefix_cache: bool = False
    trace_headers: Any = None

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_prompt_tokens or len(self.all_token_ids)

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


def vllm_options(defaults: dict[str, Any], values: dict[str, Any]) -> Any:
    """Return a part of vLLM's configuration. Options that are not in `defaults` are None by default; vLLM derives those
    of `hf_`."""
    fields = [
        (name, Any, field(default=defaults.get(name), init=name not in ("hf_config", "hf_text_config")))
        for name in defaults | values
    ]
    part = make_dataclass("Part", fields)()
    for name, value in values.items():
        setattr(part, name, value)
    return part


def image(contents: str, offset: int, length: int, **fields: Any) -> Any:
    """Return a multimodal item at a position of the prompt, which vLLM identifies by a digest of its contents."""
    found = {"identifier": sha256(contents.encode()).hexdigest(), "modality": "image", **fields}
    return SimpleNamespace(mm_position=SimpleNamespace(offset=offset, length=length), **found)


@dataclass
class Cache:
    """A KV cache of two layers, with the copies that a worker makes of it."""

    tensors: list[torch.Tensor]
    copies: CpuCopies

    def fill(self, blocks: list[int], seed: int) -> None:
        """Write bytes that depend on the seed and the position of a block."""
        for at, block in enumerate(blocks):
            chance = np.random.default_rng([seed, at])
            for tensor in self.tensors:
                values = torch.from_numpy(chance.integers(-9, 9, tuple(tensor.shape[1:])).astype("f4"))
                tensor[block] = values.to(tensor.dtype)

    def read(self, blocks: list[int]) -> list[list[torch.Tensor]]:
        return [[tensor[block].clone() for tensor in self.tensors] for block in blocks]


def cache(number: int = 0, rank: int = 0, world_size: int = 1) -> Cache:
    """Return a cache whose bytes are zero."""
    tensors = [torch.zeros(BLOCKS, 2, PAGE_TOKENS, 8, dtype=torch.bfloat16) for _ in range(2)]
    pages = pages_of(tensors, tokens_per_block=PAGE_TOKENS, chunk_tokens=CHUNK_TOKENS)
    space = Space(
        "m", kv_group=number, rank=rank, world_size=world_size, block_bytes=pages.chunk_bytes, block_tokens=CHUNK_TOKENS
    )
    return Cache(tensors, CpuCopies(pages, GroupLayout(space, PAGE_TOKENS)))
