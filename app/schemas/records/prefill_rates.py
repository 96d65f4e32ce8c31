"""Rates: the prefill speed of engines without the cache."""

from typing import Annotated

import msgspec
from msgspec import Meta

from app.schemas.base.records import Note


class RatePut(msgspec.Struct, forbid_unknown_fields=True):
    """A prefill rate: tokens per second that an engine computes, as measured by the operator. `model` and
    `prefill_tokens_per_s` have no default."""

    model: Annotated[str | msgspec.UnsetType, Meta(description="Required: model name with which engines attach.")] = (
        msgspec.UNSET
    )
    prefill_tokens_per_s: Annotated[
        float | msgspec.UnsetType,
        Meta(
            description=(
                "Required: prefill tokens per second of a whole engine, with all its ranks: above 0, at most "
                "1,000,000,000."
            )
        ),
    ] = msgspec.UNSET
    space: Annotated[
        str,
        Meta(
            description=(
                "Identity of the only space for which the rate holds (32 hex digits); empty for all spaces "
                "of the model."
            )
        ),
    ] = ""
    note: Note = ""


class RateAnswer(msgspec.Struct, frozen=True):
    name: str
    model: str
    space: str
    prefill_tokens_per_s: float
    note: str
    etag: str
    """ETag for `If-Match`."""
    created_at: float
    updated_at: float


class RateList(msgspec.Struct, frozen=True):
    items: list[RateAnswer]
    total: int
    """Items on all pages."""
    next_cursor: str
    """`cursor` of the next page; empty on the last."""
