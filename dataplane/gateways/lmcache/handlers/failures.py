"""Answers to operations that fail.

The protocol has no errors. Each operation has an answer that its client treats as a miss or a refusal; without an
answer, the client would wait for a timeout of minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from dataplane.gateways.lmcache.wire.messages import (
    PoolReply,
    RetrievePrepared,
    SlotsReply,
    StorePrepared,
    encode,
)


class Reason(StrEnum):
    """Why an operation failed. Failures are counted by reason."""

    UNKNOWN_OPERATION = "unknown_operation"
    BAD_ARGUMENTS = "bad_arguments"
    UNKNOWN_INSTANCE = "unknown_instance"
    """The worker never registered, unregistered, or is gone."""
    UNKNOWN_TRANSFER = "unknown_transfer"
    """There is nothing to commit: the transfer was never prepared, or it took too long."""
    NOT_CACHED = "not_cached"
    """A block that the client wants to read is not, or no longer, in the cache."""
    REFUSED = "refused"
    """The core refused the operation; see the refusals by tenant and reason."""
    UNSUPPORTED = "unsupported"
    """The node cannot serve this operation or kind of memory."""
    PICKLED = "pickled"
    """The request has bytes that would have to be unpickled."""
    COPY_FAILED = "copy_failed"
    NOT_ALLOWED = "not_allowed"
    INTERNAL = "internal"
    """This node has a fault; see the log."""


NOTHING_PREPARED = encode(StorePrepared(SlotsReply()))
"""Tell the client that there is no room. The client reports the store as failed."""
NOTHING_TO_STORE = encode(StorePrepared(SlotsReply(slots=[], chunk_indices=[])))
NOTHING_TO_READ = encode(RetrievePrepared(success=False, data=b"", context=SlotsReply()))
NO_POOL = encode(PoolReply())
"""Tell the client that there is no shared memory. The client falls back to another transfer mode, whose requests get
regular refusals."""
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
        # Not served. Clients take a missing result of some of these as "not yet", and would ask again forever.
        "query_prefetch_lookup_hits": ZERO,
        "cb_store_pre_computed": NOT_COPIED,
        "cb_lookup_pre_computed": encode([]),
        "cb_retrieve_pre_computed": NOT_COPIED,
        "cb_store_final": NOT_COPIED,
        "cb_lookup_pre_computed_v2": encode([]),
        "cb_retrieve_pre_computed_v2": NOT_COPIED,
        "cb_retrieve_pre_computed_v3": NOT_COPIED,
        "cb_unified_lookup": encode({"prefix_coverage_tokens": 0, "non_prefix_segments": []}),
        "cb_protocol_handshake": encode([0, False]),
        "p2p_lookup_and_lock": ZERO,
    }
)
"""Failure answers by operation. Failure answers of all other operations have no result frame."""


class OperationFailed(Exception):
    """An operation failed. Failures are counted by `reason`; the message goes to the log."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
