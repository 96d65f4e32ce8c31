"""Limits on open connections, in total and per address, and counts of the connections that were refused or closed.

Each connection takes a file descriptor, and any client that reaches the port can open some. The total is limited so
that descriptors remain for the database and the nodes. The limit per address keeps one address from using up the total.
A proxy that the settings name carries the connections of many clients and is exempt from the limit per address.
"""

import ipaddress
import resource
from collections import Counter
from time import monotonic
from typing import Literal

import structlog

from app.services.base.throttle import neighbourhood
from app.settings import Network

MAX_CONNECTIONS = 16_384
RESERVED_DESCRIPTORS = 512
"""Descriptors for the database, the nodes, the data plane's memory, and files; at most half of the limit of the
process."""
FOR_OTHERS = 8
"""Divisor: one address never gets the last 1/FOR_OTHERS of all connections."""
TELL_EVERY_S = 60.0
Reason = Literal["all", "address", "slow_head", "slow_body"]


def raise_descriptors() -> None:
    """Raise the soft limit of descriptors to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections() -> int:
    """Return the largest number of connections that may be open at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, soft - min(RESERVED_DESCRIPTORS, soft // 2))


class ConnectionLimiter:
    """Decides which connections may stay. The server calls `admit` for each new connection and `leave` when an admitted
    one closes. `ended` counts refused and closed connections by reason."""

    def __init__(self, per_address: int, proxies: tuple[Network, ...] = ()) -> None:
        self._per_address = per_address
        self._proxies = proxies
        self._open: Counter[str] = Counter()
        self._untold: Counter[Reason] = Counter()
        self._told_at = -TELL_EVERY_S
        self._log = structlog.get_logger()
        self.ended: dict[str, int] = dict.fromkeys(("all", "address", "slow_head", "slow_body"), 0)

    def admit(self, peer: str, held: int) -> str:
        """Return an empty string if the connection may stay (`leave` must follow), otherwise the reason for the
        refusal. `held` is the number of open connections, this one included."""
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
        """Count a connection that the server ends. Logs at most once a minute, with the counts since the last line."""
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
