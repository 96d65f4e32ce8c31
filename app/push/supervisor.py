"""Keeps a data plane running on this machine: meets the one that lives, or starts one; starts it again, warm.

The data plane outlives this process: after our `kill -9` it goes on serving, and the next one of us meets it by the
lock of its state directory and its engine socket. While we live we hold duplicates of its memory, so that a data plane
that is killed loses nothing: the next one goes on with them. A spare process waits with everything imported, so that
this takes milliseconds and not the start of an interpreter on a busy machine.
"""

import asyncio
import fcntl
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from app.push.child import Child, answers, give, meet, start
from app.push.descriptors import allow_descriptors
from app.push.holder import Kept
from dataplane.protocol.codes import Code

BACKOFF_FIRST_S = 0.2
BACKOFF_MOST_S = 10.0
MANY_EXITS, MANY_EXITS_S = 8, 5.0
"""A data plane that served is started again without a pause, unless it ended so often in so short a time."""
WARM_TRIES = 3
"""Data planes that may end before they serve, until the next one starts cold."""
SPARE_ANSWERS_S = 1.0
"""A spare that was told to begin, and does not say that it does, is given up after this."""
MEET_POLL_S = 0.02
HOLD_AGAIN_S = 0.2
"""Between tries to get all memory of a data plane that could not send it."""
SILENT_S = 10.0
"""A data plane that lives and does not answer is told of this often."""
COMMAND = (sys.executable, "-m", "dataplane")


