"""The operations of the protocol, with their numbers, arguments and failure answers, and how requests are decoded.

Releases renumbered the operations, so each client speaks a dialect. The number of `get_chunk_size`, the first request
of every client, leaves one or two dialects (0.5.3 and 0.5.5 differ above 24). The number and form of the arguments
decide between two dialects, and among all dialects for queued requests that reach a restarted data plane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from dataplane.gateways.lmcache.wire.frames import RawRequest, number_or_name
from dataplane.gateways.lmcache.wire.messages import (
    FALSE,
    NO_POOL,
    NOT_COPIED,
    NOTHING_PREPARED,
    NOTHING_TO_READ,
    ZERO,
    EngineContext,
    Group,
    Hints,
    Key,
    Wrapper,
    encode,
)
from dataplane.gateways.lmcache.wire.tokens import CHUNK_TOKENS

Decode = Callable[[bytes], Any]


class BadArguments(Exception):
    """An operation has too many or too few arguments, or one of the wrong type. The message says which."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation of the protocol."""

    name: str
    numbers: tuple[int, int, int]
    """Number since release 0.5.0, 0.5.3 and 0.5.5; 0 for none."""
    arguments: tuple[Decode, ...]
    needed: int
    """Number of required arguments; the rest are optional."""
    failure: bytes | None
    """Result that the client treats as a miss or a refusal; None for an answer without a result frame."""
    served: bool

    def decode(self, frames: Sequence[bytes]) -> list[Any]:
        """Decode the arguments. Raise BadArguments on failure."""
        if not self.needed <= len(frames) <= len(self.arguments):
            most = len(self.arguments)
            expected = str(most) if most == self.needed else f"{self.needed} to {most}"
            raise BadArguments(f"expected {expected} arguments, got {len(frames)}")
        try:
            return [decode(frame) for decode, frame in zip(self.arguments, frames, strict=False)]
        except (msgspec.DecodeError, ValueError, TypeError, RecursionError, OverflowError) as error:
            raise BadArguments(str(error)[:200]) from None


def _operation(
    name: str,
    numbers: tuple[int, int, int],
    *arguments: Decode,
    needed: int | None = None,
    failure: bytes | None = None,
    served: bool = True,
) -> Operation:
    return Operation(name, numbers, arguments, len(arguments) if needed is None else needed, failure, served)


def _decoder(kind: Any) -> Decode:
    return msgspec.msgpack.Decoder(kind, ext_hook=_wrapper).decode


def _wrapper(code: int, data: memoryview) -> Any:
    if code != 1:
        raise ValueError(f"expected extension 1, got {code}")
    return Wrapper(bytes(data))


_KEY, _INT, _TEXT, _BYTES = _decoder(Key), _decoder(int), _decoder(str), _decoder(bytes)
_BLOCKS, _FLAG, _ANY = _decoder(list[list[int]]), _decoder(bool | int), _decoder(msgspec.Raw)
_WRAPPERS, _HINTS, _GROUPS = _decoder(list[Wrapper]), _decoder(Hints | None), _decoder(list[Group])
_CONTEXT, _SECONDS, _INSTANCE = _decoder(EngineContext), _decoder(float), _decoder(int | None)
_OBJECTS, _RANGES = _decoder(list[msgspec.Raw]), _decoder(list[tuple[int, int]])
_COPY = (_KEY, _INT, _BLOCKS, _BYTES)
_Q_CACHE = (_INT, _ANY, _TEXT, _INT, _TEXT, _ANY, _ANY)
_NOTHING = encode([])
_MISS = encode({"prefix_coverage_tokens": 0, "non_prefix_segments": []})
_NO_EVENTS = encode({"enabled": False, "incarnation": 0, "next_cursor": 0, "lost": False, "events": []})
_NO_MODULE = encode({"success": False, "payload": b"", "error": "this server has no modules"})
_unserved = partial(_operation, served=False)
_NO_NUMBER = (0, 0, 0)
"""Numbers of an operation that clients call by name."""

