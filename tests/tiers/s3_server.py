"""A real HTTP server that speaks S3: moto's, in a process of its own."""

import os
import shutil
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from obstore.store import S3Store

from tests.forked import Forked
from tests.free_port import free_port
from tests.tiers.redis_server import TIMEOUT_S, make_certificate, wait_until

BUCKET = "larder-blocks"


class S3Server:
    """The server with one bucket, `BUCKET`. Keeps everything in memory."""

    def __init__(self, *, tls: bool = False) -> None:
        self.port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="larder-s3-"))
        self.certificate = make_certificate(self._folder) if tls else None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # closed by stop
        self._process: Forked | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def endpoint(self) -> str:
        return f"{'https' if self.certificate else 'http'}://{self.address}"

    def start(self) -> None:
        """Start the server, wait until it answers, make the bucket."""
        options = ["-H", "127.0.0.1", "-p", str(self.port)]
        if self.certificate:
            options += ["-c", str(self.certificate), "-k", str(self._folder / "key.pem")]
        environ = dict(os.environ)
        self._process = Forked("moto.server", *options, env=environ, stdout=self._log, stderr=self._log)
        wait_until(self._answers, "the S3 server answers")
        self._request("PUT", f"/{BUCKET}")

    def store(self, prefix: str) -> S3Store:
        """Return a client of obstore for what is below a prefix of the bucket."""
        return S3Store(
            BUCKET,
            prefix=prefix,
            endpoint=self.endpoint,
            region="us-east-1",
            access_key_id="AKIATEST",
            secret_access_key="of the tests",
            client_options={"allow_http": True},
        )

    def put(self, name: str, body: bytes) -> None:
        """Put an object of any name: clients refuse some."""
        self._request("PUT", f"/{BUCKET}/{quote(name, safe='/~')}", body)

    def _request(self, method: str, path: str, body: bytes | None = None) -> None:
        trust = ssl.create_default_context(cafile=str(self.certificate)) if self.certificate else None
        request = Request(self.endpoint + path, body, method=method)
        with urlopen(request, timeout=TIMEOUT_S, context=trust) as answer:
            answer.read()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "the S3 server ended"
        try:
            self._request("GET", "/moto-api/")
        except (URLError, OSError):
            return False
        return True

    def stop(self) -> None:
        """End the server."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT_S)
        self._log.close()
        shutil.rmtree(self._folder)


@contextmanager
def s3_server(*, tls: bool = False) -> Iterator[S3Server]:
    """Run a server."""
    server = S3Server(tls=tls)
    try:
        server.start()
        yield server
    finally:
        server.stop()
