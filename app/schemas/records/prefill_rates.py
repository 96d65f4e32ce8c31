"""Rates: the prefill speed of engines without the cache."""

from typing import Annotated, ClassVar

import msgspec

from app.schemas.base.fields import LOWER_SPACE, ModelName, bounds, text
from app.schemas.base.listing import Page
from app.schemas.base.records import Note

MAX_TOKENS_PER_S = 1_000_000_000


class RatePut(msgspec.Struct, forbid_unknown_fields=True):
    """A prefill rate: tokens per second that an engine computes, as measured by the operator. `model` and
    `prefill_tokens_per_s` have no default."""

    model: ModelName | msgspec.UnsetType = msgspec.UNSET
    """Required: model name with which engines attach."""
    prefill_tokens_per_s: Annotated[float, bounds(exclusiveMinimum=0, maximum=MAX_TOKENS_PER_S)] | msgspec.UnsetType = (
        msgspec.UNSET
    )
    """Required: prefill tokens per second of a whole engine, with all its ranks: above 0, at most 1,000,000,000."""
    space: Annotated[str, text(f"|{LOWER_SPACE}")] = ""
    """Identity of the only space for which the rate holds (32 hex digits); empty for all spaces of the model."""
    note: Note = ""

    REQUIRED: ClassVar = ("model", "prefill_tokens_per_s")


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


class RateList(Page, frozen=True):
    items: list[RateAnswer]
