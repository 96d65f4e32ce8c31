"""What is not HTTP at all, or has no end, gets a problem too; the server would answer plain text, or read on."""

from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http.problems import MEDIA_TYPE, encode, problem
from dataplane.protocol.units import format_size

MAX_HEAD_BYTES = 64 * 1024
"""Of the path, the query and the headers together."""
_REASONS = {400: "Bad Request", 431: "Request Header Fields Too Large"}


class HeadTooLarge(Exception):
    """More came before the body than anybody needs."""


class ProblemProtocol(HttpToolsProtocol):
    """uvicorn's protocol with our answer to bytes that are no request, and a bound on what comes before a body."""

    _head_bytes = 0
    _heads = 0
    _in_head = True
    _unended_bytes = 0
    _too_large = False

    def data_received(self, data: bytes) -> None:
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
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + len(b": \r\n"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._heads += 1
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head, self._unended_bytes = True, 0

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            self._too_large = True
            raise HeadTooLarge

    def send_400_response(self, msg: str) -> None:
        code, detail = "malformed", "the bytes are not an HTTP request"
        if self._too_large:
            code, detail = "head-too-large", f"expected at most {format_size(MAX_HEAD_BYTES)} before the body"
        request_id = uuid4().hex
        body = problem(code, detail, "", request_id)
        content = encode(body)
        head = (
            f"HTTP/1.1 {body.status} {_REASONS[body.status]}\r\ncontent-type: {MEDIA_TYPE}\r\n"
            f"content-length: {len(content)}\r\nx-request-id: {request_id}\r\n"
        )
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + content)
        self.transport.close()
