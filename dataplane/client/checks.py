"""Checks of the data plane's answers. An invalid answer raises ProtocolError, and none of it is used.

The engine's process depends on this: offsets become addresses, and an access to a wrong one raises a fatal signal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import numpy as np

from dataplane.client.memory import SharedMapping
from dataplane.protocol import engine as wire
from dataplane.protocol.codes import Code, ProtocolError, ReserveOutcome
from dataplane.protocol.layout import I64

Check = Callable[[wire.EngineReply], object]
Answer = TypeVar("Answer", bound=wire.EngineReply)

MAX_NUMBER = (1 << 32) - 1
MAX_DEVICE_BYTES = 1 << 50


def fault(message: str) -> ProtocolError:
    """Return the error for a protocol violation by the data plane."""
    return ProtocolError(Code.MALFORMED, message)


def answers(kind: type[Answer]) -> Check:
    """Return a check that an answer is of a type, or a refusal."""

    def check(answer: wire.EngineReply) -> None:
        _unless_refused(kind, answer)

    return check


def _unless_refused(kind: type[Answer], answer: wire.EngineReply) -> Answer | None:
    """Return the answer; None for a refusal. Raises ProtocolError for another type."""
    if isinstance(answer, wire.Refused):
        return None
    if not isinstance(answer, kind):
        raise fault(f"answered {type(answer).__name__.lower()} where {kind.__name__.lower()} was expected")
    return answer


def attached(answer: wire.Attached, spaces: int) -> None:
    """Check that the answer has one number for each requested space."""
    if len(answer.spaces) != spaces or not all(1 <= number <= MAX_NUMBER for number in answer.spaces):
        raise fault(f"attached: expected {spaces} space numbers, got {answer.spaces[:16]}")


def reserved(keys: int) -> Check:
    """Return a check that `Reserved` has one outcome, segment and offset for each key."""

    def check(answer: wire.EngineReply) -> None:
        reply = _unless_refused(wire.Reserved, answer)
        if reply is None:
            return
        lengths = len(reply.outcomes), len(reply.segments), len(reply.offsets)
        if lengths != (keys, 4 * keys, 8 * keys):
            raise fault(f"reserved: outcomes, segments and offsets of {lengths} bytes for {keys} keys")
        if reply.reservation < 0 or (not reply.reservation and ReserveOutcome.WRITE in reply.outcomes):
            raise fault(f"reserved: blocks to write in reservation {reply.reservation}")

    return check


def ranges(segments: Mapping[int, SharedMapping], offsets_by_segment: Mapping[int, Sequence[int]], nbytes: int) -> None:
    """Check that blocks to write, given as offsets by segment, lie within mapped, writable segments."""
    for number, offsets in offsets_by_segment.items():
        segment = segments[number]
        if not segment.writable:
            raise fault(f"reserved: segment {number} is to be written and was granted read-only")
        furthest = max(offsets)
        if furthest + nbytes > segment.nbytes:
            raise fault(f"reserved: {nbytes} bytes at {furthest} of segment {number} of {segment.nbytes} bytes")


def leased(keys: int, max_blocks: int) -> Check:
    """Return a check that `Leased` has at most as many blocks as were requested, all of them in the index."""

    def check(answer: wire.EngineReply) -> None:
        reply = _unless_refused(wire.Leased, answer)
        if reply is None:
            return
        if len(reply.descriptors) % 4 or len(reply.descriptors) > 4 * keys:
            raise fault(f"leased: {len(reply.descriptors)} bytes of descriptors for {keys} keys")
        if len(reply.descriptors) and int(descriptors_of(reply).max()) >= max_blocks:
            raise fault(f"leased: a descriptor beyond the {max_blocks} of the index")

    return check


def descriptors_of(answer: wire.Leased) -> I64:
    """Return the descriptors of a checked answer."""
    return np.frombuffer(answer.descriptors, np.uint32).astype(np.int64)


def committed(answer: wire.EngineReply) -> None:
    """Check that the count in `BlocksCommitted` is possible."""
    reply = _unless_refused(wire.BlocksCommitted, answer)
    if reply is not None and not 0 <= reply.blocks <= wire.MAX_KEYS_PER_REQUEST:
        raise fault(f"committed: expected 0 to {wire.MAX_KEYS_PER_REQUEST} blocks, got {reply.blocks}")


def reported(answer: wire.EngineReply) -> None:
    """Check that the count in `Reported` is possible."""
    reply = _unless_refused(wire.Reported, answer)
    if reply is not None and not 0 <= reply.dropped <= wire.MAX_KEYS_PER_REQUEST:
        raise fault(f"reported: expected 0 to {wire.MAX_KEYS_PER_REQUEST} blocks, got {reply.dropped}")


def grants(granted: list[wire.SegmentGrant], fds: int) -> None:
    """Check that each granted segment has a file descriptor and a valid number."""
    if len(granted) != fds:
        raise fault(f"{len(granted)} segments were granted and {fds} file descriptors came")
    for grant in granted:
        if not 1 <= grant.segment <= MAX_NUMBER:
            raise fault(f"granted segment {grant.segment}")


def gpu_copies_mapped(answer: wire.GpuCopiesMapped, requested: Collection[int], fds: int, *, table: bool) -> None:
    """Check that a table came only if requested, and that granted extents were requested and are plausible."""
    if fds != table:
        raise fault(f"GPU copies mapped: expected {int(table)} file descriptors, got {fds}")
    numbers = [grant.extent for grant in answer.grants]
    if len(numbers) != len(set(numbers)) or not set(numbers) <= set(requested):
        raise fault(f"GPU copies mapped: extents {numbers[:16]} where {sorted(requested)[:16]} were asked for")
    for grant in answer.grants:
        if len(grant.handle) != wire.HANDLE_BYTES:
            raise fault(f"GPU copies mapped: a handle of {len(grant.handle)} bytes")
        if not (0 <= grant.offset <= MAX_DEVICE_BYTES and 1 <= grant.nbytes <= MAX_DEVICE_BYTES):
            raise fault(
                f"GPU copies mapped: {grant.nbytes} bytes at {grant.offset} of an allocation (extent {grant.extent})"
            )
