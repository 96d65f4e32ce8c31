"""Arguments and results of operations. Unknown fields are ignored, because newer clients send more fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import msgspec

_encoder = msgspec.msgpack.Encoder()


class Key(msgspec.Struct):
    """The request and the range of its tokens that an operation is about.

    The tokens stay undecoded, because every operation of a request repeats them.
    """

    model_name: str
    world_size: int
    worker_id: int | None
    """Rank of the worker; None for all ranks."""
    token_ids: msgspec.Raw
    start: int
    end: int
    request_id: str
    cache_salt: str = ""
    num_kv_readers: int = 0
    """Number of workers that read each block; 0 if the client is too old to send it."""


class EngineContext(msgspec.Struct):
    """Registration of a worker that copies by itself, with the layout of its chunks."""

    instance_id: int
    model_name: str
    world_size: int
    block_size: int
    num_layers: int
    hidden_dim_size: int
    dtype_str: str
    use_mla: bool
    num_physical_slots: int | None = None


class Group(msgspec.Struct):
    """Layers of a worker's cache that share block numbers."""

    engine_group_id: int = 0
    layer_indices: list[int] = []
    tokens_per_block: int = 0


class Hints(msgspec.Struct):
    """An engine's hints about the order of its tensors' dimensions."""

    kv_layout: str | None = None


@final
class Wrapper:
    """The encoded description of a tensor in another process's memory; see `ipc`."""

    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body


class ChunkSlot(msgspec.Struct):
    """A range of the named segment, with the tensor that belongs there."""

    offset: int
    length: int
    shape: list[int]
    dtype: str


class PoolReply(msgspec.Struct):
    """Answer to a registration: the segment to map."""

    shm_name: str = ""
    pool_size: int = 0


class SlotsReply(msgspec.Struct, omit_defaults=True):
    """Where to write or read. An answer without slots is a refusal."""

    slots: list[ChunkSlot] | None = None
    chunk_indices: list[int] | None = None
    """Indexes of the chunks of the request that the slots are for."""


class StorePrepared(msgspec.Struct):
    context: SlotsReply


class RetrievePrepared(msgspec.Struct):
    success: bool
    data: bytes
    context: SlotsReply


class BadArguments(Exception):
    """An operation has too many or too few arguments, or one of the wrong type. The message says which."""


def encode(result: Any) -> bytes:
    """Return the result frame."""
    return _encoder.encode(result)


Decode = Callable[[bytes], Any]


def _decoder(kind: Any) -> Decode:
    return msgspec.msgpack.Decoder(kind, ext_hook=_wrapper).decode


def _wrapper(code: int, data: memoryview) -> Any:
    if code != 1:
        raise ValueError(f"expected extension 1, got {code}")
    return Wrapper(bytes(data))


_KEY = _decoder(Key)
_INT = _decoder(int)
_TEXT = _decoder(str)
_BYTES = _decoder(bytes)
_BLOCKS = _decoder(list[list[int]])
_FLAG = _decoder(bool | int)
_ANY = _decoder(msgspec.Raw)


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of one operation."""

    arguments: tuple[Decode, ...]
    needed: int
    """Number of required arguments; the rest are optional."""

    @property
    def has_key(self) -> bool:
        """Return whether the first argument is a Key."""
        return bool(self.arguments) and self.arguments[0] is _KEY

    def decode(self, frames: Sequence[bytes]) -> list[Any]:
        """Decode the arguments. Raise BadArguments on failure."""
        if not self.needed <= len(frames) <= len(self.arguments):
            most = len(self.arguments)
            wanted = str(most) if most == self.needed else f"{self.needed} to {most}"
            raise BadArguments(f"expected {wanted} arguments, got {len(frames)}")
        try:
            return [decode(frame) for decode, frame in zip(self.arguments, frames, strict=False)]
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError, OverflowError) as error:
            raise BadArguments(str(error)[:200]) from None


def _takes(*arguments: Decode, needed: int | None = None) -> Signature:
    return Signature(arguments, len(arguments) if needed is None else needed)


SIGNATURES: dict[str, Signature] = {
    "register_kv_cache": _takes(
        _INT, _decoder(list[Wrapper]), _TEXT, _INT, _TEXT, _decoder(Hints | None), _decoder(list[Group])
    ),
    "unregister_kv_cache": _takes(_INT),
    "register_q_cache": _takes(_INT, _ANY, _TEXT, _INT, _TEXT, _ANY, _ANY),
    "unregister_q_cache": _takes(_INT),
    "store_q": _takes(_KEY, _INT, _BLOCKS, _BYTES),
    "store": _takes(_KEY, _INT, _BLOCKS, _BYTES),
    "retrieve": _takes(_KEY, _INT, _BLOCKS, _BYTES, _INT, needed=4),
    "lookup": _takes(_KEY, _INT, needed=1),
    "query_prefetch_status": _takes(_TEXT),
    "wait_prefetch_status": _takes(_TEXT, _decoder(float)),
    "free_lookup_locks": _takes(_KEY, _INT, needed=1),
    "end_session": _takes(_TEXT),
    "register_kv_cache_engine_driven_context": _takes(_decoder(EngineContext)),
    "unregister_kv_cache_engine_driven_context": _takes(_INT),
    "prepare_store": _takes(_KEY, _INT),
    "commit_store": _takes(_KEY, _INT, _BYTES),
    "prepare_retrieve": _takes(_KEY, _INT),
    "commit_retrieve": _takes(_KEY, _INT),
    "clear": _takes(_FLAG, needed=0),
    "get_chunk_size": _takes(),
    "ping": _takes(_decoder(int | None), needed=0),
    "report_block_allocation": _takes(_INT, _TEXT, _ANY),
    "noop": _takes(),
    "get_experimental": _takes(),
}
"""Operations that this node serves."""
UNSERVED: dict[str, Signature] = {
    "query_prefetch_lookup_hits": _takes(_TEXT),
    "cb_register_kv_cache": _takes(_INT, _ANY, _TEXT, _INT),
    "cb_unregister_kv_cache": _takes(_INT),
    "cb_store_pre_computed": _takes(_KEY, _INT, _INT, _BYTES),
    "cb_lookup_pre_computed": _takes(_KEY),
    "cb_retrieve_pre_computed": _takes(_KEY, _ANY, _ANY, _INT, _BYTES),
    "cb_store_final": _takes(_KEY, _INT, _INT, _BYTES),
    "cb_lookup_pre_computed_v2": _takes(_KEY),
    "cb_retrieve_pre_computed_v2": _takes(_KEY, _ANY, _INT, _INT, _BYTES),
    "cb_register_rope_v3": _takes(_INT, _ANY, _INT, _FLAG, _ANY, _ANY, needed=4),
    "cb_unregister_rope_v3": _takes(_INT),
    "cb_retrieve_pre_computed_v3": _takes(_KEY, _ANY, _ANY, _INT, _BYTES),
    "cb_register_rope": _takes(_INT, _ANY, _INT, _FLAG, _ANY, _ANY, _ANY, _TEXT, needed=6),
    "cb_unregister_rope": _takes(_INT),
    "cb_unified_lookup": _takes(_KEY, _INT),
    "cb_protocol_handshake": _takes(_INT),
    "p2p_lookup_and_lock": _takes(_decoder(list[msgspec.Raw]), _ANY),
    "p2p_query_lookup_results": _takes(_INT),
    "p2p_unlock_objects": _takes(_decoder(list[msgspec.Raw])),
}
"""Operations of clients that this node does not serve. Releases reuse their numbers, so their arguments distinguish
them from each other and from served operations."""
