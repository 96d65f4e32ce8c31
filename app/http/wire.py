"""What is not HTTP at all, or has no end, gets a problem too; the server would answer plain text, or read on.

A connection that sends no request ends, and so does one whose body comes too slowly: it holds a descriptor, and what
the body has so far is held in memory. A request that is whole is left alone, however long its answer takes.
"""

from asyncio import TimerHandle
from collections.abc import Iterable
from typing import Any, ClassVar
from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http.connections import Connections
from app.http.problems import MEDIA_TYPE, encode, problem
from dataplane.protocol.units import format_size

MAX_HEAD_BYTES = 64 * 1024
"""Of the path, the query and the headers together."""
HEAD_S = 10.0
"""Seconds in which the head of a request must have come, from the connection or from its first byte on."""
BODY_S = 30.0
BODY_BYTES_PER_S = 16_384
"""A body must be there, or in each of these times so many bytes of it for every second."""
BODY_MOST_S = 600.0
"""Seconds after which a body must be there, whatever came of it."""
_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


TOO_SLOW = "body_too_slow"
"""Where the state of a request says that nobody waits for its body any more."""
SLOW_BODY = (
    f"expected the body within {BODY_S:g} s, or {format_size(BODY_BYTES_PER_S)} of it for every second, and all of it "
    f"within {BODY_MOST_S:g} s"
)


class HeadTooLarge(Exception):
    """More came before the body than anybody needs."""


class ProblemProtocol(HttpToolsProtocol):
    """uvicorn's protocol with our answer to bytes that are no request, bounds on what comes before a body, and an end
    of waiting for what does not come."""

    _doors: ClassVar[Connections]
    """`protocol_of` gives them."""

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
    _peer = ""
    _admitted = False
    _body_bytes = 0
    """In the time that is measured now."""
    _body_s = 0.0
    """That the body may take yet."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        refusal = self._doors.admit(self._peer, len(self.connections))
        self._admitted = not refusal
        if refusal:
            self.connections.discard(self)
            self._answer("too-many-connections", refusal, ["retry-after: 1"])
        else:
            self._await(HEAD_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await_nothing()
        if self._admitted:
            self._admitted = False
            self._doors.leave(self._peer)
        super().connection_lost(exc)

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
        if not self._in_head:
            self._waited_for_body()
            return
        cycle: Any = self.cycle  # None before the first request, whatever uvicorn declares
        answering = cycle is not None and not cycle.response_complete
        if answering or self.flow.read_paused:  # it is us who let the other side wait
            self._await(HEAD_S)
        else:
            if self._begun:
                self._doors.end("slow_head", self._peer)
            self.transport.close()

    def _waited_for_body(self) -> None:
        cycle = self.cycle
        if self.flow.read_paused or cycle.waiting_for_100_continue:  # it is us who let the other side wait
            self._await_body()
            return
        self._body_s -= BODY_S
        if self._body_bytes >= BODY_S * BODY_BYTES_PER_S and self._body_s > 0:
            self._await_body()
            return
        self._doors.end("slow_body", self._peer)
        if cycle.response_started:
            self.transport.close()
            return
        cycle.scope["state"][TOO_SLOW] = True
        self._answer("body-too-slow", SLOW_BODY, [])

    def _await_body(self) -> None:
        self._body_bytes = 0
        self._await(BODY_S)

    def data_received(self, data: bytes) -> None:
        ended = self._ended
        self._take(data)
        if self.transport.is_closing():
            self._await_nothing()
        elif not self._in_head:
            if self._timer is None:
                self._await_body()
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
        self._await_nothing()
        self._body_s = BODY_MOST_S
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

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


def protocol_of(doors: Connections) -> type[ProblemProtocol]:
    """The protocol of a server that shares these; uvicorn makes one for each connection."""

    class Bounded(ProblemProtocol):
        _doors = doors

    return Bounded
