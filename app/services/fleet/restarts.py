"""Restart this Larder on purpose: a new data plane process adopts the memory, then this process replaces itself.

The data plane goes first, so that this process supervises it until it serves; the management plane follows, and finds
it serving. Before anything is stopped, this module checks that both new processes start with the
settings that are on disk now, and that the new data plane can adopt the memory."""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Mapping

from app import __version__
from app.child_process import child_process
from app.errors import Conflict
from app.ingest.fleet import Fleet, FleetNode
from app.observe.catalogue.service import ManagerRestartRequested
from app.schemas.fleet.restarts import RestartAnswer, RestartPost
from app.services.base.changes import Changes
from app.services.base.principals import Principal
from app.settings import Settings, load
from app.supervisor.environ import environ_of
from app.supervisor.supervisor import CannotReplace, Supervisor
from dataplane.base.child_command import module_command
from dataplane.base.settings import SettingsError
from dataplane.base.units import format_size

CHECK_TIMEOUT_S = 60.0
REPORT_TIMEOUT_S = 60.0
"""Seconds in which the new data plane reports its stats, which say how much it adopted."""
FIXED = ("state_dir", "engine_socket", "control_url", "events_url", "database_url", "http_host", "http_port")
"""Shared settings by which the processes find each other: to change them, stop Larder and start it again."""
MAX_NAMED_PINS = 5


