"""HTTP requests of the command line. They use the standard library, because to import an HTTP library takes longer than
a whole command may."""

import http.client
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote, urlencode, urlsplit

from app import __version__

PART_BYTES = 1 << 16


@dataclass(frozen=True)
class Response:
    status: int
    content: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class RequestFailed(Exception):
    """No complete answer came; the message says why."""


class TimedOut(RequestFailed):
    """The server accepted the connection, but did not answer in time."""


@contextmanager
def opened(
    method: str,
    url: str,
    headers: Mapping[str, str],
    *,
    query: Mapping[str, object] | None = None,
    content: bytes | None = None,
    timeout_s: float,
) -> Iterator[http.client.HTTPResponse]:
    """Yield the answer to a request, whose content is not read yet. Raises RequestFailed, also for errors while it is
    read."""
    parts = urlsplit(url)
    host, port = unquote(parts.hostname or ""), parts.port  # `%25` precedes an IPv6 zone
    path = parts.path + (f"?{urlencode(query, doseq=True)}" if query else "")
    if parts.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(host, port, timeout=timeout_s)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise RequestFailed(str(error) or type(error).__name__) from None
        try:
            connection.request(
                method, path, body=content, headers={"Accept": "*/*", "User-Agent": f"larder/{__version__}", **headers}
            )
            yield connection.getresponse()
        except TimeoutError:
            raise TimedOut(f"no answer within {timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise RequestFailed(str(error) or type(error).__name__) from None
    finally:
        connection.close()


def request(
    method: str,
    url: str,
    headers: Mapping[str, str],
    *,
    query: Mapping[str, object] | None = None,
    content: bytes | None = None,
    timeout_s: float,
) -> Response:
    """Return the answer to a request. Raises RequestFailed."""
    with opened(method, url, headers, query=query, content=content, timeout_s=timeout_s) as response:
        return Response(response.status, response.read())


def parts(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the content of an answer as it arrives."""
    while part := response.read1(PART_BYTES):
        yield part
    if response.length:  # `read1` does not report a connection that closed early
        raise http.client.IncompleteRead(b"", response.length)
