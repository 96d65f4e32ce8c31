"""uvicorn's HTTP protocol with time and size limits, and with problem details for bytes that are not an HTTP request.
uvicorn would answer plain text, or read without limit.

The server closes a connection whose request does not arrive in time, because the connection holds a descriptor and the
received part of the request holds memory. It waits for the answer to a complete request without a time limit, also if
the client has closed its sending side, and releases the request with its answer. No address gets more than half of the
connections.
"""

import re
from asyncio import TimerHandle
from http import HTTPStatus
from typing import Any, ClassVar, NoReturn
from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http.middleware.connections import ConnectionCounts
from app.http.problems import MEDIA_TYPE, encode, problem
from dataplane.base.units import format_size

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of the path, the query and the headers together."""
MAX_HEADERS = 100
"""Header and trailer fields of a request. Each takes some 200 bytes, however short it is."""
MAX_WAITING = 8
"""Requests that a connection may send ahead of answers."""
MAX_UNFINISHED_BYTES = 64 * 1024 * 1024
"""Bytes of the incomplete heads of all connections together."""
HEAD_S = 10.0
"""Seconds in which the head of a request must arrive, counted from the connection or from the first byte of the
head."""
BODY_S = 120.0
"""Seconds in which the body must arrive."""
IDLE_S = 75
"""Seconds that a connection stays open after an answer. Proxies close idle connections after 60 s. If the server closed
one first, it could do so while the next request arrives, and the proxy would answer 502."""
SENDS_NO_MORE = "sends_no_more"
"""Key of a request's state that is there once the client has closed its sending side."""
_ABSOLUTE = re.compile(rb"https?://([^/?#]+)([^#]*)(?:#.*)?", re.IGNORECASE | re.DOTALL)
"""The absolute form of a request target (RFC 9112 §3.2.2): the authority, then the path and the query."""
_TOO_LARGE = ("head-too-large", f"expected at most {format_size(MAX_HEAD_BYTES)} beside the body")
_TOO_MANY_HEADERS = ("head-too-large", f"expected at most {MAX_HEADERS} header fields")
_TOO_MANY_HEADS = (
    "too-many-connections",
    f"expected at most {format_size(MAX_UNFINISHED_BYTES)} of incomplete requests at once; try again later",
)
_TOO_MANY_WAITING = ("malformed", f"expected at most {MAX_WAITING} requests ahead of their answers")


class RequestRefused(Exception):
    """Ends the parser's work at a request that Larder does not serve."""


