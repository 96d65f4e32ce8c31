"""How many connections there may be, from everywhere and from one address, and what became of those that were not held.

Each is a descriptor, and whoever can reach the port can open some: never so many that the process has none left for
its database and its nodes, and never so many from one address that nobody else gets one. A proxy that the settings
name asks for many and may have them all.
"""

import ipaddress
import resource
from collections import Counter
from time import monotonic
from typing import Literal

import structlog

from app.services.throttle import neighbourhood
from app.settings import Network

MOST_CONNECTIONS = 16_384
RESERVED_DESCRIPTORS = 512
"""For the database, the nodes, the data plane's memory, and files; half of all when there are few."""
FOR_OTHERS = 8
"""One part in so many of all connections is never one address's."""
TELL_EVERY_S = 60.0
Reason = Literal["all", "address", "slow_head", "slow_body"]


def raise_descriptors() -> None:
    """Take as many descriptors as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections() -> int:
    """How many there may be at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, soft - min(RESERVED_DESCRIPTORS, soft // 2))


class Connections:
    """`admit` each that comes and let it `leave`. `ended` counts, by reason, those that were refused or given up."""

    def __init__(self, per_address: int, proxies: tuple[Network, ...] = ()) -> None:
        self._per_address = per_address
        self._proxies = proxies
        self._open: Counter[str] = Counter()
        self._untold: Counter[Reason] = Counter()
        self._told_at = -TELL_EVERY_S
        self._log = structlog.get_logger()
        self.ended: dict[str, int] = dict.fromkeys(("all", "address", "slow_head", "slow_body"), 0)

    def admit(self, peer: str, held: int) -> str:
        """Empty when it may stay, and `leave` must follow; else why not. `held`: of all there are, with this one."""
        most = most_connections()
        if held > most:
            self.end("all", peer)
            return f"expected at most {most} connections at once; try again later"
        place = neighbourhood(peer)
        of_one = min(self._per_address, most - most // FOR_OTHERS)
        if self._open[place] >= of_one and not self._is_proxy(peer):
            self.end("address", peer)
            return (
                f"expected at most {of_one} connections from one address at once (app.connections_per_address; a "
                "proxy may have more when app.trusted_proxies names it); close some, or try again later"
            )
        self._open[place] += 1
        return ""

    def leave(self, peer: str) -> None:
        place = neighbourhood(peer)
        self._open[place] -= 1
        if self._open[place] <= 0:
            del self._open[place]

    def end(self, reason: Reason, peer: str) -> None:
        """Count one that is ended by us; told once a minute with how many there were since the last time."""
        self.ended[reason] += 1
        self._untold[reason] += 1
        if monotonic() - self._told_at >= TELL_EVERY_S:
            self._told_at = monotonic()
            told: dict[str, int] = {str(name): count for name, count in self._untold.items()}
            self._untold.clear()
            self._log.warning("connections.ended", last_from=peer, open=self._open.total(), **told)

    def _is_proxy(self, peer: str) -> bool:
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self._proxies)
