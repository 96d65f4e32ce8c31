"""Quotas: how many bytes a tenant may keep."""

from typing import Annotated

import msgspec
from msgspec import Meta

from app.schemas.status import RecordStatus


class QuotaPut(msgspec.Struct, forbid_unknown_fields=True):
    """The whole intent about a tenant."""

    limit_bytes: Annotated[
        int | str | None,
        Meta(description="Hard cap in bytes, or text such as `4GiB`; null for no cap.", examples=["4GiB"]),
    ]
    note: Annotated[str, Meta(description="For people; at most 1,024 characters.")] = ""


class QuotaAnswer(msgspec.Struct, frozen=True):
    """A quota record and how it stands on the nodes."""

    tenant: str
    limit_bytes: int | None
    note: str
    generation: int
    """The generation of `quotas` that last changed this record."""
    created_at: float
    updated_at: float
    used_bytes: int
    blocks: int
    over_limit: bool
    status: RecordStatus


class QuotaList(msgspec.Struct, frozen=True):
    items: list[QuotaAnswer]
    total: int
