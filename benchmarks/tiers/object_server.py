"""A small HTTP server that stores objects in memory, as a process: faster than the servers that test correctness.

`python -m benchmarks.tiers.object_server` prints its port. It answers PUT, and GET with a range, and checks nothing.
"""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_OBJECTS: dict[str, bytes] = {}


class Handler(BaseHTTPRequestHandler):
    """Requests of one connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True

    def do_PUT(self) -> None:  # the name that http.server calls
        """Store an object."""
        _OBJECTS[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"", {})

    def do_GET(self) -> None:
        """Answer the range that was asked for."""
        data = _OBJECTS.get(self.path)
        if data is None:
            self._answer(404, b"", {})
            return
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        part = memoryview(data)[int(first) : int(last) + 1]
        where = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        self._answer(206, part, {"Content-Range": where})

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _answer(self, status: int, body: bytes | memoryview, own_headers: dict[str, str]) -> None:
        self.send_response(status)
        headers = {"Content-Length": str(len(body)), "ETag": '"1"', "Last-Modified": self.date_time_string()}
        for name, value in (headers | own_headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve until the standard input ends."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
