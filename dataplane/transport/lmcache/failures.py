"""What is answered when an operation fails. The wire has no errors: each operation has an answer that its client takes
for a miss or a refusal, where silence would hold it up until its time-out of minutes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from dataplane.transport.lmcache.messages import Pool, RetrievePrepared, Slots, StorePrepared, encode


class Reason(StrEnum):
    """Why an operation failed: what its failures are counted by."""

    UNKNOWN_OPERATION = "unknown_operation"
    BAD_ARGUMENTS = "bad_arguments"
    UNKNOWN_INSTANCE = "unknown_instance"
    """The worker never registered, unregistered, or is gone."""
    UNKNOWN_TRANSFER = "unknown_transfer"
    """There is nothing to commit: it was never prepared, or took too long."""
    NOT_CACHED = "not_cached"
    """A block that was to be read is not there (any more)."""
    REFUSED = "refused"
    """The core refused: see the refusals by tenant and reason."""
    UNSUPPORTED = "unsupported"
    """Memory or a form of memory that this node cannot serve."""
    PICKLED = "pickled"
    """Bytes that would have to be unpickled."""
    COPY_FAILED = "copy_failed"
    NOT_ALLOWED = "not_allowed"
    INTERNAL = "internal"
    """A fault of this node; the log has it."""


NOTHING_PREPARED = encode(StorePrepared(Slots()))
"""To the client: no room; it reports the store as failed."""
NOTHING_TO_STORE = encode(StorePrepared(Slots(slots=[], chunk_indices=[])))
NOTHING_TO_READ = encode(RetrievePrepared(success=False, data=b"", context=Slots()))
NO_POOL = encode(Pool())
"""To the client: no shared memory; it falls back to a way that is refused politely."""
NOT_COPIED = encode([b"", False])
FALSE = encode(False)
ZERO = encode(0)
YES = encode(True)

ANSWERS: Mapping[str, bytes | None] = MappingProxyType(
    {
        "query_prefetch_status": ZERO,
        "wait_prefetch_status": ZERO,
        "register_kv_cache_engine_driven_context": NO_POOL,
        "prepare_store": NOTHING_PREPARED,
        "commit_store": FALSE,
        "prepare_retrieve": NOTHING_TO_READ,
        "commit_retrieve": FALSE,
        "store": NOT_COPIED,
        "retrieve": NOT_COPIED,
        "store_q": NOT_COPIED,
        "ping": FALSE,
        "get_experimental": encode([]),
    }
)
"""By operation; of all others the result frame is left out."""


class Failed(Exception):
    """An operation that fails for a reason that is counted; the sentence is for the log."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
