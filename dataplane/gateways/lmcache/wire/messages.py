"""Arguments, results and failure answers of operations.

Unknown fields are ignored, because newer clients send more fields.
"""

from __future__ import annotations

from typing import Any, final

import msgspec

from dataplane.protocol.sessions import is_session

TOKEN_BYTES = 4
"""Bytes of each token in `token_bytes`."""
NIL = 0xC0
"""Byte of a MessagePack nil."""

SESSION = "lmcache.larder.session"
"""Key of `kv_transfer_params` that names the session of a request. LMCache passes on those that begin with
`lmcache.`."""

_encoder = msgspec.msgpack.Encoder()
_configs = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_texts = msgspec.msgpack.Decoder(str)


class Key(msgspec.Struct):
    """The request and the range of its tokens that an operation is about.

    The tokens come in one of two forms. They stay undecoded, because every operation of a request repeats them.
    """

    model_name: str
    world_size: int
    worker_id: int | None
    """Rank of the worker; None for all ranks."""
    start: int
    end: int
    request_id: str
    token_ids: msgspec.Raw = msgspec.Raw()
    """Array of token ids, of releases before 0.5.7; empty or nil if there is none."""
    token_bytes: bytes | None = None
    """Token ids as u32 big-endian, of releases since 0.5.7."""
    cache_salt: str = ""
    num_kv_readers: int = 0
    """Number of workers that read each block; 0 if the client is too old to send it."""
    request_configs: msgspec.Raw = msgspec.Raw()
    """Keys `lmcache.*` of the request's `kv_transfer_params`, a map or null. Decoded by `session_of` alone."""

    def __post_init__(self) -> None:
        tokens = memoryview(self.token_ids)
        is_array = tokens.nbytes > 0 and tokens[0] != NIL
        if is_array == (self.token_bytes is not None):
            raise ValueError(f"expected token_ids or token_bytes, got {'both' if is_array else 'neither'}")
        if not is_array and len(self.token_bytes or b"") % TOKEN_BYTES:
            raise ValueError(f"token_bytes: expected a multiple of 4 bytes, got {len(self.token_bytes or b'')}")


def session_of(key: Key) -> str:
    """Return the session that a request names with SESSION; empty if it names none, or the name is not valid."""
    configs = bytes(key.request_configs)
    if SESSION.encode() not in configs:
        return ""
    try:
        name = _texts.decode(_configs.decode(configs)[SESSION])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        return ""
    return name if is_session(name) else ""


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
    group_layouts: list[msgspec.Raw] = []
    """Layouts of groups of layers that have blocks of their own, of models with several kinds of attention."""


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


def encode(result: Any) -> bytes:
    """Return the result frame."""
    return _encoder.encode(result)


NOTHING_PREPARED = encode(StorePrepared(SlotsReply()))
"""Tell the client that there is no room. The client reports the store as failed."""
NOTHING_TO_STORE = encode(StorePrepared(SlotsReply(slots=[], chunk_indices=[])))
NOTHING_TO_READ = encode(RetrievePrepared(success=False, data=b"", context=SlotsReply()))
NO_POOL = encode(PoolReply())
"""Tell the client that there is no shared memory. The client falls back to another transfer mode, whose requests get
regular refusals."""
NOT_COPIED = encode([b"", False])
FALSE = encode(False)
ZERO = encode(0)
YES = encode(True)
