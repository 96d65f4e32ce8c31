"""Rates: how fast engines compute a prefill without the cache."""

from typing import Annotated

import msgspec
from msgspec import Meta


class RatePut(msgspec.Struct, forbid_unknown_fields=True):
    """How many tokens of prefill a second an engine computes, measured by whoever sets it."""

    model: Annotated[str, Meta(description="The model's name, as engines attach with it.")]
    prefill_tokens_per_s: Annotated[
        float, Meta(description="Above 0, at most 1,000,000,000; of a whole engine, all its ranks together.")
    ]
    space: Annotated[
        str,
        Meta(description="For one space alone, by its identity (32 hex digits); empty for all of the model."),
    ] = ""
    note: Annotated[str, Meta(description="For people; at most 1,024 characters.")] = ""


class RateAnswer(msgspec.Struct, frozen=True):
    name: str
    model: str
    space: str
    prefill_tokens_per_s: float
    note: str
    etag: str
    """For `If-Match`."""
    created_at: float
    updated_at: float


class RateList(msgspec.Struct, frozen=True):
    items: list[RateAnswer]
    total: int
    """Of all pages."""
    next_cursor: str
    """For the next page; empty on the last."""
