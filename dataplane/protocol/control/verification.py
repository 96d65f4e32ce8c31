"""Verification of blocks, and digests of the memory of engines."""

import msgspec

from dataplane.protocol.control.scopes import Scope
from dataplane.protocol.message_bases import ReplyOfNode, RequestToNode


class DigestEngine(RequestToNode, tag="digest_engine"):
    """Request the MD5 of blocks in an engine's own memory, to check that a load restored the right bytes. Only engines
    for which this node copies can be read. Answered with `EngineDigests` when the blocks have been read."""

    gateway: str
    instance: int
    """Instance number that the engine uses for itself."""
    blocks: list[int]
    """Block numbers of the engine."""
    chunk_blocks: int
    """Number of blocks that make one digest."""
    layerwise: bool = False
    """True: one list of digests for each layer; False: one list for all layers together."""


class Verify(RequestToNode, tag="verify"):
    """Verify blocks against their checksums in the background; corrupt blocks are dropped. Answered with `Verified`."""

    scope: Scope = Scope()
    """Without any field: all blocks. `keys` selects only the blocks of those keys, not blocks stored after them."""


class Verification(RequestToNode, tag="verification"):
    """Ask for the progress of a verification. Answered with `Verified`."""

    number: int


class EngineDigests(ReplyOfNode, tag="engine_digests"):
    digests: list[list[str]]
    """MD5 digests in hex."""


class VerificationState(msgspec.Struct):
    """Progress of a verification."""

    number: int
    """Number of the verification, as in the event `verification.ended`."""
    blocks: int
    """Blocks that the verification started with."""
    checked: int
    """Blocks compared with their checksums, including corrupt ones."""
    corrupt: int
    without_checksum: int
    gone: int
    """Blocks that were evicted or invalidated during the verification."""
    unread: int
    """Blocks not read, because they are too large to read without delaying engines or the machine refused memory."""
    started_at: float
    ended_at: float | None
    tenant: str | None = None
    """Salt of the tenant whose blocks are verified; None for all tenants, and from nodes of older releases."""


class Verified(ReplyOfNode, tag="verified"):
    state: VerificationState
