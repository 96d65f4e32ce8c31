"""Keeps a data plane running on this machine: finds a running one or starts one, and starts the next one when it ends.

The data plane outlives this process: it continues to serve after a `kill -9` of its supervisor. The next supervisor
finds it through the lock of its state directory and its engine socket. The next data plane continues with the memory,
which a holder has (`dataplane.recovery`). A standby process waits with all modules imported, so that a restart takes
milliseconds instead of the start of an interpreter on a busy machine.
"""

import asyncio
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

from app.child_process import child_process
from app.supervisor.descriptors import allow_descriptors
from app.supervisor.node_process import KILLED_S, NodeProcess, find_running, has_begun, start
from dataplane.base.child_command import module_command
from dataplane.holding.folder import DATA_PLANE_LOCK_NAME, is_locked
from dataplane.protocol.signals import CANNOT_ADOPT_EXIT_CODE, HAND_OVER_SIGNAL, HANDED_OVER_EXIT_CODE, RELEASE_SIGNAL

BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 10.0
MANY_EXITS, MANY_EXITS_S = 8, 5.0
"""A data plane that served is restarted without a pause, except after MANY_EXITS ends in MANY_EXITS_S seconds."""
STANDBY_ANSWERS_S = 1.0
"""Seconds after which a standby that does not answer, or does not end when asked to, is killed."""
ADOPT_POLL_S = 0.02
HOLDER_S = 12.0
"""Seconds beyond the grace time in which a data plane leaves its memory to the holder on a busy machine."""
STANDBY_READY_S = 60.0
"""Seconds in which a new process must import all modules before the old one is stopped."""
CHECK_S = 60.0
SERVES_S = 60.0
"""Seconds in which a data plane that takes over must begin to serve."""
SILENT_S = 10.0
"""Seconds between warnings about a data plane that is running but does not answer."""
REPLACED_S = 30.0
"""Seconds in which a data plane of another version must stop before it is killed."""
COMMAND = tuple(module_command("dataplane"))


class CannotReplace(Exception):
    """The data plane cannot be replaced by a new process. The message says why."""


