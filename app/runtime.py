"""Background tasks of a management plane, from start to stop."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from typing import Any

import structlog
import zmq
import zmq.asyncio

from app.compose import Parts
from app.errors import StoreUnavailable
from app.ingest.subscriber import Resync, Secure, Subscriber
from app.observe.catalogue.fleet import NodeLost
from app.observe.catalogue.service import DataplaneStopped
from app.push.joining import EnrolmentServer, not_bound
from app.push.link import NodeLink
from app.push.node_journal import NodeJournal
from app.push.node_sessions import NodeSessions
from app.push.node_sync import NodeSync
from app.store.base import migrate, private
from app.store.base.database import Database
from app.store.base.notify import Listener

SWEEP_S = 0.25
SAMPLE_S = 1.0
RESTART_TASK_S = 1.0
LAST_READ_S = 1.0
"""Seconds that a stop waits for the usage that nodes report: one may hang."""
LAST_WRITE_S = 1.0
"""Seconds that a stop waits for one of its writes: the database may hang."""
CANCEL_S = 0.2
"""Seconds for a cancelled task to end before it is cancelled again: the driver of Postgres ends a connection that hangs
in good order first, and at once when it is cancelled again."""
MAX_NAMED = 20
"""Largest number of nodes that a log line names."""
WAIT_FIRST_S = 0.25
WAIT_MAX_S = 2.0
"""Shortest and longest pause of a task that waits for the database."""


class BackgroundTasks:
    """Runs everything besides requests: the sync task, the subscriber, the clockwork, the embedded data plane."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._tasks = TaskLoops(parts.foundation.pushes)
        self._zmq: zmq.asyncio.Context | None = None
        self._node_sessions: NodeSessions | None = None
        self._joining: EnrolmentServer | None = None
        self._journal = NodeJournal(parts.database, parts.settings.app.max_kept_pushes)
        self._log = structlog.get_logger()

    async def start(self) -> None:
        """Migrate the database, load the state, start the tasks. A database that is readable but refuses writes because
        its disk is full is sufficient. Raises StoreUnavailable."""
        parts = self.parts
        parts.process.start()
        await migrate.upgrade(parts.database)
        for found in private.exposed(parts.settings.state_dir, parts.database.path):
            self._log.warning("files.readable_by_others", path=found.path, mode=found.mode, fix=found.fix)
        try:
            await self._authenticate()
        except StoreUnavailable as error:
            if not parts.access.auth.started:
                raise
            self._log.warning("database.read_only", reason=error.message)
            self._tasks.keep("setup", self._authenticate_later)
        await parts.documents.startup.start()
        await parts.foundation.desired.refresh()
        await self._journal.load(parts.fleet, time.monotonic())
        await parts.cache.watch.load()
        await parts.foundation.node_conditions.load(parts.database)
        with suppress(StoreUnavailable):  # the task tries again
            await parts.foundation.managers.notify()
        await parts.foundation.leader_election.step()
        self._zmq = zmq.asyncio.Context()
        self._node_sessions = self._make_node_sessions(self._zmq)
        if parts.settings.app.join_url:
            self._open_joining(parts.settings.app.join_url)
        self._tasks.keep("leader_election", parts.foundation.leader_election.run)
        self._tasks.keep("node_journal", self._journal.run)
        self._tasks.keep("managers", parts.foundation.managers.run)
        if parts.database.url.get_backend_name() == "postgresql":
            listener = Listener(
                parts.database, parts.foundation.managers.on_notifications, parts.foundation.managers.missed
            )
            self._tasks.keep("notices", listener.run)
        self._tasks.keep("nodes", self._node_sessions.run)
        self._tasks.every(1.0, "tokens", lambda: parts.access.token_uses.write(time.monotonic()))
        self._tasks.every(15.0, "token ends", parts.access.token_expiries.read)
        self._tasks.every(15.0, "token_expiries", lambda: parts.access.token_expiries.publish(time.time()), leader=True)
        self._tasks.every(3600.0, "audit", parts.access.audit.log_head)
        self._tasks.keep("clockwork", self._clockwork)
        self._tasks.keep("usage", parts.usage.ledger.run)
        self._tasks.every(600.0, "retention", parts.usage.retention.step, leader=True)
        self._tasks.keep("apply_file", parts.documents.startup.run)
        self._tasks.keep("history", parts.views.events.run)
        self._tasks.every(60.0, "series", parts.views.series_writer.step, first_s=60.0)
        self._tasks.every(5.0, "alerts", parts.views.alerts.look)
        self._tasks.keep("caches", parts.cache.watch.run)
        if lost_s := parts.settings.app.retire_nodes_after_s:
            retire, pushes = parts.fleet_services.node_actions.retire, parts.foundation.pushes
            self._tasks.every(5.0, "retirement", lambda: retire(lost_s, time.monotonic(), pushes))
        if parts.fleet_services.supervisor is not None:
            self._tasks.keep("supervisor", parts.fleet_services.supervisor.run)

    async def stop(self) -> None:
        """Stop everything in reverse order; safe after a start that failed half way. A database that hangs delays it by
        LAST_WRITE_S, a node that hangs by LAST_READ_S."""
        parts = self.parts
        node = parts.fleet.name_at(parts.settings.common.control_url)
        if parts.fleet_services.supervisor is not None and node and not parts.fleet_services.restarts.is_replacing:
            parts.bus.publish(DataplaneStopped(), node=node)
        parts.bus.close()
        parts.process.stop()
        await self._tasks.end()
        writes = _LastWrites()
        if self._tasks:
            await parts.usage.ledger.read_last(LAST_READ_S)
            await writes.run("usage", parts.usage.ledger.write_last())
        if self._node_sessions is not None:
            await self._node_sessions.close()
        await asyncio.gather(self._leave(writes), self._end_data_plane())
        if self._joining is not None:
            self._joining.close()
        if self._zmq is not None:
            self._zmq.term()
        await writes.close(parts.database)

    async def _leave(self, writes: "_LastWrites") -> None:
        """Write what is pending, and let another manager push."""
        parts = self.parts
        await writes.run("node_journal", self._journal.flush())
        if self._tasks:
            await writes.run("series", parts.views.series_writer.flush_last())
        await writes.run("leader_lock", parts.foundation.leader_election.stop())
        await writes.run("managers", parts.foundation.managers.leave())
        if parts.access.auth.started:
            await writes.run("tokens", parts.access.token_uses.write(time.monotonic(), all_of_them=True))
            await writes.run("audit", parts.access.audit.log_head())
        await writes.run("events", parts.views.events.flush())

    async def _end_data_plane(self) -> None:
        parts = self.parts
        if parts.fleet_services.supervisor is None:
            return
        if parts.fleet_services.restarts.is_replacing:
            await parts.fleet_services.supervisor.leave()
        else:
            await parts.fleet_services.supervisor.stop(parts.settings.app.shutdown_grace_s)

    async def _authenticate(self) -> None:
        """Start authentication. If a setup token was created, only this log line contains it."""
        token = await self.parts.access.auth.start()
        if token:
            # Not as `token`: the log redacts fields of such names.
            self._log.warning("auth.setup_token", setup=token, once="larder login --setup")

    async def _authenticate_later(self) -> None:
        """Start authentication as soon as the database accepts writes."""
        await self._authenticate()
        await asyncio.Event().wait()

    def _make_node_sessions(self, context: zmq.asyncio.Context) -> NodeSessions:
        parts, base = self.parts, self.parts.foundation
        timeout_s = parts.settings.app.push_timeout_s
        fleet, bus = parts.fleet, parts.bus

        def make_sync(link: NodeLink) -> NodeSync:
            return NodeSync(link, fleet, base.desired, self._journal, bus, timeout_s, base.leader_election)

        def make_subscriber(node: str, resync: Resync, secure: Secure | None) -> Subscriber:
            return Subscriber(node, parts.ingest.intake, resync, secure)

        return NodeSessions(
            fleet,
            self._journal,
            base.node_requests,
            context,
            parts.fleet_services.keys,
            make_sync,
            make_subscriber,
            self._tasks.loop,
            parts.settings.common.control_url,
            f"larder-{os.getpid()}",
        )

    def _open_joining(self, url: str) -> None:
        """Open the enrolment socket. Raises SettingsError, OSError."""
        parts = self.parts
        refusing = sorted(node.name for node in parts.fleet.nodes.values() if node.public_key)
        if parts.fleet_services.keys().is_new and refusing:
            self._log.warning(
                "join.key_replaced",
                reason="there was no key of the management plane, so a new one was made; these nodes do not accept it",
                nodes=refusing[:MAX_NAMED],
                nodes_total=len(refusing),
                fix="A lost management plane's key in docs/operate/fleet.md",
            )
        try:
            joining = self._joining = EnrolmentServer(
                url, parts.fleet_services.keys(), parts.fleet_services.enrolment.decide
            )
        except zmq.ZMQError as error:
            raise not_bound(url, error) from None
        parts.fleet_services.enrolment.url = joining.url
        self._log.info("join.listening", url=joining.url, public_key=parts.fleet_services.keys().public)
        self._tasks.keep("join keys", joining.greet)
        self._tasks.keep("join visitors", joining.watch)
        self._tasks.keep("join", joining.run)

    async def _clockwork(self) -> None:
        """Find silent nodes, flush the sums of frequent events, sample nodes."""
        parts = self.parts
        sampled = -SAMPLE_S
        while True:
            now = time.monotonic()
            for node in parts.fleet.sweep(now, parts.settings.app.node_lost_s):
                self._log.warning("node.lost", node=node.name)
                parts.bus.publish(NodeLost(), node=node.name)
            parts.ingest.intake.flush()
            if now - sampled >= SAMPLE_S:
                sampled = now
                stats = parts.fleet.stats()
                parts.ingest.rate_meter.sample(time.time(), stats)
                parts.ingest.refusal_runs.look(stats)
                for name, event in parts.foundation.node_conditions.look(stats):
                    parts.bus.publish(event, node=name)
                if stats and parts.ingest.sampler.is_due(time.time()):
                    await asyncio.to_thread(parts.ingest.sampler.sample, time.time(), stats)
            slept = time.monotonic()
            await asyncio.sleep(SWEEP_S)
            parts.process.loop_lag.observe(time.monotonic() - slept - SWEEP_S)


