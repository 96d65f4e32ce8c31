"""uvicorn's HTTP protocol with time and size limits, and with problem details for bytes that are not an HTTP request.
uvicorn would answer plain text, or read without limit.

The server closes a connection that sends no request or whose body arrives too slowly, because the connection holds a
descriptor and the received part of the body holds memory. It waits for the answer to a complete request without a time
limit.
"""

import re
from asyncio import TimerHandle
from collections.abc import Iterable
from typing import Any, ClassVar, NoReturn
from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http.middleware.connections import ConnectionLimiter
from app.http.problems import MEDIA_TYPE, encode, problem
from dataplane.base.units import format_size

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of the path, the query and the headers together."""
HEAD_S = 10.0
"""Seconds in which the head of a request must arrive, counted from the connection or from the first byte of the
head."""
BODY_S = 30.0
BODY_BYTES_PER_S = 16_384
"""Minimum rate: in each period of BODY_S, a body that is incomplete must progress by this many bytes per second."""
BODY_MAX_S = 600.0
"""Seconds after which the whole body must have arrived, whatever its rate."""
_REASONS = {
    400: "Bad Request",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
}


TOO_SLOW = "body_too_slow"
"""Key in the state of a request which says that the server stopped waiting for its body."""
SLOW_BODY = (
    f"expected the body within {BODY_S:g} s, or {format_size(BODY_BYTES_PER_S)} of it for every second, and all of it "
    f"within {BODY_MAX_S:g} s"
)


_ABSOLUTE = re.compile(rb"https?://([^/?#]+)([^#]*)(?:#.*)?", re.IGNORECASE | re.DOTALL)
"""The absolute form of a request target (RFC 9112 §3.2.2): the authority, then the path and the query."""


class HeadTooLarge(Exception):
    """The head of a request is larger than MAX_HEAD_BYTES."""


class UnsupportedRequest(Exception):
    """A well-formed request of a form that Larder does not serve. The text becomes the detail of the problem."""


class ProblemProtocol(HttpToolsProtocol):
    """uvicorn's protocol with problem details for invalid requests, size limits for the head, and time limits for the
    head and the body."""

    _doors: ClassVar[ConnectionLimiter]
    """Limits on connections; `protocol_of` sets them."""

    _head_bytes = 0
    _heads = 0
    _in_head = True
    _unended_bytes = 0
    _too_large = False
    _detail = "the bytes are not an HTTP request"
    _begun = False
    """Part of the expected head has arrived."""
    _ended = 0
    """Number of requests that arrived completely."""
    _timer: TimerHandle | None = None
    _peer = ""
    _admitted = False
    _body_bytes = 0
    """Bytes of the body in the current measuring period."""
    _body_total = 0
    """Bytes of the bodies of all requests on the connection."""
    _body_s = 0.0
    """Seconds that remain for the body."""

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
        cycle: Any = self.cycle  # None before the first request, although uvicorn declares it otherwise
        answering = cycle is not None and not cycle.response_complete
        if answering or self.flow.read_paused:  # the server makes the client wait
            self._await(HEAD_S)
        else:
            if self._begun:
                self._doors.end("slow_head", self._peer)
            self.transport.close()

    def _waited_for_body(self) -> None:
        cycle = self.cycle
        if self.flow.read_paused or cycle.waiting_for_100_continue:  # the server makes the client wait
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
            self._await(HEAD_S)  # counted from the first byte: further bytes do not extend it

    def _take(self, data: bytes) -> None:
        before = self._heads, self._ended, self._body_total
        super().data_received(data)
        if (self._heads, self._ended, self._body_total) != before:
            self._unended_bytes = 0
            return
        self._unended_bytes += len(data)  # the parser reports a header or a trailer only when complete
        if self._unended_bytes > MAX_HEAD_BYTES and not self._too_large and not self.transport.is_closing():
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
        if self._in_head:  # a field of the trailer section may be discarded (RFC 9110 §6.5.1)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._check_target()
        self._check_upgrade()
        self._in_head = self._begun = False
        self._heads += 1
        self._await_nothing()
        self._body_s = BODY_MAX_S
        super().on_headers_complete()
        if self.parser.should_upgrade():  # the parser drops all bytes after such a request
            self.cycle.keep_alive = False

    def _check_target(self) -> None:
        """Split a target in absolute form into a path and a `Host` header: its authority replaces a received `Host`
        (RFC 9112 §3.2.2). Raises UnsupportedRequest for a target that is neither a path nor in absolute form."""
        connect = self.parser.get_method() == b"CONNECT"
        if self.url.startswith(b"/") and not connect:
            return
        absolute = _ABSOLUTE.fullmatch(self.url)
        if absolute is None or connect:
            got = self.url[:80].decode("latin-1")
            self._refuse(
                f"expected a path or an http:// or https:// URL as request target, and no CONNECT, got {got!r}"
            )
        authority, self.url = absolute[1], absolute[2]
        if not self.url.startswith(b"/"):
            self.url = b"/" + self.url
        if sum(name == b"host" for name, _ in self.headers) == 1:  # `stack` rejects any other number of them
            self.headers[:] = [
                (name, authority if name == b"host" else value) for name, value in self.headers
            ]

    def _check_upgrade(self) -> None:
        """Raise UnsupportedRequest for a request with `Upgrade` and a body: the parser would read the body as a
        request."""
        if self.parser.should_upgrade() and any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" \t0"))
            for name, value in self.headers
        ):
            self._refuse("expected a request without Upgrade, or one without a body")

    def _refuse(self, detail: str) -> NoReturn:
        self._detail = detail
        raise UnsupportedRequest(detail)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._body_total += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True
        self._ended += 1
        self._await_nothing()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._too_large = True
            raise HeadTooLarge

    def send_400_response(self, msg: str) -> None:
        cycle: Any = self.cycle  # None before the first request, although uvicorn declares it otherwise
        if cycle is not None and not cycle.response_complete and (cycle.response_started or self._in_head):
            # The client would take this problem for the answer to another request, or for a part of that answer.
            self.transport.close()
            return
        code, detail = "malformed", self._detail
        if self._too_large:
            code, detail = "head-too-large", f"expected at most {format_size(MAX_HEAD_BYTES)} beside the body"
        self._answer(code, detail, [])

    def _answer(self, code: str, detail: str, headers: Iterable[str]) -> None:
        """Send a problem that answers no parsed request, and close the connection."""
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


def protocol_of(doors: ConnectionLimiter) -> type[ProblemProtocol]:
    """Return the protocol class of a server with these limits; uvicorn creates one instance per connection."""

    class Bounded(ProblemProtocol):
        _doors = doors

    return Bounded
