"""Runs the embedded data plane as a child: starts it, tells its exits, and starts it again, at first without a pause.

The child ends with this process: PR_SET_PDEATHSIG kills it even after our `kill -9`, so that no orphan keeps the
sockets; SIGTERM would stay pending in a child that is stopped.
"""

import asyncio
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping

import structlog

BACKOFF_FIRST_S = 0.2
BACKOFF_MOST_S = 10.0
HEALTHY_S = 30.0
_PR_SET_PDEATHSIG = 1
COMMAND = (sys.executable, "-m", "dataplane")


class Supervisor:
    """One child process. `run` until cancelled, then `stop`."""

    def __init__(
        self,
        environ: Mapping[str, str],
        on_exit: Callable[[int, float], None],
        command: tuple[str, ...] = COMMAND,
        on_start: Callable[[int], None] = lambda _pid: None,
    ) -> None:
        """`on_exit` gets the exit code and the seconds until the next start, `on_start` the pid."""
        self._environ = dict(environ)
        self._on_exit = on_exit
        self._on_start = on_start
        self._command = command
        self._log = structlog.get_logger()
        self.process: asyncio.subprocess.Process | None = None
        self.restarts = 0

    async def run(self) -> None:
        """Start, wait, start again."""
        pause_s = 0.0
        die_with_parent = _die_with(os.getpid())
        while True:
            started = time.monotonic()
            self.process = await asyncio.create_subprocess_exec(
                *self._command, env=self._environ, start_new_session=True, preexec_fn=die_with_parent
            )
            self._log.info("dataplane.started", pid=self.process.pid)
            self._on_start(self.process.pid)
            code = await self.process.wait()
            self.process = None
            if time.monotonic() - started >= HEALTHY_S:
                pause_s = 0.0
            self._log.warning("dataplane.exited", code=code, restart_in_s=pause_s)
            self._on_exit(code, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(max(pause_s * 2, BACKOFF_FIRST_S), BACKOFF_MOST_S)
            self.restarts += 1

    async def stop(self, grace_s: float) -> None:
        """Ask the child to end, and end it when it does not; `run` is cancelled before."""
        process, self.process = self.process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            code = await asyncio.wait_for(process.wait(), grace_s)
        except TimeoutError:
            self._log.warning("dataplane.killed", pid=process.pid, grace_s=grace_s)
            process.kill()
            code = await process.wait()
        self._log.info("dataplane.stopped", code=code)


def _die_with(parent: int) -> Callable[[], None]:
    """What the child does between fork and exec. Everything it needs is loaded before."""
    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    return prepare
