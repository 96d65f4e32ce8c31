"""Pages of SGLang's host pool: where the bytes of a page are, and which pages of engines are interchangeable.

SGLang's pools say where a page is by `get_page_buffer_meta(indices)`: the addresses and sizes of its pieces. A page has
one piece per layer, and per key and value, in the layout `layer_first`, and one piece, or one for keys and one for
values, in the other layouts. A block in Larder is the pieces of a page, one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Protocol

import msgspec
import numpy as np

from dataplane.engines.identity import revision_of
from dataplane.engines.sglang.settings import BackendSettings
from dataplane.protocol.layout import I64
from dataplane.protocol.spaces import Space

MAX_PIECES = 1 << 16
KINDS = ("MHATokenToKVPoolHost", "AsymmetricMHATokenToKVPoolHost", "MLATokenToKVPoolHost")
"""SGLang's host pools that Larder copies. Other pools keep more than the pieces that they name, or move pages."""
LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
_SHAPE = (
    "layer_num",
    "target_layer_num",
    "start_layer",
    "end_layer",
    "head_num",
    "head_dim",
    "v_head_dim",
    "kv_lora_rank",
    "qk_rope_head_dim",
    "kv_cache_dim",
)
"""Attributes of SGLang's pools that determine the meaning of a page's bytes."""


def _head_size(pool: Any) -> int:
    """Return the elements of one head of one token; 0 if keys and values differ, or the pool has no heads."""
    size = getattr(pool, "head_dim", None)
    return size if isinstance(size, int) and getattr(pool, "v_head_dim", size) in (size, None) else 0


class PoolRefused(Exception):
    """Raised for a host pool that Larder cannot copy. The message says why."""


class PageBuffers(Protocol):
    """The part of SGLang's host pools that Larder uses."""

    page_size: int
    size: int
    layout: str
    dtype: Any

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        """Return the addresses and sizes of the pieces of pages whose tokens have these indices."""


class StorageConfig(Protocol):
    """The part of SGLang's `HiCacheStorageConfig` that Larder uses."""

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    attn_cp_rank: int
    attn_cp_size: int
    is_mla_model: bool
    model_name: str | None


class HostPages:
    """Pages of one pool."""

    def __init__(self, pool: PageBuffers) -> None:
        """Read the layout of the pool. Raise PoolRefused."""
        if type(pool).__name__ not in KINDS:
            raise PoolRefused(f"the host pool is a {type(pool).__name__}; expected one of {', '.join(KINDS)}")
        if pool.layout not in LAYOUTS:
            raise PoolRefused(f"the host pool has the layout {pool.layout}; expected one of {', '.join(LAYOUTS)}")
        self._pool = pool
        self.page_tokens = pool.page_size
        try:
            pieces = pool.get_page_buffer_meta(np.arange(self.page_tokens))[1]
        except (NotImplementedError, ValueError) as error:
            raise PoolRefused(f"the host pool does not say where its pages are: {error}") from None
        if not 1 <= len(pieces) <= MAX_PIECES or min(pieces) < 1:
            raise PoolRefused(f"the host pool has pages of {len(pieces)} pieces")
        self.sizes: I64 = np.array(pieces, np.int64)
        """Bytes of the pieces of a page."""
        self.page_bytes = int(self.sizes.sum())
        layers = getattr(pool, "layer_num", 0)
        self.has_draft_layers: bool = getattr(pool, "target_layer_num", layers) != layers
        """Whether the pages have layers of a draft model after those of the model."""

    def numbers(self, indices: Any, pages: int) -> I64:
        """Return the numbers of pages [pages] whose tokens have these indices. Raise ValueError for indices that are
        not those of whole pages of the pool."""
        tokens = np.asarray(indices.cpu() if hasattr(indices, "cpu") else indices)
        if tokens.shape != (pages * self.page_tokens,):
            raise ValueError(f"expected {pages} pages of {self.page_tokens} tokens, got {tokens.shape} indices")
        rows = tokens.reshape(pages, self.page_tokens)
        starts = rows[:, :1]
        if (
            (rows != starts + np.arange(self.page_tokens)).any()
            or (starts % self.page_tokens).any()
            or starts.min() < 0
            or starts.max() > self._pool.size - self.page_tokens
        ):
            raise ValueError("expected the indices of whole pages of the host pool")
        return (starts[:, 0] // self.page_tokens).astype(np.int64)

    def addresses(self, indices: Any, pages: int) -> I64:
        """Return the addresses of pages [pages, pieces], whose tokens have these indices. Raise ValueError as `numbers`
        does."""
        self.numbers(indices, pages)
        addresses, sizes = self._pool.get_page_buffer_meta(indices)
        if not np.array_equal(np.reshape(sizes, (pages, -1)), np.broadcast_to(self.sizes, (pages, len(self.sizes)))):
            raise ValueError("the sizes of pages have changed")
        return np.array(addresses, np.int64).reshape(pages, -1)

    def space(self, config: StorageConfig, settings: BackendSettings, revision: Sequence[str] = ()) -> Space:
        """Return the space of the pages of one rank. Ranks that hold equal bytes have the same space.

        `revision`: what distinguishes the bytes of two engines that have the same model name.
        """
        pool = self._pool
        model = settings.model or config.model_name or ""
        if not model:
            raise PoolRefused("the model has no name; set larder.model")
        shape = [
            type(pool).__name__,
            config.pp_size,
            config.attn_cp_size,
            self.sizes.tolist(),
            *((name, str(getattr(pool, name, None))) for name in _SHAPE),
        ]
        digest = sha256(msgspec.msgpack.encode(shape)).hexdigest()[:16]
        # Ranks of tensor parallelism hold equal bytes with latent attention; ranks of context parallelism never do.
        ranks, rank = (1, 0) if config.is_mla_model else (config.tp_size, config.tp_rank)
        return Space(
            model=model,
            revision=revision_of([settings.revision, *revision]),
            layout=f"sglang:{pool.layout}:{self.page_tokens}:{digest}",
            dtype=str(pool.dtype).removeprefix("torch."),
            world_size=ranks * config.attn_cp_size,
            rank=config.attn_cp_rank * ranks + rank,
            pipeline_stage=config.pp_rank,
            block_bytes=self.page_bytes,
            block_tokens=self.page_tokens,
            head_size=_head_size(pool),
        )
