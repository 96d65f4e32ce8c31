"""Bodies of the health checks."""

from typing import Literal

import msgspec


class Health(msgspec.Struct, frozen=True):
    status: Literal["ok"]
    release: str
    instance: str
    """Id of this process, which changes with a restart."""


class Readiness(msgspec.Struct, frozen=True):
    status: Literal["ready"]
    database: str = ""
    """Why the database accepts no changes, such as a full disk; empty if it does."""


class FleetHealth(msgspec.Struct, frozen=True):
    status: Literal["ok"]
    nodes: dict[str, str]
    """State by node; empty for callers without a token if the API requires one."""
    database: str = ""
    """Why the database accepts no changes, such as a full disk; empty if it does."""
