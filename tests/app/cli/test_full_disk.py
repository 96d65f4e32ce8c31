"""`larder up` where the disk of its state directory is full: what is there is served, and changes are refused."""

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from tests.app.command import run
from tests.e2e.larder import until
from tests.environ import clean_environ
from tests.forked import Forked
from tests.free_port import free_port
from tests.require import require

pytestmark = pytest.mark.timeout(300)
SIZE = "4m"
WAIT_S = 90.0


class Disk:
    """A file system of a few MiB, mounted at `folder` for the processes of `run` alone."""

    def __init__(self, holder: subprocess.Popen[bytes], folder: Path) -> None:
        self._namespace = f"/proc/{holder.pid}/ns/mnt"
        self.state = folder / "state"
        self.log = folder.with_name(f"{folder.name}.log")
        """Of the last `larder up`."""
        self._seen = Path(f"/proc/{holder.pid}/root{folder}")

    def fill(self) -> None:
        with (self._seen / "fill").open("ab", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    def free(self) -> None:
        (self._seen / "fill").unlink()

    @contextmanager
    def larder(self) -> Iterator[tuple[Forked, httpx.Client]]:
        """A running `larder up`; it may have ended by itself."""
        port = free_port()
        environ = clean_environ(
            LARDER_STATE_DIR=str(self.state), LARDER_HTTP_PORT=str(port), LARDER_APP__EMBEDDED_DATA_PLANE="false"
        )
        with self.log.open("wb") as log:
            process = Forked("app", "up", env=environ, stderr=log, namespaces=[self._namespace])
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False, timeout=WAIT_S
            ) as http:
                until(lambda: process.poll() is not None or answers(http), "an answer, or the end")
                yield process, http
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            try:
                process.wait(WAIT_S)
            finally:
                process.kill()


def answers(http: httpx.Client) -> bool:
    try:
        return http.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    require(shutil.which("unshare"), "unshare is not installed (util-linux)")
    mount = 'mount -t tmpfs -o mode=700,size="$1" none "$2" && echo mounted && cat'
    holder = subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", mount, "sh", SIZE, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        require(
            holder.stdout.readline() == b"mounted\n", "this user may not mount a file system of its own (needs root)"
        )
        yield Disk(holder, tmp_path)
    finally:
        holder.kill()
        holder.communicate(timeout=WAIT_S)


def put(http: httpx.Client, tenant: str) -> httpx.Response:
    return http.put(f"/api/v1/quotas/{tenant}", json={"limit_bytes": 5})


def test_a_full_disk_serves_reads_and_refuses_changes(disk: Disk) -> None:
    with disk.larder() as (process, http):
        assert put(http, "a").status_code == 201
    disk.fill()
    with disk.larder() as (process, http):
        assert process.poll() is None, disk.log.read_text()
        for path in ("quotas", "quotas/a", "pins", "audit", "tokens", "overview", "export"):
            assert http.get(f"/api/v1/{path}").status_code == 200, path
        for _ in range(3):
            refused = put(http, "b")
            assert refused.status_code == 503
            assert "the database has no room left for changes" in refused.json()["detail"]
        why = "the database takes no changes: the database has no room"
        assert why in http.get("/readyz").json()["database"], "reads are served"
        assert why in http.get("/healthz/fleet").json()["detail"]
        shown = run("status", "--url", str(http.base_url), env=clean_environ())
        assert "the database takes no changes" in shown.stdout, shown
        disk.free()
        until(lambda: put(http, "b").status_code in (201, 428), "room for a change")
        assert http.get("/api/v1/quotas").json()["total"] == 2
        until(lambda: "no changes" not in http.get("/healthz/fleet").text, "the end of the warning")
    log = disk.log.read_text()
    assert "database.lost" in log
    assert "database.recovered" in log
    assert "Traceback" not in log


def test_a_new_system_on_a_full_disk_reports_it_in_a_sentence(disk: Disk) -> None:
    disk.fill()
    with disk.larder() as (process, _):
        assert process.wait(WAIT_S) != 0
    errors = disk.log.read_text().splitlines()
    assert errors[-1].startswith("Error: "), errors
    assert "full" in errors[-1] or "No space left" in errors[-1]
    assert not any("Traceback" in line for line in errors)
