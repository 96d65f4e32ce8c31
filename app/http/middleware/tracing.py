"""A server span for each request, which continues the caller's trace."""

from typing import Any

from litestar.types import ASGIApp, Message, Receive, Send

from dataplane.base import tracing

_UNTRACED = frozenset({"/healthz", "/readyz", "/healthz/fleet", "/metrics"})
"""Paths that monitors request every few seconds; they are traced if the request brings a traceparent."""
_METHODS = frozenset({"GET", "HEAD", "PUT", "PATCH", "DELETE", "POST", "OPTIONS"})


async def traced(app: ASGIApp, scope: Any, receive: Receive, send: Send) -> None:
    """Serve a request in a span. The span of an event stream ends when the stream begins."""
    sent = [value for name, value in scope["headers"] if name.lower() == b"traceparent"]
    # Several headers are no valid one (W3C Trace Context).
    parent = sent[0].decode("latin-1") if len(sent) == 1 else ""
    if not tracing.trace_id_of(parent):
        parent = ""
    if not parent and scope["path"] in _UNTRACED:
        await app(scope, receive, send)
        return
    method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
    attributes = {"http.request.method": method, "url.scheme": scope["scheme"]}
    with tracing.span(method, parent=parent, kind="server", attributes=attributes) as current:

        def name() -> None:
            route = scope.get("path_template")
            if route:
                current.rename(f"{method} {route}")
                current.set({"http.route": route})

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                status = message["status"]
                current.set({"http.response.status_code": status})
                if status >= 500:
                    current.failed(str(status))
                if (b"content-type", b"text/event-stream") in {
                    (key.lower(), value.partition(b";")[0]) for key, value in message["headers"]
                }:
                    name()
                    current.end()
            await send(message)

        try:
            await app(scope, receive, answer)
        finally:
            name()
