"""KV events in vLLM's encodings: a batch is `[ts, events, dp_rank]` in MessagePack.

`map` is the encoding of vLLM and SGLang since mid-2026: each event is a map with its type under `type`. `array` is the
older one: each event is an array that begins with its type. Field names, their order in arrays, and the
meaning of each field are those of `vllm.distributed.kv_events`.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from dataplane.protocol.keys import KEY_BYTES

Format = Literal["map", "array"]
Event = dict[str, object] | list[object]

_WORDS = KEY_BYTES // 8
_SPREAD = 0x9E3779B97F4A7C15
_encode = msgspec.msgpack.Encoder().encode
_BATCH = b"\x93"
"""MessagePack header of an array of three elements."""


def block_hash(key: bytes) -> int:
    """Return the hash of a block as an unsigned integer of 64 bits: like vLLM's, the last 8 bytes of the key.

    Consumers shorten byte hashes in different ways, but take integers as they are.
    """
    return int.from_bytes(key[KEY_BYTES - 8 :], "big")


def block_hashes(keys: Sequence[bytes], parts: int) -> list[int]:
    """Return the hashes of the `parts` blocks that represent each chunk. The last one is the hash of the chunk, because
    it is the parent of the next chunk."""
    words = np.frombuffer(b"".join(keys), ">u8")[_WORDS - 1 :: _WORDS].astype(np.uint64)
    if parts > 1:
        spread = np.arange(1, parts, dtype=np.uint64) * np.uint64(_SPREAD)  # modulo 2 ** 64
        words = np.column_stack((words[:, None] ^ spread, words)).ravel()
    hashes: list[int] = words.tolist()
    return hashes


class EventEncoder:
    """Encodes events in one format, for one medium."""

    def __init__(self, layout: Format, medium: str) -> None:
        self._as_map = layout == "map"
        self._medium = medium

    def stored(self, hashes: list[int], parent: int | None, tokens: bytes, block_size: int, salt: str = "") -> Event:
        """Return a `BlockStored` of blocks that follow each other. `tokens` are u32 little-endian, or empty. `salt` is
        the cache salt if the first block begins a chain, as vLLM publishes it."""
        ids = array("I", tokens).tolist()
        extra: list[list[str] | None] | None = [[salt], *[None] * (len(hashes) - 1)] if salt else None
        if not self._as_map:
            event: list[object] = ["BlockStored", hashes, parent, ids, block_size, None, self._medium, None]
            return event if extra is None else [*event, extra]
        fields: dict[str, object] = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": parent,
            "token_ids": ids,
            "block_size": block_size,
            "lora_id": None,
            "medium": self._medium,
            "lora_name": None,
        }
        return fields if extra is None else {**fields, "extra_keys": extra}

    def removed(self, hashes: list[int]) -> Event:
        if not self._as_map:
            return ["BlockRemoved", hashes, self._medium]
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": self._medium}

    def cleared(self) -> Event:
        return {"type": "AllBlocksCleared"} if self._as_map else ["AllBlocksCleared"]


def batch(at: float, events: Sequence[Event]) -> bytes:
    """Return an encoded batch without its last element, the rank, which `rank` returns."""
    return b"".join((_BATCH, _encode(at), _encode(events)))


def rank(number: int) -> bytes:
    return _encode(number)
