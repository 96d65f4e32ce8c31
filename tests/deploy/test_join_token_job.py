"""The script of the chart's Job that rotates the join token sends its tokens to the configured hosts alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "deploy" / "helm" / "larder" / "files" / "rotate_join_token.py"
BODY = {"items": [], "token": "a-join-token", "record": {"id": "r1"}}


@contextmanager
def serving(redirects_to: str = "") -> Iterator[tuple[str, list[str]]]:
    """A server that answers each request with BODY, or redirects it. Yield its URL, and the requests that it got."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            requests.append(f"{self.command} {self.path}")
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            content = json.dumps(BODY).encode()
            self.send_response(302 if redirects_to else 200)
            if redirects_to:
                self.send_header("Location", redirects_to + self.path)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PATCH = answer  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join(60)


def rotate(folder: Path, url: str, **environ: str) -> subprocess.CompletedProcess[str]:
    for name in ("token", "namespace", "admin"):
        (folder / name).write_text(name)
    settings = {"LARDER_URL": url, "KUBERNETES_URL": url, "LARDER_TOKEN_FILE": str(folder / "admin"), "NAME": "job",
                "USES": "1", "TTL_S": "60", "LABELS": "{}", "SECRET": "s", "SECRET_KEY": "k", "GRACE_S": "0",
                "SERVICE_ACCOUNT": str(folder)}  # fmt: skip
    proxies = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return subprocess.run(
        [sys.executable, str(SCRIPT)], env={**proxies, **settings, **environ}, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip


def test_a_redirect_is_not_followed(tmp_path: Path) -> None:
    with serving() as (other, got), serving(redirects_to=other) as (url, _):
        done = rotate(tmp_path, url)
    assert done.returncode
    assert "302" in done.stderr
    assert got == []


def test_no_proxy_gets_the_tokens(tmp_path: Path) -> None:
    with serving() as (proxy, got), serving() as (url, requests):
        done = rotate(tmp_path, url, HTTP_PROXY=proxy, http_proxy=proxy, ALL_PROXY=proxy)
    assert done.returncode == 0, done.stderr
    assert len(requests) == 3
    assert got == []
