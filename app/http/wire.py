"""What is not HTTP at all, or has no end, gets a problem too; the server would answer plain text, or read on.

Each connection is a descriptor, and whoever can reach the port can open some: one that sends no request ends, and there
are never so many that the process has no descriptor left for its database and its nodes. A request that is whole is
left alone, however long its answer takes.
"""

import resource
from asyncio import TimerHandle
from collections.abc import Iterable
from time import monotonic
from typing import Any, ClassVar
from uuid import uuid4

import structlog
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http.problems import MEDIA_TYPE, encode, problem
from dataplane.protocol.units import format_size

MAX_HEAD_BYTES = 64 * 1024
"""Of the path, the query and the headers together."""
HEAD_S = 10.0
"""Seconds in which the head of a request must have come, from the connection or from its first byte on."""
BODY_S = 30.0
"""Seconds without a byte of a body after which nobody waits for the rest."""
MOST_CONNECTIONS = 16_384
RESERVED_DESCRIPTORS = 512
"""For the database, the nodes, the data plane's memory, and files; half of all when there are few."""
TELL_EVERY_S = 60.0
_REASONS = {400: "Bad Request", 431: "Request Header Fields Too Large", 503: "Service Unavailable"}


def raise_descriptors() -> None:
    """Take as many descriptors as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def most_connections() -> int:
    """How many there may be at once."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return min(MOST_CONNECTIONS, soft - min(RESERVED_DESCRIPTORS, soft // 2))


class HeadTooLarge(Exception):
    """More came before the body than anybody needs."""


class ProblemProtocol(HttpToolsProtocol):
    """uvicorn's protocol with our answer to bytes that are no request, bounds on what comes before a body, and an end
    of waiting for what does not come."""

    _told_at: ClassVar[float] = -TELL_EVERY_S
    """When it was last told that there are too many."""

    _head_bytes = 0
    _heads = 0
    _in_head = True
    _unended_bytes = 0
    _too_large = False
    _begun = False
    """The head that is awaited has come in part."""
    _ended = 0
    """Requests that came whole."""
    _timer: TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        most = most_connections()
        if len(self.connections) > most:
            self._refuse(most)
        else:
            self._await(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await_nothing()
        super().connection_lost(exc)

    def _refuse(self, most: int) -> None:
        self.connections.discard(self)
        if monotonic() - ProblemProtocol._told_at >= TELL_EVERY_S:
            ProblemProtocol._told_at = monotonic()
            structlog.get_logger().warning("connections.refused", open=most, most=most)
        detail = f"expected at most {most} connections at once; try again later"
        self._answer("too-many-connections", detail, ["retry-after: 1"])

    def _await(self, seconds: float) -> None:
        self._await_nothing()
        self._timer = self.loop.call_later(seconds, self._waited)

    def _await_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _waited(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle  # None before the first request, whatever uvicorn declares
        answering = self._in_head and cycle is not None and not cycle.response_complete
        if answering or self.flow.read_paused:  # it is us who let the other side wait
            self._await(HEAD_S)
        else:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        ended = self._ended
        self._take(data)
        if self.transport.is_closing():
            self._await_nothing()
        elif not self._in_head:
            self._await(BODY_S)
        elif self._timer is None and (self._begun or self._ended == ended):
            self._await(HEAD_S)  # from the first byte on: more of them buy no more time

    def _take(self, data: bytes) -> None:
        before = self._heads if self._in_head else -1
        super().data_received(data)
        if not self._in_head or self._heads != before or self._too_large:
            return
        self._unended_bytes += len(data)  # the parser tells nothing of a header before it ends
        if self._unended_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._too_large = True
            self.send_400_response("")

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._begun = True
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(b": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = self._begun = False
        self._heads += 1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._unended_bytes = True, 0
        self._ended += 1
        self._await_nothing()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._too_large = True
            raise HeadTooLarge

    def send_400_response(self, msg: str) -> None:
        code, detail = "malformed", "the bytes are not an HTTP request"
        if self._too_large:
            code, detail = "head-too-large", f"expected at most {format_size(MAX_HEAD_BYTES)} before the body"
        self._answer(code, detail, [])

    def _answer(self, code: str, detail: str, headers: Iterable[str]) -> None:
        """A problem without a request; the connection ends."""
        request_id = uuid4().hex
        body = problem(code, detail, "", request_id)
        content = encode(body)
        head = (
            f"HTTP/1.1 {body.status} {_REASONS[body.status]}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(content)}\r\nx-request-id: {request_id}\r\n"
        )
        head += "".join(f"{header}\r\n" for header in headers)
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + content)
        self.transport.close()
