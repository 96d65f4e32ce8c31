"""Nodes: data planes, what they should hold and what they hold."""

import msgspec

from app.schemas.status import NodeStateName
from dataplane.protocol.events import EngineStats, PoolStats, Totals


class ObservedState(msgspec.Struct, frozen=True):
    """What a node has applied of a type."""

    generation: int
    digest: str
    store: str
    """The database it came from."""


class NodeFault(msgspec.Struct, frozen=True):
    """One fault that the node found in the newest refused snapshot."""

    type: str
    generation: int
    at: float
    path: str
    code: str
    message: str


class NodeNumbers(msgspec.Struct, frozen=True):
    """The node's latest numbers, without tenants and pins, which have places of their own."""

    at: float
    uptime_s: float
    armed: bool
    pool: PoolStats
    totals: Totals
    refused: dict[str, int]
    engines: list[EngineStats]


class NodeAnswer(msgspec.Struct, frozen=True):
    name: str
    state: NodeStateName
    epoch: str
    pid: int
    release: str
    engine_socket: str
    control_url: str
    capacity_bytes: int
    seen_at: float
    desired: dict[str, int]
    """Generation by type."""
    observed: dict[str, ObservedState]
    faults: list[NodeFault]
    """Of NACKs that are still true."""
    stats: NodeNumbers | None
    """Null when the node is lost or has not told yet."""


class NodeList(msgspec.Struct, frozen=True):
    items: list[NodeAnswer]
    total: int
