"""The number of open connections. Each takes a file descriptor, and any client that reaches the port can open some."""

import resource
from collections import Counter
from dataclasses import dataclass, field

MAX_CONNECTIONS = 16_384
RESERVED_DESCRIPTORS = 512
"""Descriptors for the database, the nodes, the data plane's memory, and files; at most half of the limit of the
process."""

REASONS = ("all", "address", "heads", "slow_head", "slow_body")


@dataclass
class ConnectionCounts:
    """Connections that are open, and those that the server refused or ended since the process started."""

    ended: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    """By reason."""
    of_address: Counter[str] = field(default_factory=Counter)
    """Open connections by the address of the client."""
    unfinished_bytes: int = 0
    """Bytes of incomplete heads that connections hold."""

    def refuse(self, address: str, connections: int) -> str | None:
        """Count a connection of an address. Return what was expected if it is refused; None if it may stay.
        `connections` is the number of open ones, with this one."""
        limit = most_connections()
        if connections > limit:
            self.ended["all"] += 1
            return f"expected at most {limit} connections at once"
        if self.of_address[address] >= limit // 2:
            self.ended["address"] += 1
            return f"expected at most {limit // 2} connections at once from one address"
        self.of_address[address] += 1
        return None

    def closed(self, address: str) -> None:
        """Count the end of a connection that `refuse` let stay."""
        self.of_address[address] -= 1
        if not self.of_address[address]:
            del self.of_address[address]


def most_connections() -> int:
    """Return the largest number of connections that may be open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, soft - min(RESERVED_DESCRIPTORS, soft // 2))
