"""Bodies of LMCache's own HTTP interface, as its command line and scripts send and read them.

Names and units are LMCache's: GB are GiB, a salt is a tenant, an object is a block.
"""

from typing import Any, Literal

import msgspec

Tier = Literal["l1", "l2", "all"]
Json = dict[str, Any]


class QuotaSet(msgspec.Struct, frozen=True):
    cache_salt: str
    limit_gb: float
    status: str = "ok"


class QuotaGot(msgspec.Struct, frozen=True):
    """200 also where there is none."""

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


class ClearPost(msgspec.Struct):
    """What is left out has its default; so has everything in an empty body. Unknown fields are passed over."""

    tier: Tier = "l1"
    force: bool = False


class ObjectKey(msgspec.Struct, frozen=True):
    """One block. `chunk_hash_hex` is Larder's key; `kv_rank` says the world and the rank."""

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
    """Leased at this moment; `force` takes them too."""
    ok: bool


class PrefetchPost(msgspec.Struct):
    model_name: str
    world_size: int
    token_ids: list[int]
    cache_salt: str = ""
    source_tier: Tier = "l2"
    target_tier: Tier = "l1"


class ChecksumPost(msgspec.Struct):
    """Blocks of an engine's own cache, not of this one's."""

    block_ids: list[int] = []
    chunk_size: int = 0
    """In blocks."""
    instance_id: int = 0
    layerwise: bool = False
