"""What the management plane and a node say over the control socket (ZeroMQ DEALER to ROUTER, MessagePack).

State of the world, one type at a time: a `Snapshot` carries the whole desired state of its type with generation, nonce
and digest. The node validates all of it, applies all or nothing, and answers `Ack`, or `Nack` with every fault found
and keeps its last good state. Big bodies (a pin's keys) travel by digest: the node asks once for those it lacks.

Digests are SHA-256 of the exact bytes, in hex. Bodies are MessagePack of the lists below, sorted by name, so that the
same intent has the same digest.
"""

from hashlib import sha256
from typing import Literal

import msgspec

from dataplane.protocol.events import NodeStats

VERSION = 1
SnapshotType = Literal["quotas", "pins"]
SNAPSHOT_TYPES: tuple[SnapshotType, ...] = ("quotas", "pins")
MAX_SNAPSHOT_BYTES = 64 * 1024 * 1024
MAX_RECORDS = 100_000


# ---- bodies of snapshots


class QuotaSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """One tenant's share. `tenant` is the salt ('' for the default tenant)."""

    tenant: str
    limit_bytes: int | None = None
    """Hard cap in bytes; None for no cap."""


class PinSpec(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Keys that must stay, in every space of a model."""

    name: str
    model: str
    tenant: str
    keys_digest: str
    """SHA-256, hex, of the packed keys (n keys of 32 bytes); the body travels by digest."""
    expires_at: float | None = None
    """Unix seconds; None for no end."""


# ---- management plane to node


class Hello(msgspec.Struct, tag_field="op", tag="hello", forbid_unknown_fields=True):
    version: int
    manager: str


class Snapshot(msgspec.Struct, tag_field="op", tag="snapshot", forbid_unknown_fields=True):
    type: SnapshotType
    store: str
    """Identity of the database: generations of different databases cannot be compared."""
    generation: int
    nonce: str
    digest: str
    body: bytes
    traceparent: str = ""


class Bodies(msgspec.Struct, tag_field="op", tag="bodies", forbid_unknown_fields=True):
    """Answer to `NeedBodies`, possibly in parts; `last` closes it."""

    nonce: str
    bodies: dict[str, bytes]
    last: bool = True


class Describe(msgspec.Struct, tag_field="op", tag="describe", forbid_unknown_fields=True):
    """Ask for the node's full state now; used after a gap in the events."""

    nonce: str
    audit: bool = False
    """Also hold the node's books against each other; takes milliseconds for each 10,000 blocks."""


ControlRequest = Hello | Snapshot | Bodies | Describe

# ---- node to management plane


class Observed(msgspec.Struct, frozen=True):
    """What a node has applied of one type."""

    generation: int
    digest: str
    store: str


class Welcome(msgspec.Struct, tag_field="op", tag="welcome"):
    version: int
    node: str
    """Stable name of the node, kept in its state directory."""
    epoch: str
    """New at every start of the process, 16 hex digits."""
    pid: int
    release: str
    engine_socket: str
    events_url: str
    capacity_bytes: int
    observed: dict[str, Observed]


class Fault(msgspec.Struct, frozen=True):
    """One fault of a snapshot."""

    path: str
    """e.g. `quotas[3].limit_bytes`."""
    code: str
    """Name of a `Code`, in lower case."""
    message: str


class Ack(msgspec.Struct, tag_field="op", tag="ack"):
    type: SnapshotType
    generation: int
    nonce: str
    digest: str
    applied_s: float
    """Seconds the node spent on validating and applying."""


class Nack(msgspec.Struct, tag_field="op", tag="nack"):
    type: SnapshotType
    generation: int
    nonce: str
    errors: list[Fault]
    observed: Observed | None
    """The last good state, which stays in force."""


class NeedBodies(msgspec.Struct, tag_field="op", tag="need_bodies"):
    nonce: str
    digests: list[str]


class Description(msgspec.Struct, tag_field="op", tag="description"):
    nonce: str
    seq: int
    """Sequence number of the last event that this state includes."""
    stats: NodeStats
    observed: dict[str, Observed]
    faults: list[str] = []
    """Contradictions that an audit found; empty when all is well."""


class ControlRefused(msgspec.Struct, tag_field="op", tag="refused"):
    """A message that was not understood; nothing was done."""

    code: str
    message: str
    field: str = ""
    nonce: str = ""


ControlReply = Welcome | Ack | Nack | NeedBodies | Description | ControlRefused


def digest_of(body: bytes) -> str:
    """SHA-256 in hex, as snapshots and pin bodies are named."""
    return sha256(body).hexdigest()


def encode_quotas(specs: list[QuotaSpec]) -> bytes:
    """The body of a `quotas` snapshot."""
    return msgspec.msgpack.encode(sorted(specs, key=lambda spec: spec.tenant))


def encode_pins(specs: list[PinSpec]) -> bytes:
    """The body of a `pins` snapshot."""
    return msgspec.msgpack.encode(sorted(specs, key=lambda spec: spec.name))
