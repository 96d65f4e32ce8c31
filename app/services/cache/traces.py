"""Traces of engines' requests to a node, as JSON lines for `larder replay`: fetched in parts, never held as a whole."""

import time
from collections.abc import AsyncIterator

import msgspec
import structlog

from app.errors import NodeRefused
from app.ingest.fleet import Fleet
from app.push.node_requests import NodeRequests
from app.services.fleet.targets import known_node
from dataplane.protocol.control.prefixes import Trace, TracePart
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS

MAX_PARTS = 4096


class _Line(msgspec.Struct):
    """Fields of a trace line that are inspected; all others are passed through."""

    timestamp: float
    hash_ids: list[int]
    input_length: int | None = None


_decoder = msgspec.json.Decoder(_Line)


class Traces:
    def __init__(self, node_requests: NodeRequests, fleet: Fleet) -> None:
        self._node_requests = node_requests
        self._fleet = fleet

    async def lines(self, name: str, since_s: float) -> AsyncIterator[bytes]:
        """Return an iterator over parts of whole lines. The first part is fetched before this returns, so that most
        errors are raised here.

        Raises NotFound, NodeUnreachable, NodeRefused; the iterator raises the same.
        """
        known_node(self._fleet, name)
        since = time.time() - since_s
        first = await self._part(name, since, 0)
        return self._replayable_parts(name, since, first)

    async def _replayable_parts(self, name: str, since: float, part: TracePart) -> AsyncIterator[bytes]:
        for _ in range(MAX_PARTS):
            yield replayable(part.lines)
            if not part.next:
                return
            after, part = part.next, await self._part(name, since, part.next)
            if 0 < part.next <= after:
                raise NodeRefused(f"{name} repeats itself: after part {after} of its trace it names {part.next}")
        raise NodeRefused(f"{name} sent {MAX_PARTS} parts of its trace without an end")

    async def _part(self, name: str, since: float, after: int) -> TracePart:
        node = known_node(self._fleet, name)
        return await self._node_requests.ask(node, Trace("", since, after), TracePart)


def replayable(lines: bytes) -> bytes:
    """Return the requests with the lengths that the replay format needs; malformed lines are dropped and logged."""
    requests: list[bytes] = []
    malformed = 0
    for line in lines.splitlines():
        if not line.strip():
            continue
        try:
            request = _decoder.decode(line)
        except (msgspec.DecodeError, ValueError, RecursionError):
            malformed += 1
            continue
        if request.input_length is None:
            tokens = len(request.hash_ids) * DEFAULT_CHUNK_TOKENS
            members = line.strip().removeprefix(b"{")
            line = b'{"input_length":%d,"output_length":0,%s' % (tokens, members)
        requests.append(line + b"\n")
    if malformed:
        structlog.get_logger().warning("trace.malformed", lines=malformed)
    return b"".join(requests)
