"""HEAD and OPTIONS for every resource, and `304 Not Modified` for clients that have the current state.

An answer of the API without an ETag of its own gets a weak ETag computed from its bytes. HEAD runs GET and drops the
body.
"""

from hashlib import blake2b
from typing import Any

from litestar.types import ASGIApp, Message, Receive, Send

_NO_METHOD = "LARDER-ALLOW"
"""A method that no route has: the 405 answer names the methods that the route has."""
_API = "/api/"
_OF_THE_ROUTE = ("path_template", "route_handler")
"""Keys that the router adds to an ASGI scope."""
_OF_A_BODY = (b"content-type", b"content-length")


class ConditionalResponses:
    """ASGI layer that adds HEAD, OPTIONS and ETags to the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        method = scope.get("method")
        if method == "GET":
            await self._app(scope, receive, _Reading(scope, send))
        elif method == "HEAD":
            # Leave the server's own scope unchanged: the server must know that no body follows.
            await self._run_as("GET", scope, receive, _Reading(scope, send))
        elif method == "OPTIONS":
            await self._run_as(_NO_METHOD, scope, receive, _Allowing(send))
        else:
            await self._app(scope, receive, send)

    async def _run_as(self, method: str, scope: Any, receive: Receive, send: Send) -> None:
        changed: Any = {**scope, "method": method}
        try:
            await self._app(changed, receive, send)
        finally:
            scope.update((name, changed[name]) for name in _OF_THE_ROUTE if name in changed)


class _Reading:
    """Sends the answer to GET or HEAD. It holds the head of a successful answer back until the body arrives, because
    the ETag may depend on the body."""

    def __init__(self, scope: Any, send: Send) -> None:
        self._send = send
        self._head = scope["method"] == "HEAD"
        self._tagged = scope["path"].startswith(_API)
        self._if_none_match = next((value for name, value in scope["headers"] if name == b"if-none-match"), None)
        self._start: Any = None
        self._ended = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if message["status"] == 200 and self._tagged:
                self._start = message
            else:
                await self._send(message)
        elif message["type"] == "http.response.body":
            await self._body(message)
        else:
            await self._send(message)

    async def _body(self, message: Any) -> None:
        if self._start is not None:
            start, self._start = self._start, None
            if not message.get("more_body"):
                _tag(start, message.get("body", b""))
                if self._if_none_match is not None and _matches(self._if_none_match, _header(start, b"etag")):
                    headers = [pair for pair in start["headers"] if pair[0] not in _OF_A_BODY]
                    start = {**start, "status": 304, "headers": headers}
                    message = {**message, "body": b""}
            await self._send(start)
        if not self._head:
            await self._send(message)
        elif not self._ended:
            self._ended = True
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class _Allowing:
    """Turns the 405 answer to `_NO_METHOD` into the answer to OPTIONS."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._allowed = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 405:
            self._allowed = True
            headers = [pair for pair in message["headers"] if pair[0] not in _OF_A_BODY]
            await self._send({**message, "status": 204, "headers": headers})
        elif message["type"] == "http.response.body" and self._allowed:
            await self._send({**message, "body": b""})
        else:
            await self._send(message)


def _tag(start: Any, body: bytes) -> None:
    header_names = {name for name, _ in start["headers"]}
    added = []
    if b"etag" not in header_names:
        added.append((b"etag", b'W/"%s"' % blake2b(body, digest_size=8).hexdigest().encode()))
    if b"cache-control" not in header_names:
        added.append((b"cache-control", b"private, no-cache"))
    start["headers"] = [*start["headers"], *added]


def _header(start: Any, header: bytes) -> bytes:
    header_value: bytes = next(value for name, value in start["headers"] if name == header)
    return header_value


def _matches(if_none_match: bytes, etag: bytes) -> bool:
    """Compare weakly (RFC 9110 §8.8.3.2), which is enough because the comparison guards reads only."""
    tags = {tag.strip().removeprefix(b"W/") for tag in if_none_match.split(b",")}
    return if_none_match.strip() == b"*" or etag.removeprefix(b"W/") in tags
