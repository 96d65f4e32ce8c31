"""What is not HTTP at all gets a problem too; the server would answer plain text."""

from uuid import uuid4

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from app.http.problems import MEDIA_TYPE, encode, problem


class ProblemProtocol(HttpToolsProtocol):
    """uvicorn's protocol with our answer to bytes that are no request."""

    def send_400_response(self, msg: str) -> None:
        content = encode(problem("malformed", "the bytes are not an HTTP request", "", uuid4().hex))
        head = f"HTTP/1.1 400 Bad Request\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {len(content)}\r\n"
        self.transport.write(head.encode() + b"connection: close\r\n\r\n" + content)
        self.transport.close()