OPERATIONS = (
    _operation("register_kv_cache", (1, 1, 1), _INT, _WRAPPERS, _TEXT, _INT, _TEXT, _HINTS, _GROUPS),
    _operation("unregister_kv_cache", (2, 2, 2), _INT),
    _unserved("register_q_cache", (0, 3, 3), *_Q_CACHE),
    _operation("unregister_q_cache", (0, 4, 4), _INT),
    _unserved("store_q", (0, 5, 5), *_COPY, failure=NOT_COPIED),
    _operation("store", (3, 6, 6), *_COPY, failure=NOT_COPIED),
    _operation("retrieve", (4, 7, 7), *_COPY, _INT, needed=4, failure=NOT_COPIED),
    _operation("lookup", (5, 8, 8), _KEY, _INT, needed=1),
    _operation("query_prefetch_status", (6, 9, 9), _TEXT, failure=ZERO),
    _operation("wait_prefetch_status", (7, 10, 10), _TEXT, _SECONDS, failure=ZERO),
    _operation("free_lookup_locks", (9, 12, 12), _KEY, _INT, _RANGES, needed=1),
    _operation("end_session", (10, 13, 13), _TEXT),
    _operation("register_kv_cache_engine_driven_context", (11, 14, 14), _CONTEXT, failure=NO_POOL),
    _operation("unregister_kv_cache_engine_driven_context", (12, 15, 15), _INT),
    _operation("prepare_store", (13, 16, 16), _KEY, _INT, _BLOCKS, needed=2, failure=NOTHING_PREPARED),
    _operation("commit_store", (14, 17, 17), _KEY, _INT, _BYTES, failure=FALSE),
    _operation("prepare_retrieve", (15, 18, 18), _KEY, _INT, failure=NOTHING_TO_READ),
    _operation("commit_retrieve", (16, 19, 19), _KEY, _INT, failure=FALSE),
    _operation("clear", (17, 20, 20), _FLAG, needed=0),
    _operation("get_chunk_size", (18, 21, 21)),
    # The client compares the answer with the blocks of its model, and ends with a message if they do not fit.
    _operation("negotiate_chunk_size", _NO_NUMBER, _INT, failure=encode(CHUNK_TOKENS)),
    _operation("ping", (19, 22, 22), _INSTANCE, needed=0, failure=FALSE),
    _operation("report_block_allocation", (20, 23, 23), _INT, _TEXT, _ANY),
    _operation("noop", (21, 24, 24)),
    _operation("get_experimental", (0, 40, 32), failure=_NOTHING),
    # Operations that this node does not serve. Releases reuse their numbers, so their arguments distinguish them from
    # each other and from served operations. Clients take a missing result of some as "not yet", and ask again forever.
    _unserved("query_prefetch_lookup_hits", (8, 11, 11), _TEXT, failure=ZERO),
    _unserved("cb_register_kv_cache", (22, 25, 0), _INT, _ANY, _TEXT, _INT),
    _unserved("cb_unregister_kv_cache", (23, 26, 0), _INT),
    _unserved("cb_store_pre_computed", (24, 27, 0), _KEY, _INT, _INT, _BYTES, failure=NOT_COPIED),
    _unserved("cb_lookup_pre_computed", (25, 28, 0), _KEY, failure=_NOTHING),
    _unserved("cb_retrieve_pre_computed", (26, 29, 27), _KEY, _ANY, _ANY, _INT, _BYTES, failure=NOT_COPIED),
    _unserved("cb_store_final", (27, 30, 0), _KEY, _INT, _INT, _BYTES, failure=NOT_COPIED),
    _unserved("cb_lookup_pre_computed_v2", (28, 31, 0), _KEY, failure=_NOTHING),
    _unserved("cb_retrieve_pre_computed_v2", (29, 32, 0), _KEY, _ANY, _INT, _INT, _BYTES, failure=NOT_COPIED),
    _unserved("cb_register_rope_v3", (30, 33, 0), _INT, _ANY, _INT, _FLAG, _ANY, _ANY, needed=4),
    _unserved("cb_unregister_rope_v3", (31, 34, 0), _INT),
    _unserved("cb_retrieve_pre_computed_v3", (32, 35, 0), _KEY, _ANY, _ANY, _INT, _BYTES, failure=NOT_COPIED),
    _unserved("cb_register_rope", (0, 0, 25), _INT, _ANY, _INT, _FLAG, _ANY, _ANY, _ANY, _TEXT, needed=6),
    _unserved("cb_unregister_rope", (0, 0, 26), _INT),
    _unserved("cb_unified_lookup", (33, 36, 28), _KEY, _INT, failure=_MISS),
    _unserved("cb_protocol_handshake", (0, 0, 33), _INT, failure=encode([0, False])),
    _unserved("p2p_lookup_and_lock", (34, 37, 29), _OBJECTS, _ANY, failure=ZERO),
    _unserved("p2p_query_lookup_results", (35, 38, 30), _INT),
    _unserved("p2p_unlock_objects", (36, 39, 31), _OBJECTS),
    _unserved("cb_reorder_plan", _NO_NUMBER, _KEY, _INT, _INT, failure=_NOTHING),
    # A subscription that only ends is begun again every second, and the client reports no events of its own meanwhile.
    _unserved("subscribe_kv_events", _NO_NUMBER, _INT, _TEXT, _INT, _INT, failure=_NO_EVENTS),
    _unserved("server_module_call", _NO_NUMBER, _ANY, failure=_NO_MODULE),
    _unserved("server_module_affinity_call", _NO_NUMBER, _ANY, failure=_NO_MODULE),
)
BY_NAME: Mapping[str, Operation] = MappingProxyType({operation.name: operation for operation in OPERATIONS})
_FIRST = BY_NAME["get_chunk_size"]
"""The first request of every client."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The operation numbers of some releases."""

    name: str
    operations: Mapping[int, Operation]


