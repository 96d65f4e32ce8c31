"""Spaces: the properties that must be equal for cached bytes to be interchangeable.

Two engines with the same model name but a different KV dtype, layout, world size or rank never share blocks: the index
key is (space, key). `block_bytes`, `block_tokens` and `head_size` are not part of the identity but follow from it. If
two engines give the same identity different block sizes, they contradict each other and the second is refused.
"""

from hashlib import sha256

import msgspec

from dataplane.base.visible import is_printable
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS

MAX_NAME_CHARACTERS = 256
MAX_RANK = 65_535
MAX_BLOCK_BYTES = 1 << 40
MAX_BLOCK_TOKENS = 1 << 20
MAX_HEAD_SIZE = 65_535
LMCACHE = "lmcache"
LMCACHE_SCHEDULERS = f"{LMCACHE}:schedulers"
"""Group of the pseudo-engine, without a process, that the gateway keeps for schedulers that have no engine of their
own."""
TIER_MOVER = "larder:tiers"
"""Group of the pseudo-engine, in the data plane's own process, that loads blocks from tiers."""
TIER_GATEWAY = "tiers"
"""Name under which the data plane attaches that pseudo-engine."""
GATEWAYS = ("", LMCACHE)
"""Servers of a space's engines: the engine socket (''), or the gateway of that name."""


class Space(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Identity of one rank's KV bytes; an engine sends it when it attaches. Fields at their default are not sent, so
    that releases that do not know a field understand peers that do not use it."""

    model: str
    """Model name; pins refer to it."""
    revision: str = ""
    """Weights revision."""
    layout: str = ""
    """KV layout, e.g. `"NHD:32x8x128"`."""
    dtype: str = ""
    """KV dtype, e.g. `"bfloat16"`."""
    kv_group: int = 0
    """KV-cache group of hybrid models."""
    world_size: int = 1
    pipeline_stage: int = 0
    rank: int = 0
    block_bytes: int = 0
    """Size of a full block in bytes; 0 when sizes vary. Not part of the identity."""
    block_tokens: int = DEFAULT_CHUNK_TOKENS
    """Tokens per block, which is one chunk. Used for usage accounting; not part of the identity."""
    gateway: str = ""
    """Gateway whose engines use the space, e.g. `"lmcache"`: the space's bytes lie in memory of another trust domain.
    Part of the identity only if set."""
    head_size: int = 0
    """Consecutive elements of a block that belong to one head of one token; 0 if not known. Not part of the
    identity."""

    def identity(self) -> str:
        """Return 32 hex digits that are equal exactly for interchangeable spaces."""
        parts: tuple[str | int, ...] = (
            self.model,
            self.revision,
            self.layout,
            self.dtype,
            self.kv_group,
            self.world_size,
            self.pipeline_stage,
            self.rank,
        )
        if self.gateway:
            parts = (*parts, self.gateway)
        return sha256(b"larder.space.1" + msgspec.msgpack.encode(parts)).hexdigest()[:32]


def leading(space: Space) -> Space:
    """Return the leading space among the spaces of one request: rank, pipeline stage and KV group 0."""
    return msgspec.structs.replace(space, rank=0, pipeline_stage=0, kv_group=0)


def check_space(space: Space, field: str = "spaces") -> Space:
    """Return the space, or raise ProtocolError(BAD_SPACE) that names the invalid field."""
    if not space.model:
        raise ProtocolError(Code.BAD_SPACE, "expected a model name, got ''", f"{field}.model")
    for name in ("model", "revision", "layout", "dtype"):
        text = getattr(space, name)
        if len(text) > MAX_NAME_CHARACTERS or not (text == "" or is_printable(text)):
            raise ProtocolError(
                Code.BAD_SPACE,
                f"expected at most {MAX_NAME_CHARACTERS} printable characters, got {len(text)}",
                f"{field}.{name}",
            )
    if space.gateway not in GATEWAYS:
        raise ProtocolError(
            Code.BAD_SPACE, f"expected nothing or {LMCACHE!r}, got {space.gateway[:32]!r}", f"{field}.gateway"
        )
    for name, low, high in (
        ("kv_group", 0, MAX_RANK),
        ("world_size", 1, MAX_RANK + 1),
        ("pipeline_stage", 0, MAX_RANK),
        ("rank", 0, space.world_size - 1),
        ("block_bytes", 0, MAX_BLOCK_BYTES),
        ("block_tokens", 1, MAX_BLOCK_TOKENS),
        ("head_size", 0, MAX_HEAD_SIZE),
    ):
        number = getattr(space, name)
        if not low <= number <= high:
            raise ProtocolError(Code.BAD_SPACE, f"expected {low} to {high}, got {number}", f"{field}.{name}")
    return space
