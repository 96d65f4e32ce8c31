"""Parameters of the tier `mooncake`."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class MooncakeParameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Addresses of the master and of this node, and the memory that this node contributes."""

    master: Annotated[str, Meta(pattern=r"^[^\s:/@]+:\d{1,5}$")]
    """Address of `mooncake_master`, such as `10.0.0.1:50051`."""
    metadata: Annotated[str, Meta(pattern=r"^(P2PHANDSHAKE|https?://[^@\s]+)$")] = "P2PHANDSHAKE"
    """URL of the metadata server of the transfer engine; `P2PHANDSHAKE` for none."""
    hostname: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    """Address under which other nodes reach this one."""
    protocol: Literal["tcp", "rdma"] = "tcp"
    """Transport of the transfer engine."""
    devices: str = ""
    """Names of RDMA devices, separated by commas; empty for all devices, and for TCP."""
    segment_bytes: Annotated[int, Meta(ge=0)] = 0
    """Bytes of this node's memory in which Mooncake stores blocks of all nodes, until the data plane ends; 0 for
    none."""
    buffer_bytes: Annotated[int, Meta(ge=16 * 1024 * 1024)] = 128 * 1024 * 1024
    """Bytes of the client's memory for blocks that are being copied. The largest block must fit."""
