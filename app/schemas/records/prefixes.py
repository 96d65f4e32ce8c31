"""Hot prefixes: the prefixes that engines requested most in the last hour."""

from typing import Literal

import msgspec

By = Literal["bytes", "hits"]


class NodeError(msgspec.Struct, frozen=True):
    """A node that did not answer, and the reason."""

    node: str
    error: str


class PrefixAnswer(msgspec.Struct, frozen=True):
    """One prefix. Hits, bytes and blocks are sums over nodes."""

    label: str
    """Label, from which a pin can be created while the prefix is listed."""
    tenant: str
    model: str
    depth: int
    """Length in chunks; the maximum over nodes."""
    hits: int
    """Times that it was served in the last hour; too high by at most `error`."""
    bytes_served: int
    error: int
    resident: int
    """Blocks of the prefix in the pools now."""
    last_used: float
    nodes: list[str]


class PrefixList(msgspec.Struct, frozen=True):
    items: list[PrefixAnswer]
    total: int
    """Number of prefixes that the nodes reported; each reports at most `limit`."""
    failed_nodes: list[NodeError]
    """Nodes that did not answer; their prefixes are missing."""
