"""A fake of SGLang's host pool and of the modules that the backend imports, as far as the backend uses them.

`test_real_hicache.py` compares the shape of the fake pool with SGLang's own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, fields, make_dataclass
from enum import StrEnum
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

PAGE_TOKENS = 16
LAYERS = 3
PAGES = 64
HEAD_BYTES = 2 * 8 * 2
"""Bytes of a token's keys, or of its values, in one layer: two heads of eight elements of two bytes."""
LATENT_BYTES = (32 + 8) * 2
U8 = npt.NDArray[np.uint8]
NAMESPACES = {
    "port": "serving",
    "weight_version": "serving",
    "forward_hooks": "observability",
    "mem_fraction_static": "schedule",
    "attention_backend": "exec.kernel",
    "lora_target_modules": "lora",
    "speculative_algorithm": "spec",
    "speculative_draft_model_path": "spec",
}
"""SGLang's namespaces of arguments. Those of other arguments are not in Larder's list."""
ARGUMENT_DEFAULTS = {"weight_version": "default", "load_format": "auto", "port": 30000}
"""Defaults that are not None."""


class MHATokenToKVPoolHost:
    """Keys and values of `LAYERS` layers in host memory."""

    planes = 2
    token_bytes = HEAD_BYTES

    def __init__(
        self, layout: str = "page_first", page_tokens: int = PAGE_TOKENS, pages: int = PAGES, draft_layers: int = 0
    ) -> None:
        self.layout = layout
        self.page_size = page_tokens
        self.size = pages * page_tokens
        self.dtype = "torch.bfloat16"
        self.layer_num = LAYERS
        self.target_layer_num = LAYERS - draft_layers
        self.memory: U8 = np.zeros((self.planes, LAYERS * self.size * self.token_bytes), np.uint8)

    @property
    def piece_bytes(self) -> int:
        layers = 1 if self.layout == "layer_first" else LAYERS
        return layers * self.page_size * self.token_bytes

    def _starts(self, page: int) -> list[int]:
        """Return where the pieces of a page start in each plane."""
        if self.layout == "layer_first":
            layer_bytes = self.size * self.token_bytes
            return [layer * layer_bytes + page * self.piece_bytes for layer in range(LAYERS)]
        return [page * self.piece_bytes]

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        tokens = indices.tolist()
        addresses = [
            self.memory.ctypes.data + plane * self.memory.shape[1] + start
            for first in tokens[:: self.page_size]
            for start in self._starts(first // self.page_size)
            for plane in range(self.planes)
        ]
        return addresses, [self.piece_bytes] * len(addresses)

    # ---- for tests

    def page(self, number: int) -> bytes:
        """Return the bytes of a page."""
        return b"".join(
            self.memory[plane, start : start + self.piece_bytes].tobytes()
            for start in self._starts(number)
            for plane in range(self.planes)
        )

    def fill(self, numbers: list[int], seed: int) -> None:
        """Write bytes that depend on the seed and the position of a page."""
        for at, number in enumerate(numbers):
            chance = np.random.default_rng([seed, at])
            for start in self._starts(number):
                for plane in range(self.planes):
                    self.memory[plane, start : start + self.piece_bytes] = chance.integers(
                        0, 256, self.piece_bytes, np.uint8
                    )

    def indices(self, numbers: list[int]) -> npt.NDArray[np.int64]:
        """Return the tokens' indices of pages."""
        return (np.array(numbers)[:, None] * self.page_size + np.arange(self.page_size)).reshape(-1)


class MLATokenToKVPoolHost(MHATokenToKVPoolHost):
    """One latent row for each token in each layer."""

    planes = 1
    token_bytes = LATENT_BYTES


class MambaPoolHost(MHATokenToKVPoolHost):
    """A pool of another kind."""


@dataclass
class StorageConfig:
    """The fields of SGLang's HiCacheStorageConfig that the backend reads."""

    extra_config: dict[str, Any]
    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    model_name: str | None = "m"
    dcp_size: int = 1

    @property
    def is_storage_writer(self) -> bool:
        return not self.is_mla_model or self.tp_rank == 0


class _PoolName(StrEnum):
    KV = "kv"
    MAMBA = "mamba"


class _HiCacheStorage:
    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        self.registered_pools = {**getattr(self, "registered_pools", {}), host_pool_name: host_pool}


@dataclass
class _PoolTransferResult:
    kv_hit_pages: int
    extra_pool_hit_pages: dict[str, int]

    @classmethod
    def empty(cls) -> _PoolTransferResult:
        return cls(0, {})


@dataclass
class _StorageMetrics:
    prefetch_pgs: list[int] = field(default_factory=list)
    backup_pgs: list[int] = field(default_factory=list)
    prefetch_bandwidth: list[float] = field(default_factory=list)
    backup_bandwidth: list[float] = field(default_factory=list)


def fake_sglang(
    monkeypatch: pytest.MonkeyPatch, resolved: dict[str, Any] | None = None, **arguments: Any
) -> dict[str, str]:
    """Put fakes of SGLang's modules in place, with these arguments of the server, until the test ends. `resolved`: the
    arguments in whose place SGLang uses others. Return the configuration in effect, whose `weight_version` updates of
    weights change."""
    serving = {"weight_version": arguments.get("weight_version", "default")}
    given = {"model_path": "none", **arguments}
    defaults = {**dict.fromkeys(given), **ARGUMENT_DEFAULTS}
    record = make_dataclass("ServerArgs", [(name, Any, field(default=value)) for name, value in defaults.items()])
    names: dict[str, dict[str, Any]] = {
        "sglang.srt.mem_cache.hicache_storage": {
            "HiCacheStorage": _HiCacheStorage,
            "PoolName": _PoolName,
            "PoolTransferResult": _PoolTransferResult,
        },
        "sglang.srt.runtime_context": {
            "get_server_args": lambda: record(**given),
            "get_serving": lambda: SimpleNamespace(**serving),
        },
        "sglang.srt.arg_groups.arg_utils": {"namespace_of": lambda record: NAMESPACES, "record_fields": fields},
        "sglang.srt.arg_groups.overrides": {
            "resolution_result": lambda server, name: (resolved or {}).get(name, getattr(server, name, None))
        },
        "sglang.version": {"__version__": "0.5.23"},
        "sglang.srt.observability.metrics_collector": {"StorageMetrics": _StorageMetrics},
    }
    for name, contents in names.items():
        parts = name.split(".")
        for at in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:at]), ModuleType(".".join(parts[:at])))
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "dataplane.engines.sglang.backend", raising=False)
    return serving