class Supervisor:
    """Supervises one data plane at a time. Call `run` until it is cancelled, then `stop`."""

    def __init__(
        self,
        environ: Mapping[str, str],
        on_exit: Callable[[int | None, float], None],
        on_start: Callable[[int], None],
        command: tuple[str, ...] = COMMAND,
        *,
        engine_socket: str = "",
        state_dir: Path | None = None,
        survives: bool = True,
        standby: bool = True,
        popen: Callable[..., Any] = subprocess.Popen,
    ) -> None:
        """Create the supervisor.

        `on_exit` gets the exit code (None if another process started the data plane) and the seconds until the next
        start; `on_start` gets the pid. With `survives`, the data plane outlives this process. With `standby`, a standby
        process waits to take over. `popen` starts processes.
        """
        self._environ = dict(environ)
        self._on_exit = on_exit
        self._on_start = on_start
        self._command = command
        self._engine_socket = engine_socket
        self._state_dir = state_dir
        self._survives = survives
        self._with_standby = standby
        self._popen = popen
        self._log = structlog.get_logger()
        self._first: NodeProcess | None = None
        self._child: NodeProcess | None = None
        self._standby: NodeProcess | None = None
        self._dropping: asyncio.Task[None] | None = None
        """Waits for the end of a standby that has the wrong settings."""
        self._served_at: float | None = None
        self._serving = asyncio.Event()
        """Set while the data plane serves."""
        self._settled = asyncio.Event()
        """Set when a data plane begins to serve, or ends before it does."""
        self._failure = ""
        """Why the last data plane that ended before it served did so."""
        self._environ_before: dict[str, str] | None = None
        """Environment for the next start if the data plane of a planned restart does not serve."""
        self._restarting = asyncio.Lock()
        self._exit_times: deque[float] = deque(maxlen=MANY_EXITS)
        self.restarts = 0

    def begin_with(self, child: NodeProcess) -> None:
        """Supervise first a data plane that was sent `begin` before. Call it before `run`."""
        self._first = child

    async def run(self) -> None:
        """Find or start a data plane, wait for its end, and restart it."""
        pause_s = 0.0
        allow_descriptors()
        child, self._first = self._first, None
        adopted = False
        if child is None:
            child = await self._find_running()
            adopted = child is not None
        while True:
            self._child = child = child or await self._start()
            self._served_at = None
            self._serving.clear()
            self._listen(child)
            self._log.info("dataplane.adopted" if adopted else "dataplane.started", pid=child.pid)
            self._on_start(child.pid)
            self._on_message(child)  # all messages may have arrived during the wait
            code = await child.wait()
            self._ended(child, code)
            if self._served() and not self._ends_often():
                pause_s = 0.0
            planned = code == HANDED_OVER_EXIT_CODE
            log = self._log.info if planned else self._log.warning
            log("dataplane.exited", code=code, restart_in_s=pause_s)
            self._on_exit(code, pause_s)
            child, adopted = None, False
            await asyncio.sleep(pause_s)
            pause_s = min(max(pause_s * 2, BACKOFF_FIRST_S), BACKOFF_MAX_S)
            self.restarts += not planned

    def _new_process(self) -> NodeProcess:
        return start(self._command, self._environ, survives=self._survives, popen=self._popen)

    async def _start(self) -> NodeProcess:
        """Return the standby, or a new process, which takes the memory from the holder."""
        standby, self._standby = self._standby, None
        if standby is not None:
            self._ignore(standby)
            if await self._takes_over(standby):
                return standby
        child = self._new_process()
        child.begin()
        return child

    async def _takes_over(self, standby: NodeProcess) -> bool:
        """Return whether the standby begins to serve. Kill a standby that does not answer."""
        if not standby.ended:
            standby.begin()
            if await has_begun(standby, STANDBY_ANSWERS_S):
                return True
            self._log.warning("dataplane.standby_timed_out", pid=standby.pid, timeout_s=STANDBY_ANSWERS_S)
            standby.signal(signal.SIGKILL)
            await self._end(standby, KILLED_S, "dataplane.standby_killed")
        standby.close()
        return False

    def _ended(self, child: NodeProcess, code: int | None) -> None:
        """Process the last messages of a data plane that has ended."""
        self._ignore(child)
        child.read()
        self._child = None
        self._serving.clear()
        child.close()
        if not self._served():
            self._failure = child.refusal or f"exit code {code}"
            self._restore_environ()
            self._settled.set()

    def _restore_environ(self) -> None:
        """Start the next data plane with the settings from before a planned restart, and not with a standby that has
        the new ones."""
        if self._environ_before is None:
            return
        self._environ, self._environ_before = self._environ_before, None
        standby, self._standby = self._standby, None
        if standby is not None:
            self._ignore(standby)
            self._dropping = asyncio.get_running_loop().create_task(self._drop(standby), name="standby")

    def _went_back(self) -> bool:
        """Return whether the settings are those from before a planned restart again."""
        return self._environ_before is None

    def _served(self) -> bool:
        return self._served_at is not None

    def _ends_often(self) -> bool:
        """Return whether exits have become too frequent, counting this one."""
        now = time.monotonic()
        self._exit_times.append(now)
        return len(self._exit_times) == MANY_EXITS and now - self._exit_times[0] < MANY_EXITS_S

    # ---- messages

    def _listen(self, child: NodeProcess) -> None:
        asyncio.get_running_loop().add_reader(child.connection.fileno(), self._on_message, child)

    def _ignore(self, child: NodeProcess) -> None:
        with suppress(OSError, ValueError):
            asyncio.get_running_loop().remove_reader(child.connection.fileno())

    def _on_message(self, child: NodeProcess) -> None:
        if not child.read():
            self._ignore(child)
        if child.serves and self._served_at is None:
            self._served_at = time.monotonic()
            self._serving.set()
            self._settled.set()
            if self._with_standby and self._standby is None:
                self._prepare()

    def _prepare(self) -> None:
        """Start the standby process."""
        with suppress(OSError):
            self._standby = self._new_process()
            asyncio.get_running_loop().add_reader(
                self._standby.connection.fileno(), self._on_standby_message, self._standby
            )

    def _on_standby_message(self, standby: NodeProcess) -> None:
        if not standby.read():
            self._ignore(standby)
        elif standby.ready:
            self._log.info("dataplane.standby_ready", pid=standby.pid)

    # ---- a data plane that runs already

    async def _find_running(self) -> NodeProcess | None:
        """Return the running data plane of the state directory once it has answered; None if there is none."""
        logged_at = time.monotonic()
        child: NodeProcess | None = None
        while self._engine_socket and self._state_dir is not None and _is_locked(self._state_dir):
            child = child or find_running(self._engine_socket)
            if child is not None:
                is_open = child.read()
                if child.serves:
                    return child
                if child.other_version:
                    self._log.warning("dataplane.replaced", pid=child.pid, reason=child.refusal)
                    child.signal(signal.SIGTERM)
                    await self._end(child, REPLACED_S)
                if child.refusal or not is_open:
                    child.close()
                    child = None
            if time.monotonic() - logged_at >= SILENT_S:
                logged_at = time.monotonic()
                self._log.warning("dataplane.silent", state_dir=str(self._state_dir))
            await asyncio.sleep(ADOPT_POLL_S)
        if child is not None:
            child.close()
        return None

    # ---- a planned restart

    async def why_not_adoptable(self, environ: Mapping[str, str]) -> str:
        """Return why a new process with this environment cannot adopt the memory; empty if it can.

        The check runs the code on disk, which may be of another release. Raises CannotReplace when no data plane
        serves, the check does not answer, or a new process would not start.
        """
        if not self._serving.is_set():
            raise CannotReplace("no data plane serves now; try again when one does")
        command = (*self._command, "--check-memory")
        try:
            async with child_process(command, env=dict(environ), stderr=subprocess.PIPE) as process:
                async with asyncio.timeout(CHECK_S):
                    _, errors = await process.communicate()
        except TimeoutError:
            raise CannotReplace(f"a new data plane process did not answer within {CHECK_S:g} s") from None
        except OSError as error:
            raise CannotReplace(f"a new data plane process would not start: {error.strerror}") from None
        if process.returncode == 0:
            return ""
        lines = errors.decode(errors="replace").strip().splitlines()
        output = lines[-1] if lines else f"exit code {process.returncode}"
        if process.returncode == CANNOT_ADOPT_EXIT_CODE:
            return output
        raise CannotReplace(f"a new data plane process would not start: {output}")

    async def replace(self, environ: Mapping[str, str], *, keep: bool, grace_s: float) -> float:
        """Replace the data plane by a new process with this environment, which takes over the memory if `keep` is set.

        Returns the seconds from the stop of the old process until the new one serves. Raises CannotReplace; the old
        process then continues to serve, or a process with its settings and its memory, unless the message says
        otherwise.
        """
        async with self._restarting:
            child = self._child
            if child is None or not self._serving.is_set():
                raise CannotReplace("no data plane serves now; try again when one does")
            self._environ_before, self._environ = self._environ, dict(environ)
            self._settled.clear()
            try:
                await self._new_standby()
                began = time.monotonic()
                if self._went_back():
                    # It died, and its successor with the new settings ended before the standby was ready.
                    await self._end_standby()
                    failure = self._failure
                elif self._child is not child:
                    # It died, and its successor, which has the new settings, began before the standby was ready.
                    failure = await self._until_settled()
                else:
                    self._serving.clear()
                    self._settled.clear()
                    child.signal(HAND_OVER_SIGNAL if keep else RELEASE_SIGNAL)
                    killer = asyncio.get_running_loop().call_later(grace_s, child.signal, signal.SIGKILL)
                    try:
                        failure = await self._until_settled()
                    finally:
                        killer.cancel()
                if failure:
                    raise CannotReplace(await self._go_back(failure, keep=keep))
                self._environ_before = None
                return time.monotonic() - began
            finally:
                self._restore_environ()

    async def _until_settled(self) -> str:
        """Wait until a data plane serves; return why it does not, or nothing. In a planned restart, one with the
        settings from before does not count."""
        planned = self._environ_before is not None
        try:
            async with asyncio.timeout(SERVES_S):
                await self._settled.wait()
        except TimeoutError:
            return f"it did not serve within {SERVES_S:g} s"
        return "" if self._serving.is_set() and not (planned and self._went_back()) else self._failure

    async def _go_back(self, failure: str, *, keep: bool) -> str:
        """Serve with the old settings again after the failure of a new data plane. Return what happened."""
        self._log.error("dataplane.replacement_failed", reason=failure)
        hangs = self._child if self._environ_before is not None else None
        self._restore_environ()
        if hangs is not None:
            hangs.signal(signal.SIGKILL)
            for _ in range(round(KILLED_S / ADOPT_POLL_S)):
                if self._child is not hangs:
                    break
                await asyncio.sleep(ADOPT_POLL_S)
        second_failure = ""
        if not self._serving.is_set():
            self._settled.clear()
            second_failure = await self._until_settled()
        if second_failure:
            return (
                f"the new data plane did not start: {failure}. None with the old settings did either: "
                f"{second_failure}; it is tried again and again"
            )
        cache = "" if keep else ", with an empty cache"
        return f"the new data plane did not start: {failure}. One with the old settings serves again{cache}"

    async def _new_standby(self) -> None:
        """Replace the standby by a process that runs the code that is now on disk. Raise CannotReplace."""
        await self._end_standby()
        try:
            standby = self._new_process()
        except OSError as error:
            raise CannotReplace(f"a new data plane process cannot be started: {error.strerror}") from None
        deadline = time.monotonic() + STANDBY_READY_S
        while standby.read() and not standby.ready:
            if time.monotonic() >= deadline:
                standby.signal(signal.SIGKILL)
                break
            await asyncio.sleep(ADOPT_POLL_S)
        if not standby.ready:
            code = await self._end(standby, STANDBY_ANSWERS_S, "dataplane.standby_killed")
            standby.close()
            raise CannotReplace(f"a new data plane process ended before it could serve, with code {code}; see the log")
        await self._end_standby()  # a standby that was prepared meanwhile
        self._standby = standby
        asyncio.get_running_loop().add_reader(standby.connection.fileno(), self._on_standby_message, standby)

    # ---- stopping

    async def leave(self) -> None:
        """Stop supervising. The data plane continues to serve, and the process that replaces this one adopts it.

        Cancel `run` first.
        """
        self._with_standby = False
        await self._end_standby()
        child, self._child = self._child, None
        if child is not None:
            self._ignore(child)
            child.close()

    async def _end_standby(self) -> None:
        standby, self._standby = self._standby, None
        if standby is not None:
            self._ignore(standby)
            await self._drop(standby)

    async def _drop(self, standby: NodeProcess) -> None:
        standby.connection.close()  # the standby ends when its connection is closed
        await self._end(standby, STANDBY_ANSWERS_S, "dataplane.standby_killed")
        standby.close()

    def kill(self) -> None:
        """Kill the data plane and the standby at once, from any thread, when there is no time for `stop`."""
        for child in (self._standby, self._child):
            if child is not None and not child.ended:
                child.signal(signal.SIGKILL)

    async def stop(self, grace_s: float) -> None:
        """Ask the data plane to end, and kill it if it does not: the holder has its memory either way. Cancel `run`
        first."""
        self._with_standby = False
        child, self._child = self._child, None
        if child is not None:
            child.signal(signal.SIGTERM)
            code = await self._end(child, grace_s + HOLDER_S)
            self._log.info("dataplane.stopped", code=code)
            self._ignore(child)
            child.close()
        await self._end_standby()

    async def _end(self, child: NodeProcess, grace_s: float, killed: str = "dataplane.killed") -> int | None:
        """Wait for a process that was asked to end, and kill it after `grace_s` seconds.

        Returns its exit code, or None if it has none or the kernel does not end it.
        """
        try:
            return await asyncio.wait_for(child.wait(), grace_s)
        except TimeoutError:
            self._log.warning(killed, pid=child.pid, grace_s=grace_s)
            child.signal(signal.SIGKILL)
        try:
            return await asyncio.wait_for(child.wait(), KILLED_S)
        except TimeoutError:
            self._log.error("dataplane.not_ended", pid=child.pid, timeout_s=KILLED_S)
            return None


def _is_locked(state_dir: Path) -> bool:
    """Return whether a running data plane uses the directory."""
    with suppress(OSError):
        return is_locked(state_dir / DATA_PLANE_LOCK_NAME)
    return False
