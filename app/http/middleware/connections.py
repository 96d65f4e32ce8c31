"""The number of open connections. Each takes a file descriptor, and any client that reaches the port can open some."""

import resource
from dataclasses import dataclass, field

MAX_CONNECTIONS = 16_384
RESERVED_DESCRIPTORS = 512
"""Descriptors for the database, the nodes, the data plane's memory, and files; at most half of the limit of the
process."""


@dataclass
class ConnectionCounts:
    """Connections that the server refused or ended, by reason, since the process started."""

    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("all", "slow_head", "slow_body"), 0))


def most_connections() -> int:
    """Return the largest number of connections that may be open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, soft - min(RESERVED_DESCRIPTORS, soft // 2))
