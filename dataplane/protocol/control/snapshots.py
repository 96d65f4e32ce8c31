"""Snapshots of desired state, the bodies that they name, and a node's answers."""

from hashlib import sha256
from typing import Literal

import msgspec

from dataplane.protocol.bounded import Digest, Finite, Whole
from dataplane.protocol.message_bases import ReplyOfNode, RequestToNode
from dataplane.protocol.observed import Observed

SnapshotType = Literal["quotas", "pins", "policies", "tiers"]
SNAPSHOT_TYPES: tuple[SnapshotType, ...] = ("quotas", "pins", "policies", "tiers")
"""Types that the management plane pushes."""
MAX_SNAPSHOT_BYTES = 64 * 1024 * 1024


class Snapshot(msgspec.Struct, tag_field="op", tag="snapshot", forbid_unknown_fields=True):
    type: SnapshotType
    store: str
    """Identity of the database: generations of different databases cannot be compared."""
    generation: int
    nonce: str
    digest: str
    body: bytes
    traceparent: str = ""
    dry_run: bool = False
    """Validate and answer only: nothing is applied, remembered or published."""


class Bodies(RequestToNode, tag="bodies"):
    """Answer to `NeedBodies`, possibly in parts; `last` marks the final part."""

    bodies: dict[str, bytes]
    last: bool = True


class Fault(msgspec.Struct, frozen=True):
    """One fault in a snapshot."""

    path: str
    """e.g. `quotas[3].limit_bytes`."""
    code: str
    """Name of a `Code`, in lower case."""
    message: str


class Ack(msgspec.Struct, tag_field="op", tag="ack"):
    type: SnapshotType
    generation: Whole
    nonce: str
    digest: Digest
    applied_s: Finite
    """Seconds the node spent on validating and applying."""


class Nack(msgspec.Struct, tag_field="op", tag="nack"):
    type: SnapshotType
    generation: int
    nonce: str
    errors: list[Fault]
    observed: Observed | None
    """The last good state, which stays in force."""


class NeedBodies(ReplyOfNode, tag="need_bodies"):
    digests: list[str]


def digest_of(body: bytes) -> str:
    """Return the SHA-256 in hex, by which snapshots and pin bodies are named."""
    return sha256(body).hexdigest()
