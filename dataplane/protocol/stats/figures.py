"""Figures: what a field of statistics measures. The management plane makes the field's metric of it, and the first
paragraph of the text below the field is the help of the metric."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec


@dataclass(frozen=True)
class Figure:
    """A counter since the start of the process, or a gauge."""

    kind: Literal["counter", "gauge"]
    metric: str
    """Name of the metric, for counters without `_total`; with a base unit at the end."""
    label: str = ""
    """For a field that is a dict: the metric's label for its keys."""


def counter(metric: str, label: str = "") -> Figure:
    """Declare the figure of a field: `Annotated[int, counter("larder_hits")]`, or, with a `label` for its keys, of a
    field that is a dict."""
    return Figure("counter", metric, label)


def gauge(metric: str) -> Figure:
    """The same for a gauge."""
    return Figure("gauge", metric)


def figures(struct: type[msgspec.Struct]) -> Iterator[tuple[str, Figure]]:
    """Yield the names of the fields of a struct that are figures."""
    for field in msgspec.structs.fields(struct):
        for metadata in getattr(field.type, "__metadata__", ()):
            if isinstance(metadata, Figure):
                yield field.name, metadata
