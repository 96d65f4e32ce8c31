"""Framing and operation numbers of the protocol, for clients of several releases.

    request    [uid] [operation] [argument] ...      one MessagePack value per frame
    answer     [uid] [operation] [result]            uid and operation of the request; no result frame for None

An operation is a number or its name. Releases renumbered the operations, so each connection has a dialect. The number
of `get_chunk_size`, the first request of every client, leaves one or two dialects (0.5.3 and 0.5.5 differ above 24).
The number and form of the arguments decide between two dialects, and among all dialects for queued requests that reach
a restarted data plane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import msgspec

_SERVED_053 = {
    1: "register_kv_cache",
    2: "unregister_kv_cache",
    3: "register_q_cache",
    4: "unregister_q_cache",
    5: "store_q",
    6: "store",
    7: "retrieve",
    8: "lookup",
    9: "query_prefetch_status",
    10: "wait_prefetch_status",
    11: "query_prefetch_lookup_hits",
    12: "free_lookup_locks",
    13: "end_session",
    14: "register_kv_cache_engine_driven_context",
    15: "unregister_kv_cache_engine_driven_context",
    16: "prepare_store",
    17: "commit_store",
    18: "prepare_retrieve",
    19: "commit_retrieve",
    20: "clear",
    21: "get_chunk_size",
    22: "ping",
    23: "report_block_allocation",
    24: "noop",
}
_SERVED_050 = {
    1: "register_kv_cache",
    2: "unregister_kv_cache",
    3: "store",
    4: "retrieve",
    5: "lookup",
    6: "query_prefetch_status",
    7: "wait_prefetch_status",
    8: "query_prefetch_lookup_hits",
    9: "free_lookup_locks",
    10: "end_session",
    11: "register_kv_cache_engine_driven_context",
    12: "unregister_kv_cache_engine_driven_context",
    13: "prepare_store",
    14: "commit_store",
    15: "prepare_retrieve",
    16: "commit_retrieve",
    17: "clear",
    18: "get_chunk_size",
    19: "ping",
    20: "report_block_allocation",
    21: "noop",
}
_PEERS = ("p2p_lookup_and_lock", "p2p_query_lookup_results", "p2p_unlock_objects")
_BLEND_050 = (
    "cb_register_kv_cache",
    "cb_unregister_kv_cache",
    "cb_store_pre_computed",
    "cb_lookup_pre_computed",
    "cb_retrieve_pre_computed",
    "cb_store_final",
    "cb_lookup_pre_computed_v2",
    "cb_retrieve_pre_computed_v2",
    "cb_register_rope_v3",
    "cb_unregister_rope_v3",
    "cb_retrieve_pre_computed_v3",
    "cb_unified_lookup",
)
_BLEND_055 = ("cb_register_rope", "cb_unregister_rope", "cb_retrieve_pre_computed", "cb_unified_lookup")
_NUMBERS_050 = _SERVED_050 | dict(enumerate((*_BLEND_050, *_PEERS), 22))
_NUMBERS_053 = _SERVED_053 | dict(enumerate((*_BLEND_050, *_PEERS, "get_experimental"), 25))
_NUMBERS_055 = _SERVED_053 | dict(
    enumerate((*_BLEND_055, *_PEERS, "get_experimental", "cb_protocol_handshake"), 25)
)
MAX_HEAD_BYTES = 1024
"""Maximum bytes of a uid, and of an operation."""
MAX_ARGUMENTS = 16
"""Maximum number of frames that are read; no operation has that many."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The operation numbers of some releases."""

    name: str
    operations: Mapping[int, str]
    chunk_size_number: int
    """Number of `get_chunk_size`, the first request of a connection."""


DIALECT_055 = Dialect("0.5.5", MappingProxyType(_NUMBERS_055), 21)
"""Dialect of releases since 0.5.5."""
DIALECT_053 = Dialect("0.5.3", MappingProxyType(_NUMBERS_053), 21)
"""Dialect of releases 0.5.3 and 0.5.4."""
DIALECT_050 = Dialect("0.5.0", MappingProxyType(_NUMBERS_050), 18)
"""Dialect of releases 0.5.0 to 0.5.2."""
DIALECTS = (DIALECT_055, DIALECT_053, DIALECT_050)
"""Dialects in the order in which the gateway tries them."""


class RawRequest(NamedTuple):
    """The frames of one request before decoding."""

    uid: bytes
    operation: bytes
    arguments: list[bytes]

    def answer(self, result: bytes | None) -> list[bytes]:
        """Return the frames of the answer."""
        if result is None:
            return [self.uid, self.operation]
        return [self.uid, self.operation, result]


def split(frames: list[bytes]) -> RawRequest | None:
    """Return the request in the frames of a message, which has at least one frame.

    Return None for a message that wants no answer: one about a stream, which this node does not have, or one with an
    invalid uid or operation.
    """
    if len(frames[0]) > MAX_HEAD_BYTES:
        return None  # the answer would repeat it
    if len(frames) == 1:
        return RawRequest(frames[0], b"", [])
    if not frames[1] or len(frames[1]) > MAX_HEAD_BYTES:
        return None
    return RawRequest(frames[0], frames[1], frames[2:])


def number_or_name(operation: bytes) -> int | str | None:
    """Return the number or name in an operation frame; None if the frame contains neither."""
    if len(operation) == 1 and operation[0] < 0x80:  # the usual case
        return operation[0]
    try:
        value: object = msgspec.msgpack.decode(operation)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return value


def introduced_by(number: int | str, arguments: int) -> tuple[Dialect, ...]:
    """Return the dialects that a first request allows; empty if it rules out none."""
    if arguments:
        return ()
    return tuple(dialect for dialect in DIALECTS if dialect.chunk_size_number == number)