class ProblemProtocol(HttpToolsProtocol):
    """uvicorn's protocol with problem details for invalid requests, a size limit for the head, and time limits for the
    head and the body."""

    _counts: ClassVar[ConnectionCounts]
    """`protocol_of` sets them."""

    _problem = ("malformed", "the bytes are not an HTTP request")
    """Code and detail of the answer to bytes that the parser does not take."""
    _in_head = True
    _fields = 0
    """Header and trailer fields of the request that is read."""
    _unfinished_bytes = 0
    """Bytes of an incomplete head that the connection holds, as of the last data."""
    _unparsed_bytes = 0
    """Bytes since the parser last reported a whole head, a part of a body or an end: it reports a header or a trailer
    only when complete."""
    _timer: TimerHandle | None = None
    _address: str | None = None
    """Address with which the connection is counted."""
    _sends_no_more = False
    _answering: Any = None
    """The request that is answered now; `cycle` is the last one that arrived on the connection."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.timeout_keep_alive = IDLE_S
        address = self.client[0] if self.client else ""
        expected = self._counts.refuse(address, len(self.connections))
        if expected is None:
            self._address = address
            self._expect(HEAD_S)
            return
        self.connections.discard(self)
        self._answer("too-many-connections", f"{expected}; try again later", "retry-after: 1\r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self._count_unfinished(0)
        if self._address is not None:
            self._counts.closed(self._address)
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True  # uvicorn tells only the last request
            self._answering.message_event.set()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # after an error, uvicorn's timer would keep the last request for its time
        self.pipeline.clear()

    def eof_received(self) -> bool:  # type: ignore[override]  # uvicorn has its transport closed
        """Return whether the connection stays open for the answers to complete requests: a client that closes its
        sending side only says that no request follows (RFC 9112 §9.6), or it has left, which looks the same. A stream
        that was started ends. Other requests are marked, which `while_there` reads, because no event follows."""
        if self._is_idle() or self.cycle.more_body or self._answering.response_started:
            return False
        self.cycle.keep_alive = False
        self._sends_no_more = True
        self._answering.scope["state"][SENDS_NO_MORE] = True
        self._answering.message_event.set()
        return True

    def on_response_complete(self) -> None:
        answered = self._answering
        if self.scope is answered.scope:
            self.scope, self.headers, self.url = {}, [], b""  # type: ignore[typeddict-item]
        answered.scope, answered.body = {}, bytearray()  # an idle connection keeps them
        super().on_response_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answering = cycle
        if self._sends_no_more:
            cycle.scope["state"][SENDS_NO_MORE] = True
        super()._start_asgi_task(cycle, app)

    def _expect(self, seconds: float, reason: str = "") -> None:
        """Expect the next part of a request within this time. Otherwise close the connection, and count the reason."""
        self._expect_nothing()
        self._timer = self.loop.call_later(seconds, self._waited, seconds, reason)

    def _expect_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _waited(self, seconds: float, reason: str) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle  # None before the first request, although uvicorn declares it otherwise
        answering = self._in_head and not self._is_idle()
        if answering or self.flow.read_paused or (cycle is not None and cycle.waiting_for_100_continue):
            self._expect(seconds, reason)  # the server makes the client wait
            return
        if reason:
            self._counts.ended[reason] += 1
        if self._in_head or cycle.response_started:
            self.transport.close()
        else:
            self._answer("body-too-slow", f"expected the body within {BODY_S:g} s")

    def _count_unfinished(self, nbytes: int) -> bool:
        """Set the bytes of the incomplete head that the connection holds. Return whether all connections together
        may hold as many."""
        growth, self._unfinished_bytes = nbytes - self._unfinished_bytes, nbytes
        self._counts.unfinished_bytes += growth
        return growth <= 0 or self._counts.unfinished_bytes <= MAX_UNFINISHED_BYTES

    def _is_idle(self) -> bool:
        """Return whether there is no request to answer."""
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

    def data_received(self, data: bytes) -> None:
        self._unparsed_bytes += len(data)
        super().data_received(data)
        allowed = self._count_unfinished(self._unparsed_bytes)
        if self.transport.is_closing():
            self._expect_nothing()
        elif not allowed:
            self._counts.ended["heads"] += 1
            self._problem = _TOO_MANY_HEADS
            self.send_400_response("")
        elif self._unparsed_bytes > MAX_HEAD_BYTES:
            self._problem = _TOO_LARGE
            self.send_400_response("")
        elif self._timer is None and self._is_idle():
            self._expect(HEAD_S)  # uvicorn's own timer ends with any byte, even if no request begins

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_WAITING:
            self._refuse(*_TOO_MANY_WAITING)
        self._in_head, self._fields = True, 0
        self._expect(HEAD_S, "slow_head")  # counted from the first byte: further bytes do not extend it
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > MAX_HEADERS:
            self._refuse(*_TOO_MANY_HEADERS)
        if self._in_head:  # a field of the trailer section may be discarded (RFC 9110 §6.5.1)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD_BYTES:
            self._refuse(*_TOO_LARGE)
        self._check_target()
        self._check_upgrade()
        self._in_head = False
        self._unparsed_bytes = 0
        self._expect(BODY_S, "slow_body")
        super().on_headers_complete()
        if self.parser.should_upgrade():  # the parser drops all bytes after such a request
            self.cycle.keep_alive = False

    def _check_target(self) -> None:
        """Split a target in absolute form into a path and a `Host` header: its authority replaces a received `Host`
        (RFC 9112 §3.2.2). Raises RequestRefused for a target that is neither a path nor in absolute form."""
        connect = self.parser.get_method() == b"CONNECT"
        if self.url.startswith(b"/") and not connect:
            return
        absolute = _ABSOLUTE.fullmatch(self.url)
        if absolute is None or connect:
            target = self.url[:80].decode("latin-1")
            expected = "expected a path or an http:// or https:// URL as request target, and no CONNECT"
            self._refuse("malformed", f"{expected}, got {target!r}")
        authority, self.url = absolute[1], absolute[2]
        if not self.url.startswith(b"/"):
            self.url = b"/" + self.url
        if sum(name == b"host" for name, _ in self.headers) == 1:  # `stack` rejects any other number of them
            self.headers[:] = [(name, authority if name == b"host" else value) for name, value in self.headers]

    def _check_upgrade(self) -> None:
        """Raise RequestRefused for a request with `Upgrade` and a body: the parser would read the body as a
        request."""
        if self.parser.should_upgrade() and any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" \t0"))
            for name, value in self.headers
        ):
            self._refuse("malformed", "expected a request without Upgrade, or one without a body")

    def _refuse(self, code: str, detail: str) -> NoReturn:
        self._problem = code, detail
        raise RequestRefused(detail)

    def on_body(self, body: bytes) -> None:
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if not self.parser.should_keep_alive():  # perhaps since the trailer: it takes no more
            self.cycle.keep_alive = False
            if self.cycle.response_complete:
                self.transport.close()
        super().on_message_complete()
        self._in_head = True
        self._unparsed_bytes = 0
        self._expect_nothing()

    def send_400_response(self, msg: str) -> None:
        cycle: Any = self.cycle
        if not self._is_idle() and (cycle.response_started or self._in_head):
            # The client would take this problem for the answer to another request, or for a part of that answer.
            self.transport.close()
        else:
            self._answer(*self._problem)

    def _answer(self, code: str, detail: str, headers: str = "") -> None:
        """Send a problem that answers no parsed request, and close the connection."""
        request_id = uuid4().hex
        body = problem(code, detail, "", request_id)
        content = encode(body)
        head = (
            f"HTTP/1.1 {body.status} {HTTPStatus(body.status).phrase}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(content)}\r\nx-request-id: {request_id}\r\n{headers}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + content)
        self.transport.close()


def protocol_of(counts: ConnectionCounts) -> type[ProblemProtocol]:
    """Return the protocol class of a server with these counts; uvicorn creates one instance per connection."""

    class Counted(ProblemProtocol):
        _counts = counts

    return Counted