class TaskLoops:
    """Work that runs again and again, whatever fails."""

    def __init__(self, pushes: Callable[[], bool]) -> None:
        """`pushes` returns whether this manager pushes to nodes."""
        self._pushes = pushes
        self._tasks: list[asyncio.Task[None]] = []
        self._log = structlog.get_logger()

    def __bool__(self) -> bool:
        """Return whether any work was begun."""
        return bool(self._tasks)

    async def end(self) -> None:
        """Cancel all work that `every` and `keep` began, and wait until it ends."""
        await _end(self._tasks)

    def every(
        self,
        seconds: float,
        name: str,
        step: Callable[[], Awaitable[None]],
        *,
        first_s: float = 0.0,
        leader: bool = False,
    ) -> None:
        """Take a step after `first_s` seconds, and again `seconds` after each one, until `end`. `leader`: only while
        this manager pushes to nodes."""

        async def run() -> None:
            await asyncio.sleep(first_s)
            while True:
                if not leader or self._pushes():
                    await step()
                await asyncio.sleep(seconds)

        self.keep(name, run)

    def keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` in a loop until `end`."""
        self._tasks.append(self.loop(name, work))

    def loop(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run `work` forever; log a failure and start it again, so that one broken part does not stop the others. The
        database watch reports an unreachable database once, so that failure is logged at debug level only."""

        async def loop() -> None:
            wait_s = WAIT_FIRST_S
            while True:
                started = time.monotonic()
                task = asyncio.create_task(work(), name=name)
                try:
                    await asyncio.wait({task})
                finally:
                    while not task.done():
                        task.cancel()
                        with suppress(asyncio.CancelledError):  # a second cancellation is passed on
                            await asyncio.wait({task})
                error = task.exception() if not task.cancelled() else None
                if isinstance(error, StoreUnavailable):
                    self._log.debug("task.postponed", task=name, reason=error.message)
                    calm = time.monotonic() - started > WAIT_MAX_S
                    wait_s = WAIT_FIRST_S if calm else min(wait_s * 2, WAIT_MAX_S)
                    await asyncio.sleep(wait_s)
                    continue
                self._log.error("task.failed", task=name, exc_info=error)
                await asyncio.sleep(RESTART_TASK_S)

        return asyncio.create_task(loop(), name=f"keep {name}")


class _LastWrites:
    """Runs the last writes of a stop, one after the other. After a write that the database did not answer within
    LAST_WRITE_S, all others are skipped and logged."""

    def __init__(self) -> None:
        self._hangs = False
        self._log = structlog.get_logger()

    async def run(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Run one write, or log that it was skipped. Raises what `work` raises, except StoreUnavailable."""
        if self._hangs:
            work.close()
            self._log.warning("stop.not_written", what=what, reason="the database hangs")
            return
        task = asyncio.create_task(work)
        await asyncio.wait({task}, timeout=LAST_WRITE_S)
        if not task.done():
            self._hangs = True
            await _end([task])
            self._log.warning("stop.not_written", what=what, reason="the database did not answer in time")
            return
        try:
            task.result()
        except StoreUnavailable as error:
            self._log.warning("stop.not_written", what=what, reason=error.message)

    async def close(self, database: Database) -> None:
        """Close the connections. Those of a database that hangs end with the process."""
        task = asyncio.create_task(database.close())
        await asyncio.wait({task}, timeout=CANCEL_S if self._hangs else None)
        if task.done():
            task.result()
        else:
            await _end([task])


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks, and wait until they end."""
    waiting: Collection[asyncio.Task[None]] = tasks
    while waiting:
        for task in waiting:
            task.cancel()
        _, waiting = await asyncio.wait(waiting, timeout=CANCEL_S)
