"""A local S3 server for `larder demo --s3`, in a separate process that ends when the demonstration ends or is killed.

It is the server of moto, a development requirement, which keeps objects in memory. A copy of each object is in a folder
of the demonstration's state, from which the next server reads them. Because the server is slow, its process has a low
priority, and only blocks that are used again are copied to the tier.
"""

import importlib.util
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import quote, unquote
from urllib.request import Request, urlopen

from dataplane.base import allowed_secrets
from dataplane.base.child_command import module_command

TIER = "s3"
BUCKET = "larder-demo"
NOTE = "a local server of the demonstration"
BUDGET_BYTES = 512 << 20
IN_FLIGHT_BYTES = 1 << 20
REQUIRED = ("moto", "flask", "flask_cors", "obstore", "zstandard")
KEY_FILE = "s3-key"
OBJECTS = "s3-objects"
"""Folder of the state directory that keeps the objects."""
_PART = ".part"
START_S = 60.0
_STOP_S = 10.0
_NICE = 10


def missing() -> str:
    """Return which packages are missing and how to install them; empty if none is missing."""
    absent = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if not absent:
        return ""
    packages = ", ".join(name.replace("_", "-") for name in absent)
    return f"--s3 needs {packages}: pip install 'moto[s3]' flask flask-cors obstore zstandard"


def _reference(folder: Path) -> str:
    return f"file:{folder.resolve() / KEY_FILE}"


def allowed(folder: Path, configured: str) -> str:
    """Return `dataplane.tier_secrets` with the key in addition. `configured` is the setting in the environment,
    or empty."""
    return ",".join([configured or ",".join(allowed_secrets.DEFAULT), _reference(folder)])


def record(port: int, folder: Path) -> dict[str, Any]:
    """Return the record of the tier. Its key is in `folder`."""
    reference = _reference(folder)
    return {
        "type": "s3",
        "budget_bytes": BUDGET_BYTES,
        "order": 1,
        "spill": "second_touch",
        "max_bytes_in_flight": IN_FLIGHT_BYTES,
        "parameters": {
            "url": f"s3://{BUCKET}",
            "endpoint": f"http://127.0.0.1:{port}",
            "region": "us-east-1",
            "credentials": {"access_key_id": reference, "secret_access_key": reference},
            "max_in_flight_bytes": IN_FLIGHT_BYTES,
        },
        "note": NOTE,
    }


def write_key(folder: Path) -> None:
    """Write a key. The server accepts any key."""
    descriptor = os.open(folder / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write("demonstration\n")


class LocalS3Server:
    """The process of the server. `wait_ready` creates the bucket."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self._process = process
        self.port = port

    def wait_ready(self) -> bool:
        """Create the bucket, and wait up to START_S seconds until the server has done so. Return whether it has."""
        end = time.monotonic() + START_S
        while time.monotonic() < end and self._process.poll() is None:
            try:
                request = Request(f"http://127.0.0.1:{self.port}/{BUCKET}", method="PUT")
                with urlopen(request, timeout=START_S) as answer:
                    answer.read()
                    return True
            except (URLError, OSError):
                time.sleep(0.1)
        return False


class StoredObjects:
    """WSGI application that passes requests on to another one, and copies the objects of BUCKET to a folder."""

    def __init__(self, app: Any, folder: Path) -> None:
        self._app, self._folder = app, folder
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        method, path, body = environ["REQUEST_METHOD"], environ["PATH_INFO"], b""
        stores = method == "PUT" and path.startswith(f"/{BUCKET}/")
        if stores or method == "POST":
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = BytesIO(body)
        if stores:
            self._store(path.removeprefix(f"/{BUCKET}/"), body)
        elif method == "DELETE":
            self._file(path.removeprefix(f"/{BUCKET}/")).unlink(missing_ok=True)
        elif method == "POST" and environ.get("QUERY_STRING", "").startswith("delete"):
            for key in re.findall(r"<Key>([^<]*)</Key>", body.decode(errors="replace")):
                self._file(key).unlink(missing_ok=True)
        return self._app(environ, start_response)

    def restore(self) -> int:
        """Put the objects of the folder into the other application, and return their number."""
        from werkzeug.test import Client  # only the server's process needs it

        client = Client(self._app)
        client.put(f"/{BUCKET}").close()
        files = [file for file in self._folder.iterdir() if file.suffix != _PART]
        for file in files:
            client.put(f"/{BUCKET}/{unquote(file.name)}", data=file.read_bytes()).close()
        return len(files)

    def _file(self, key: str) -> Path:
        return self._folder / quote(key, safe="")

    def _store(self, key: str, body: bytes) -> None:
        file = self._file(key)
        part = file.with_name(f"{threading.get_ident()}{_PART}")
        part.write_bytes(body)
        part.replace(file)


@contextmanager
def running(log: Any, folder: Path) -> Iterator[LocalS3Server]:
    """Start the server without waiting until it is ready, and end it on exit. `log` is the file for its output, and
    `folder` keeps its objects."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = int(listening.getsockname()[1])
    process = subprocess.Popen(
        module_command("app.demo.s3", str(port), str(folder / OBJECTS)),
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    try:
        yield LocalS3Server(process, port)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_S)


def serve(port: int, folder: Path) -> None:
    """Serve until standard input ends, as it does when the parent process ends."""
    from moto.moto_server.werkzeug_app import (  # only the server's process needs it
        DomainDispatcherApplication,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line for each request
    os.nice(_NICE)
    stored = StoredObjects(DomainDispatcherApplication(create_backend_app), folder)
    sys.stdout.write(f"S3 server: {stored.restore()} objects from {folder}\n")
    sys.stdout.flush()
    server = make_server("127.0.0.1", port, stored, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.buffer.read()
    os._exit(0)  # open connections do not delay the end


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