def _dialect(name: str, column: int) -> Dialect:
    numbered = {operation.numbers[column]: operation for operation in OPERATIONS if operation.numbers[column]}
    return Dialect(name, MappingProxyType(numbered))


DIALECT_050 = _dialect("0.5.0", 0)
"""Dialect of releases 0.5.0 to 0.5.2."""
DIALECT_053 = _dialect("0.5.3", 1)
"""Dialect of releases 0.5.3 and 0.5.4."""
DIALECT_055 = _dialect("0.5.5", 2)
"""Dialect of releases since 0.5.5."""
DIALECTS = (DIALECT_055, DIALECT_053, DIALECT_050)
"""Dialects in the order in which the gateway tries them."""


class DecodedRequest(NamedTuple):
    """The operation of a request, and its arguments or what is wrong with them."""

    operation: Operation | None
    """None if the operation is unknown."""
    arguments: list[Any]
    error: str | None
    """None if the arguments are valid."""


_UNKNOWN = DecodedRequest(None, [], None)


class RequestDecoder:
    """Decodes the requests of one client, and learns its dialect from them."""

    __slots__ = ("_dialects", "_introduced")

    def __init__(self) -> None:
        self._dialects: tuple[Dialect, ...] = DIALECTS
        """Dialects that the client may speak, likeliest first."""
        self._introduced = False
        """Whether the first request has narrowed the dialects."""

    @property
    def dialect(self) -> Dialect:
        """The likeliest dialect."""
        return self._dialects[0]

    def decode(self, request: RawRequest) -> DecodedRequest:
        """Decode a request."""
        name = number_or_name(request.operation)
        if name is None:
            return _UNKNOWN
        if isinstance(name, str):
            return _UNKNOWN if name not in BY_NAME else _decoded(BY_NAME[name], request.arguments)
        if not self._introduced:
            dialects = introduced_by(name, len(request.arguments))
            if dialects:
                self._dialects, self._introduced = dialects, True
        failed = _UNKNOWN
        for dialect in self._dialects:
            operation = dialect.operations.get(name)
            if operation is None or operation is failed.operation:
                continue
            decoded = _decoded(operation, request.arguments)
            if decoded.error is None:
                if dialect is not self._dialects[0]:
                    self._dialects = (dialect, *(other for other in self._dialects if other is not dialect))
                return decoded
            if failed.operation is None:
                failed = decoded
        return failed


def _decoded(operation: Operation, frames: list[bytes]) -> DecodedRequest:
    try:
        return DecodedRequest(operation, operation.decode(frames), None)
    except BadArguments as error:
        return DecodedRequest(operation, [], str(error))


def introduced_by(number: int, arguments: int) -> tuple[Dialect, ...]:
    """Return the dialects that a first request allows; empty if it rules out none."""
    if arguments:
        return ()
    return tuple(dialect for dialect in DIALECTS if dialect.operations.get(number) is _FIRST)
