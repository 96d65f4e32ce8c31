"""Bodies of LMCache's HTTP API, as its command line and scripts send and read them.

Names and units are LMCache's: GB are GiB, a salt is a tenant, an object is a block.
"""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

Tier = Literal["l1", "l2", "all"]
Json = dict[str, Any]


class QuotaSet(msgspec.Struct, frozen=True):
    cache_salt: str
    limit_gb: float
    status: str = "ok"


class QuotaGot(msgspec.Struct, frozen=True):
    """Quota of a salt; status 200 also if there is none."""

    cache_salt: str
    limit_gb: float
    current_usage_gb: float
    exists: bool


class QuotaRemoved(msgspec.Struct, frozen=True):
    cache_salt: str
    status: Literal["removed", "not_found"]


class QuotaUsage(msgspec.Struct, frozen=True):
    limit_gb: float
    current_usage_gb: float


class QuotasListed(msgspec.Struct, frozen=True):
    users: dict[str, QuotaUsage]


class LmcacheClearPost(msgspec.Struct):
    """All fields have defaults, so the body may be empty. Unknown fields are ignored."""

    tier: Tier = "l1"
    force: bool = False


class ObjectKey(msgspec.Struct, frozen=True):
    """Name of a block. `chunk_hash_hex` is Larder's key; `kv_rank` encodes the world size and the rank."""

    chunk_hash_hex: str
    model_name: str
    kv_rank: int
    object_group_id: int = 0
    cache_salt: str = ""


class ObjectEntry(msgspec.Struct, frozen=True):
    key: ObjectKey
    size_bytes: int


class ObjectsListed(msgspec.Struct, frozen=True):
    adapter: str
    shared: bool
    entries: list[ObjectEntry]
    next_page_token: str | None


class ObjectsDelete(msgspec.Struct):
    keys: list[ObjectKey]
    tier: Tier = "l2"
    force: bool = False
    adapter: str | None = None


class ObjectsDeleted(msgspec.Struct, frozen=True):
    deleted: int
    skipped: int
    """Blocks that are leased now; `force` deletes them too."""
    ok: bool


class PrefetchPost(msgspec.Struct):
    model_name: str
    world_size: int
    token_ids: Sequence[int]
    cache_salt: str = ""
    source_tier: Tier = "l2"
    target_tier: Tier = "l1"


class ChecksumPost(msgspec.Struct):
    """Blocks of an engine's own cache, not of Larder's."""

    block_ids: list[int] = []
    chunk_size: int = 0
    """Chunk size in blocks."""
    instance_id: int = 0
    layerwise: bool = False
