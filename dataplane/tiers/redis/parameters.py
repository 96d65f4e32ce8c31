"""Parameters of the tier `redis`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from dataplane.protocol.tiers import MAX_DEADLINE_S, MAX_IN_FLIGHT_BYTES
from dataplane.tiers.references import Reference
from dataplane.tiers.registry import ParameterError

Server = Annotated[str, Meta(pattern=r"^([\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}$", examples=["redis-1:6379"])]
MAX_TTL_S = 10 * 365 * 86_400
Address = tuple[str, int]
"""Host and port of a server."""


def port_number(number: int) -> int:
    """Return a number that a server sent as a port. Raises ValueError."""
    if not 0 < number < 1 << 16:
        raise ValueError(f"expected a port, got {number}")
    return number


class RedisParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the servers are and how they are used."""

    servers: Annotated[list[Server], Meta(min_length=1, max_length=1024)]
    """`host:port` of the server, or of some servers of a cluster."""
    cluster: bool = False
    """Whether the servers form a Redis Cluster. Blocks are spread over its slots."""
    database: Annotated[int, Meta(ge=0)] = 0
    """Number of the database. A Redis Cluster has database 0 alone."""
    username: str = ""
    """User of the server's access control list; empty for the default user."""
    password: Reference = ""
    """Reference to the password: `env:NAME` or `file:/path`. It is read again for each connection."""
    tls: bool = False
    """Whether connections are encrypted. The server's certificate is verified."""
    ca_file: str = ""
    """Certificates of the authorities that are trusted; empty for the system's."""
    certificate_file: str = ""
    """Certificate of this client, for servers that demand one."""
    key_file: str = ""
    """Private key of `certificate_file`."""
    ttl_s: Annotated[int, Meta(ge=0, le=MAX_TTL_S)] = 0
    """Seconds after which a block expires that is neither stored nor loaded again; 0 for never."""
    connections: Annotated[int, Meta(ge=1, le=64)] = 2
    """Most connections to one server that a call uses at once."""
    max_in_flight_bytes: Annotated[int, Meta(ge=1, le=MAX_IN_FLIGHT_BYTES)] = 4 * 1024 * 1024
    """Most bytes of blocks that are under way on a connection. A larger block is sent alone."""
    connect_timeout_s: Annotated[float, Meta(gt=0, le=MAX_DEADLINE_S)] = 2.0
    """Time for a connection to be established, if the deadline of the call is not sooner."""

    def __post_init__(self) -> None:
        """Raise ParameterError if the parameters contradict each other."""
        for server in self.servers:
            try:
                port_number(int(server.rpartition(":")[2]))
            except ValueError:
                raise ParameterError("servers", "expected ports of 1 to 65535") from None
        if self.username and not self.password:
            raise ParameterError("password", "expected a reference, because username is set")
        if self.cluster and self.database:
            raise ParameterError("database", f"expected 0 in a cluster, got {self.database}")
        if not self.cluster and len(self.servers) > 1:
            raise ParameterError("servers", f"expected one, because cluster is not set, got {len(self.servers)}")
        if not self.tls and (self.ca_file or self.certificate_file or self.key_file):
            raise ParameterError("tls", "expected true, because a file of certificates or keys is set")

    def addresses(self) -> list[Address]:
        """Return the hosts and ports of `servers`."""
        return [(host.strip("[]"), int(port)) for host, _, port in (text.rpartition(":") for text in self.servers)]
