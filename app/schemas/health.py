"""Bodies of the health checks."""

from typing import Literal

import msgspec


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok"]
    release: str


class Ready(msgspec.Struct, frozen=True):
    status: Literal["ready"]
    nodes: dict[str, str]
    """State by node; empty for callers without a token, when one is needed elsewhere."""