class Restarts:
    """Restart this Larder. A process that can replace itself (`larder up`) sets `replace_self`; without it, nothing
    restarts."""

    def __init__(
        self, settings: Settings, supervisor: Supervisor | None, fleet: Fleet, changes: Changes, instance: str
    ) -> None:
        self._settings = settings
        self._supervisor = supervisor
        self._fleet = fleet
        self._changes = changes
        self._instance = instance
        self._lock = asyncio.Lock()
        self.replace_self: Callable[[], bool] | None = None
        self.is_replacing = False
        """Whether this process is ending to replace itself, while the data plane stays."""

    async def restart(self, request: RestartPost, by: Principal) -> RestartAnswer:
        """Restart, or only check with `dry_run`. Raises Forbidden; Conflict when a restart would lose the cache without
        `fresh`, or when a new process would not start."""
        by.check_whole("a restart")
        if self.replace_self is None:
            raise Conflict("this management plane was not started by `larder up`, and cannot restart itself")
        if self._lock.locked() or self.is_replacing:
            raise Conflict("a restart is under way")
        async with self._lock:
            return await self._restart(request, by, self.replace_self)

    async def _restart(self, request: RestartPost, by: Principal, begin: Callable[[], bool]) -> RestartAnswer:
        environ = await self._checked()
        node = self._node()
        stats = None if node is None else node.live_stats
        blocks, nbytes = (0, 0) if stats is None else (stats.pool.blocks, stats.pool.ready_bytes)
        reason = ""
        if self._supervisor is not None:
            try:
                reason = await self._supervisor.why_not_adoptable(environ)
            except CannotReplace as error:
                raise Conflict(f"{error}. Nothing was stopped") from None
        if request.fresh and not reason:
            reason = "fresh: true releases the cache"
        if request.dry_run:
            return self._answer(blocks, nbytes, reason, None, None)
        if reason and not request.fresh:
            lost = f"{blocks:,} blocks ({format_size(nbytes)}) would be lost{self._lost_pins()}"
            raise Conflict(
                f"the new data plane process cannot take the cache over: {reason}. {lost}. Nothing was "
                "stopped; `fresh: true` (`larder restart --fresh`) accepts the loss"
            )
        await self._changes.note(
            "restart",
            "plane",
            self._instance,
            {"fresh": request.fresh},
            by,
            ManagerRestartRequested(self._instance, request.fresh),
        )
        pid: int | None = None
        seconds: float | None = None
        if self._supervisor is not None:
            before = "" if node is None else node.epoch
            try:
                seconds = await self._supervisor.replace(
                    environ, keep=not request.fresh, grace_s=self._settings.app.shutdown_grace_s
                )
            except CannotReplace as error:
                raise Conflict(str(error)) from None
            after = await self._await_report(before)
            if after is None:
                raise Conflict(
                    f"the new data plane serves, and did not report to this process within {REPORT_TIMEOUT_S:g} s: the "
                    "management plane was not replaced; see the log"
                )
            pid = after.pid
            start = None if after.stats is None else after.stats.start
            if start is not None and start.kind == "warm":  # the stats from before were up to half a second old
                blocks, nbytes = start.blocks, start.bytes
            elif start is not None and start.kind == "cold" and not reason:
                reason = start.reason
        self.is_replacing = begin()
        if not self.is_replacing:
            raise Conflict("Larder is stopping: the data plane was replaced, the management plane is not")
        return self._answer(blocks, nbytes, reason, pid, seconds)

    def _answer(self, blocks: int, nbytes: int, reason: str, pid: int | None, seconds: float | None) -> RestartAnswer:
        starts = self._supervisor is not None
        return RestartAnswer(self._instance, __version__, blocks, nbytes, not reason, reason, pid, seconds, starts)

    async def _checked(self) -> Mapping[str, str]:
        """Check that the new processes would start, and return the environment of a data plane with the settings that
        are on disk now. Raises Conflict."""
        await self._check_command("app", "up", "--print-config")
        try:
            settings = load()
        except SettingsError as error:
            raise Conflict(f"the new processes would not start: {error}") from None
        changed = [name for name in FIXED if getattr(settings.common, name) != getattr(self._settings.common, name)]
        if changed:
            raise Conflict(f"{', '.join(changed)} changed since the start: stop Larder and start it again for that")
        if self._supervisor is not None:
            await self._check_command("dataplane", "--print-config")
        return environ_of(os.environ, settings.common)

    async def _check_command(self, *module: str) -> None:
        """Check that the code on disk starts: a new release may be half installed. Raises Conflict."""
        streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        try:
            async with child_process(module_command(*module), **streams) as process:
                async with asyncio.timeout(CHECK_TIMEOUT_S):
                    _, errors = await process.communicate()
        except TimeoutError:
            raise Conflict(f"a new process did not start within {CHECK_TIMEOUT_S:g} s") from None
        except OSError as error:
            raise Conflict(f"a new process would not start: {error.strerror}") from None
        if process.returncode:
            lines = errors.decode(errors="replace").strip().splitlines()
            output = lines[-1] if lines else f"exit code {process.returncode}"
            raise Conflict(f"a new process would not start: {output}")

    def _node(self) -> FleetNode | None:
        """Return the node of the embedded data plane."""
        if self._supervisor is None:
            return None
        url = self._settings.common.control_url
        return next((node for node in self._fleet.nodes.values() if node.control_url == url), None)

    async def _await_report(self, before: str) -> FleetNode | None:
        """Return the node once a process other than `before` has reported its stats; None if none does in time."""

        def has_reported() -> bool:
            node = self._node()
            return node is not None and node.epoch != before and node.stats is not None

        deadline = time.monotonic() + REPORT_TIMEOUT_S
        while not has_reported():
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return None
            await self._fleet.change_signal.until(has_reported, min(remaining_s, 0.1))
        return self._node()

    def _lost_pins(self) -> str:
        node = self._node()
        stats = None if node is None else node.live_stats
        pins = [] if stats is None else [pin.name for pin in stats.pins if pin.strength != "soft" and pin.resident]
        if not pins:
            return ""
        named = ", ".join(repr(name) for name in pins[:MAX_NAMED_PINS])
        further = f" and {len(pins) - MAX_NAMED_PINS} more" if len(pins) > MAX_NAMED_PINS else ""
        return f", among them what the pins {named}{further} guarantee"
