"""A throw-away PostgreSQL cluster over the server binaries of this machine.

Listens on a unix socket in a folder of its own, keeps nothing, trusts everybody who reaches the socket. Runs as
`nobody` when the tests run as root, because the server refuses to be root. TEST_DATABASE_URL takes its place: a
server that is already there, whose user may create databases.
"""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

START_TIMEOUT_S = 90.0


def find_binaries() -> Path | None:
    """The folder of `initdb` and `postgres`: the newest of Debian's, else what is on the PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    if installed:
        return installed[-1].parent
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


class PostgresCluster:
    """One server for a test session: `start`, then `url(database)`, then `stop`."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._user = "nobody" if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        # Short, because a unix socket's path has at most 107 characters; its own, because `nobody` must own it.
        self._root = Path(tempfile.mkdtemp(prefix="pg-"))

    def start(self) -> None:
        """Make it and run it."""
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self._root, account.pw_uid, account.pw_gid)
        data = str(self._root / "data")
        initdb = [str(self._binaries / "initdb"), "-D", data, "-U", "larder", "-A", "trust", "-E", "UTF8"]
        subprocess.run(
            [*initdb, "--locale=C", "--no-sync", "--no-instructions"],
            user=self._user,
            cwd=self._root,
            check=True,
            capture_output=True,
        )
        self.run()

    def run(self) -> None:
        """Start the server over what `start` made, after it was stopped or crashed too."""
        data = str(self._root / "data")
        log = self._root / "log"
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [str(self._binaries / "postgres"), "-D", data, "-F", "-k", str(self._root), "-h", ""],
                user=self._user,
                cwd=self._root,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        ready = [str(self._binaries / "pg_isready"), "-q", "-h", str(self._root), "-d", "postgres"]
        while subprocess.run(ready, check=False).returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.02)

    def url(self, database: str) -> str:
        return f"postgresql+asyncpg://larder@/{database}?host={self._root}"

    @property
    def socket_path(self) -> str:
        return str(self._root / ".s.PGSQL.5432")

    def crash(self) -> None:
        """End it at once, in the middle of everything; `run` starts it again and recovers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait(timeout=START_TIMEOUT_S)

    def freeze(self) -> None:
        """Stop every process of it: connections stay, answers do not come."""
        self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal_all(signal.SIGCONT)

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None
        parent = self._process.pid
        os.kill(parent, number)
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # "fast": drops the sessions, leaves a clean end
            self._process.wait(timeout=START_TIMEOUT_S)
        shutil.rmtree(self._root)
