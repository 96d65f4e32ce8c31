"""A receiver of OTLP/HTTP traces, as a collector: it decodes what arrives."""

import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class ReceivedSpan:
    """One span, and the service that made it."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    failed: bool
    attributes: dict[str, Any]
    links: tuple[str, ...]
    """Trace ids."""
    began_ns: int
    ended_ns: int
    resource: dict[str, Any]


class OtlpReceiver:
    """The spans that arrived, and the headers of the last request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[ReceivedSpan] = []
        self.headers: dict[str, str] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                outer._take(ExportTraceServiceRequest.FromString(body), dict(self.headers))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def _take(self, request: ExportTraceServiceRequest, headers: dict[str, str]) -> None:
        found = []
        for group in request.resource_spans:
            resource = {each.key: _value(each.value) for each in group.resource.attributes}
            for scope in group.scope_spans:
                found += [
                    ReceivedSpan(
                        resource["service.name"],
                        span.name,
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.kind,
                        span.status.code == 2,
                        {each.key: _value(each.value) for each in span.attributes},
                        tuple(link.trace_id.hex() for link in span.links),
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        resource,
                    )
                    for span in scope.spans
                ]
        with self._lock:
            self._spans += found
            self.headers = headers

    @property
    def spans(self) -> list[ReceivedSpan]:
        with self._lock:
            return list(self._spans)

    def wait(self, holds: Callable[[list[ReceivedSpan]], bool], timeout_s: float = 60.0) -> list[ReceivedSpan]:
        """Wait until the spans are those that are expected, and return them."""
        deadline = time.monotonic() + timeout_s
        while not holds(spans := self.spans):
            assert time.monotonic() < deadline, f"only {[(each.service, each.name) for each in spans]}"
            time.sleep(0.05)
        return spans

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    try:
        yield receiver
    finally:
        receiver.close()


@contextmanager
def silent_collector() -> Iterator[str]:
    """Yield the URL of a collector that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@contextmanager
def misbehaving_collector(answer: str) -> Iterator[tuple[str, list[int]]]:
    """Yield the URL of a collector whose answer is `endless` or a `redirection`, and the bytes of answers so far."""
    sent = [0]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200 if answer == "endless" else 307)
            self.send_header("location", "/elsewhere")
            self.end_headers()
            with suppress(OSError):
                while answer == "endless" and sent[0] < 1 << 30:
                    sent[0] += self.wfile.write(bytes(1 << 16))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", sent
        finally:
            server.shutdown()
            thread.join(5)