class Supervisor:
    """One data plane at a time. `run` until cancelled, then `stop`."""

    def __init__(
        self,
        environ: Mapping[str, str],
        on_exit: Callable[[int | None, float], None],
        command: tuple[str, ...] = COMMAND,
        on_start: Callable[[int], None] = lambda _pid: None,
        *,
        engine_socket: str = "",
        state_dir: Path | None = None,
        survives: bool = True,
        spare: bool = True,
    ) -> None:
        """`on_exit` gets the exit code (None: it was started by somebody else) and the seconds until the next start,
        `on_start` the pid. With `survives` the data plane outlives this process; with `spare` a process waits to take
        over.
        """
        self._environ = dict(environ)
        self._on_exit = on_exit
        self._on_start = on_start
        self._command = command
        self._engine_socket = engine_socket
        self._state_dir = state_dir
        self._survives = survives
        self._with_spare = spare
        self._log = structlog.get_logger()
        self._kept = Kept()
        self._child: Child | None = None
        self._spare: Child | None = None
        self._served_at: float | None = None
        self._failures = 0
        self._ends: deque[float] = deque(maxlen=MANY_EXITS)
        self.restarts = 0

    async def run(self) -> None:
        """Meet or start, wait, start again."""
        pause_s = 0.0
        allow_descriptors()
        child = await self._meet()
        while True:
            self._child = child = child or await self._start()
            self._served_at = None
            self._listen(child)
            self._log.info("dataplane.started" if child.ours else "dataplane.met", pid=child.pid)
            self._on_start(child.pid)
            self._heard(child)  # perhaps all was said while it was waited for
            code = await child.wait()
            self._ended(child)
            if self._served() and not self._ends_often():
                pause_s = 0.0
            if code == 0:  # it was told to stop, and has let its memory go
                self._kept.clear()
            self._log.warning("dataplane.exited", code=code, restart_in_s=pause_s, memory_fds=len(self._kept))
            self._on_exit(code, pause_s)
            child = None
            await asyncio.sleep(pause_s)
            pause_s = min(max(pause_s * 2, BACKOFF_FIRST_S), BACKOFF_MOST_S)
            self.restarts += 1

    async def _start(self) -> Child:
        """The spare, or a new process, with all memory that is kept."""
        spare, self._spare = self._spare, None
        if spare is not None:
            asyncio.get_running_loop().remove_reader(spare.holder.connection.fileno())
            if await self._takes_over(spare):
                return spare
        child = await start(self._command, self._environ, self._kept, survives=self._survives)
        await give(child, self._kept)
        return child

    async def _takes_over(self, spare: Child) -> bool:
        """Whether the spare begins to serve. One that does not answer is ended: another process does better."""
        if not spare.ended:
            heard = spare.holder.heard
            with suppress(TimeoutError):
                async with asyncio.timeout(SPARE_ANSWERS_S):
                    await give(spare, self._kept)
                    if await answers(spare, heard, SPARE_ANSWERS_S):
                        return True
            self._log.warning("dataplane.spare_given_up", pid=spare.pid, timeout_s=SPARE_ANSWERS_S)
            spare.signal(signal.SIGKILL)
            await spare.wait()
        spare.close()
        return False

    def _ended(self, child: Child) -> None:
        """Read the last words of a data plane that has ended."""
        asyncio.get_running_loop().remove_reader(child.holder.connection.fileno())
        child.holder.read()
        child.holder.settle()
        self._child = None
        child.close()
        self._failures = 0 if self._served_at is not None else self._failures + 1
        if self._failures >= WARM_TRIES and len(self._kept):
            self._log.error("dataplane.memory_given_up", reason=f"{self._failures} starts with it failed")
            self._kept.clear()

    def _served(self) -> bool:
        return self._served_at is not None

    def _ends_often(self) -> bool:
        """Whether this end is one of very many lately."""
        now = time.monotonic()
        self._ends.append(now)
        return len(self._ends) == MANY_EXITS and now - self._ends[0] < MANY_EXITS_S

    # ---- its memory

    def _listen(self, child: Child) -> None:
        holder = child.holder
        asyncio.get_running_loop().add_reader(holder.connection.fileno(), self._heard, child)

    def _heard(self, child: Child) -> None:
        holder = child.holder
        goes_on = holder.read()
        if holder.complete and self._served_at is None:
            self._served_at = time.monotonic()
            if self._with_spare and self._spare is None:
                asyncio.get_running_loop().create_task(self._prepare(), name="spare")
        if not goes_on:
            asyncio.get_running_loop().remove_reader(holder.connection.fileno())
            # It may live, and have found us too slow, or could not send all of it.
            pause_s = 0.0 if holder.complete else HOLD_AGAIN_S
            asyncio.get_running_loop().create_task(self._hold_again(child, pause_s), name="hold again")

    async def _hold_again(self, child: Child, pause_s: float) -> None:
        """Connect to the data plane's engine socket for its memory, as long as it lives."""
        await asyncio.sleep(pause_s)
        while self._child is child:
            met = meet(self._engine_socket, self._kept) if self._engine_socket else None
            if met is not None and met.pid == child.pid:
                child.holder.close()
                child.holder = met.holder
                os.close(met.take_pidfd())
                self._log.info("dataplane.held_again", pid=child.pid)
                self._listen(child)
                return
            if met is not None:
                met.close()
            await asyncio.sleep(MEET_POLL_S)

    async def _prepare(self) -> None:
        """Start the process that waits."""
        with suppress(OSError):
            spare = await start(self._command, self._environ, self._kept, survives=self._survives)
            if self._spare is not None or not self._with_spare:
                spare.close()
                return
            self._spare = spare
            connection = spare.holder.connection.fileno()
            asyncio.get_running_loop().add_reader(connection, self._heard_spare, spare)

    def _heard_spare(self, spare: Child) -> None:
        if not spare.holder.read():
            asyncio.get_running_loop().remove_reader(spare.holder.connection.fileno())
        elif spare.holder.ready:
            self._log.info("dataplane.spare_ready", pid=spare.pid)

    # ---- one that lives already

    async def _meet(self) -> Child | None:
        """The living data plane of our state directory, its memory shown; None when there is none."""
        told = time.monotonic()
        child: Child | None = None
        while self._engine_socket and self._state_dir is not None and _is_locked(self._state_dir):
            child = child or meet(self._engine_socket, self._kept)
            if child is not None:
                goes_on = child.holder.read()
                refused = child.holder.refused
                if child.holder.complete:
                    return child
                if refused is not None and refused.code == Code.VERSION_MISMATCH:
                    self._log.warning("dataplane.replaced", pid=child.pid, reason=refused.message)
                    child.signal(signal.SIGTERM)
                    await child.wait()
                if refused is not None or not goes_on:
                    child.close()
                    child = None
            if time.monotonic() - told >= SILENT_S:
                told = time.monotonic()
                self._log.warning("dataplane.silent", state_dir=str(self._state_dir))
            await asyncio.sleep(MEET_POLL_S)
        if child is not None:
            child.close()
        return None

    # ---- the end

    def kill(self) -> None:
        """End its processes at once, from any thread, when there is no time for `stop`."""
        for child in (self._spare, self._child):
            if child is not None and not child.ended:
                child.signal(signal.SIGKILL)

    async def stop(self, grace_s: float) -> None:
        """Ask the data plane to end, and end it when it does not; `run` is cancelled before."""
        self._with_spare = False
        spare, self._spare = self._spare, None
        if spare is not None:
            asyncio.get_running_loop().remove_reader(spare.holder.connection.fileno())
            spare.close()  # it ends when nobody will say what to do
            await spare.wait()
        child, self._child = self._child, None
        if child is not None and not child.ended:
            child.signal(signal.SIGTERM)
            try:
                code = await asyncio.wait_for(child.wait(), grace_s)
            except TimeoutError:
                self._log.warning("dataplane.killed", pid=child.pid, grace_s=grace_s)
                child.signal(signal.SIGKILL)
                code = await child.wait()
            self._log.info("dataplane.stopped", code=code)
        if child is not None:
            with suppress(OSError, ValueError):
                asyncio.get_running_loop().remove_reader(child.holder.connection.fileno())
            child.close()
        self._kept.clear()


def _is_locked(state_dir: Path) -> bool:
    """Whether a data plane lives that uses the directory."""
    try:
        fd = os.open(state_dir / "dataplane.lock", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
