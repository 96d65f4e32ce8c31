"""Framing and operation numbers of the wire: what stands where in a message, for the clients of several releases.

    request    [uid] [operation] [argument] ...      one MessagePack value a frame
    answer     [uid] [operation] [result]            uid and operation as they came; no result frame for None

An operation is a number or its name. Numbers were dealt anew between releases, so each connection has a dialect: the
first thing that clients say is `get_chunk_size`, whose number tells. A client whose queued requests reach a data plane
that was started again says no such thing: then the number and form of the arguments decide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import msgspec

_NUMBERS_053 = {
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
    32: "get_experimental",
}
_NUMBERS_050 = {
    1: "register_kv_cache",
    2: "unregister_kv_cache",
    3: "store",
    4: "retrieve",
    5: "lookup",
    6: "query_prefetch_status",
    7: "wait_prefetch_status",
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
MAX_HEAD_BYTES = 1024
"""Of a uid and of an operation."""
MAX_ARGUMENTS = 16
"""Frames that are looked at; no operation has so many."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The operation numbers of some releases."""

    name: str
    operations: Mapping[int, str]
    chunk_size_number: int
    """What `get_chunk_size` is called: the first request of a connection."""


DIALECT_053 = Dialect("0.5.3", MappingProxyType(_NUMBERS_053), 21)
"""Since 0.5.3."""
DIALECT_050 = Dialect("0.5.0", MappingProxyType(_NUMBERS_050), 18)
DIALECTS = (DIALECT_053, DIALECT_050)
"""The one that is taken for granted first."""


class Request(NamedTuple):
    """One request, not yet understood."""

    uid: bytes
    operation: bytes
    arguments: list[bytes]

    def answer(self, result: bytes | None) -> list[bytes]:
        """The frames of its answer."""
        if result is None:
            return [self.uid, self.operation]
        return [self.uid, self.operation, result]


def split(frames: list[bytes]) -> Request | None:
    """The request in the frames of a message, of which there is one at least. None for what wants no answer: a word
    about a stream, of which this node has none, or a uid or operation that is none."""
    if len(frames[0]) > MAX_HEAD_BYTES:
        return None  # it would be said back
    if len(frames) == 1:
        return Request(frames[0], b"", [])
    if not frames[1] or len(frames[1]) > MAX_HEAD_BYTES:
        return None
    return Request(frames[0], frames[1], frames[2:])


def number_or_name(operation: bytes) -> int | str | None:
    """What an operation frame says; None when it says nothing that can be an operation."""
    if len(operation) == 1 and operation[0] < 0x80:  # as almost always
        return operation[0]
    try:
        value: object = msgspec.msgpack.decode(operation)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    return value


def introduced_by(number: int | str, arguments: int) -> Dialect | None:
    """The dialect of a connection that begins with this request."""
    if arguments:
        return None
    return next((dialect for dialect in DIALECTS if dialect.chunk_size_number == number), None)
