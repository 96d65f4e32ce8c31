"""Spaces: the properties that must be equal for cached bytes to be interchangeable.

Two engines with the same model name but a different KV dtype, layout, world size or rank never share blocks: the index
key is (space, key). `block_bytes`, `block_tokens`, `head_size` and `tail_blocks` are not part of the identity but
follow from it. If two engines give the same identity different block sizes, they contradict each other and the second
is refused.
"""

from collections.abc import Container, Mapping
from hashlib import sha256
from typing import TypeVar

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
Name = TypeVar("Name")


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
    tail_blocks: int = 0
    """Number of blocks at the end of a prefix that an engine needs to use the prefix; 0 for all blocks. Recurrent state
    needs 1. Such a space may lack blocks in the middle of a chain. Not part of the identity."""

    @property
    def allows_gaps(self) -> bool:
        """Whether blocks of a chain are of use behind a missing one."""
        return self.tail_blocks > 0

    def needed(self, end: int) -> range:
        """Return the positions of the blocks that an engine needs to use the first `end` blocks of a chain."""
        return range(max(0, end - self.tail_blocks) if self.allows_gaps else 0, end)

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


def kinds_of(spaces: Mapping[Name, Space], attached: Container[Name]) -> list[list[list[Name]]]:
    """Return the kinds of engines that use these spaces of one model: for each kind its places, by KV group, stage and
    rank, and for each place the names of its spaces. An engine can use a chunk only if, at every place, one of the
    spaces has it.

    A layout that has spaces at every place is a kind. The other layouts form one together, because KV groups and stages
    of a pipeline have layouts of their own. Spaces that have `attached` engines count first: kinds without them count
    only if there are no others, and so do spaces within a place. They hold blocks of engines that are gone, for example
    with earlier weights, which no engine can load. Spaces with `tail_blocks` count only if there are no others: they
    need not have a block for each chunk.
    """
    families: dict[tuple[str, str, int, str], dict[str, dict[tuple[int, int, int], Name]]] = {}
    whole = {name: space for name, space in spaces.items() if not space.allows_gaps}
    for name, space in (whole or spaces).items():
        family = families.setdefault((space.revision, space.dtype, space.world_size, space.gateway), {})
        family.setdefault(space.layout, {})[space.kv_group, space.pipeline_stage, space.rank] = name
    kinds: list[list[list[Name]]] = []
    for layouts in families.values():
        places = {place for own in layouts.values() for place in own}
        parts: dict[tuple[int, int, int], list[Name]] = {}
        for own in layouts.values():
            if len(own) == len(places):
                kinds.append([[own[place]] for place in sorted(own)])
                continue
            for place, name in own.items():
                parts.setdefault(place, []).append(name)
        if parts:
            kinds.append([parts[place] for place in sorted(parts)])
    used = [kind for kind in kinds if any(name in attached for place in kind for name in place)]
    return [[[name for name in place if name in attached] or place for place in kind] for kind in used or kinds]


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
        ("tail_blocks", 0, MAX_BLOCK_TOKENS),
    ):
        number = getattr(space, name)
        if not low <= number <= high:
            raise ProtocolError(Code.BAD_SPACE, f"expected {low} to {high}, got {number}", f"{field}.{name}")
    return space
