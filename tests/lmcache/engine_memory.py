"""An engine's paged cache in a named segment, and how its client describes it."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from tests.lmcache.client import packed
from tests.run_marks import shm_name

FOLDER = Path("/dev/shm")


class EngineMemory:
    """Layers of equal shape, one after another in one segment, of uint16 that stand for float16."""

    def __init__(self, layers: int = 2, shape: tuple[int, ...] = (2, 64, 16, 2, 8)) -> None:
        self.name = f"lmcache_kv_{shm_name(secrets.token_hex(6))}"
        self.layers, self.shape = layers, shape
        self.item_bytes = 2
        self.layer_items = int(np.prod(shape))
        self.nbytes = layers * self.layer_items * self.item_bytes
        self.path = FOLDER / self.name
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.ftruncate(fd, self.nbytes)
        os.close(fd)
        self.items: npt.NDArray[np.uint16] = np.memmap(self.path, np.uint16, "r+")

    def layer(self, number: int) -> npt.NDArray[np.uint16]:
        start = number * self.layer_items
        return self.items[start : start + self.layer_items].reshape(self.shape)

    def fill(self, seed: int) -> None:
        self.items[:] = np.random.default_rng(seed).integers(0, 65_536, len(self.items), np.uint16)

    def blocks(self, numbers: list[int]) -> npt.NDArray[np.uint16]:
        """What those blocks hold, of all layers."""
        axis = 1 if len(self.shape) >= 5 and self.shape[0] == 2 else 0
        return np.stack([self.layer(each).take(numbers, axis) for each in range(self.layers)])

    def describe(self, number: int, **changes: Any) -> dict[str, Any]:
        """One layer, as a client describes it."""
        stride = [int(np.prod(self.shape[at + 1 :])) for at in range(len(self.shape))]
        metadata = {
            "dtype": "float16",
            "shape": list(self.shape),
            "stride": stride,
            "storage_offset": number * self.layer_items,
            "device_uuid": "cpu",
        }
        described = {
            "type": "cpu_shm",
            "version": 1,
            "metadata": {**metadata, **changes.pop("metadata", {})},
            "shm_name": f"/{self.name}",
            "nbytes": self.nbytes,
        }
        return {**described, **changes}

    def wrappers(self, **changes: Any) -> list[msgspec.msgpack.Ext]:
        return [msgspec.msgpack.Ext(1, packed(self.describe(number, **changes))) for number in range(self.layers)]

    def groups(self, tokens_per_block: int = 16) -> list[dict[str, Any]]:
        """One group of all layers."""
        return [
            {
                "engine_group_id": 0,
                "layer_indices": list(range(self.layers)),
                "tokens_per_block": tokens_per_block,
                "sw_size_tokens": -1,
                "extra_object_group_tag": 0,
                "recurrent_state": False,
            }
        ]

    def registration(self, instance: int = 7, **changes: Any) -> list[Any]:
        """Arguments of `register_kv_cache`."""
        fields = {
            "wrappers": self.wrappers(),
            "model": "llama",
            "world_size": 1,
            "engine_type": "vllm",
            "hints": {"kv_layout": "NHD"},
            "groups": self.groups(),
            **changes,
        }
        return [instance, *fields.values()]

    def close(self) -> None:
        self.path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
