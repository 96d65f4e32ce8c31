"""Hot prefixes: what engines asked for most in the last hour."""

from typing import Literal

import msgspec

By = Literal["bytes", "hits"]


class NodeError(msgspec.Struct, frozen=True):
    """A node that did not answer, and why."""

    node: str
    error: str


class PrefixAnswer(msgspec.Struct, frozen=True):
    """One prefix. Hits, bytes and blocks are sums over nodes."""

    label: str
    """Pins can be made from it, as long as it is listed."""
    tenant: str
    model: str
    depth: int
    """Chunks; the most over nodes."""
    hits: int
    """Times it was served in the last hour; may be over by `error`."""
    bytes_served: int
    error: int
    resident: int
    """Blocks of it in the pools now."""
    last_used: float
    nodes: list[str]


class PrefixList(msgspec.Struct, frozen=True):
    items: list[PrefixAnswer]
    total: int
    """How many prefixes the nodes told of, each at most `limit`."""
    silent: list[NodeError]
    """Nodes whose prefixes are missing."""
