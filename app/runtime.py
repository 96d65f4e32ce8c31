"""Background tasks of a management plane, from start to stop."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import structlog
import zmq
import zmq.asyncio

from app.compose import Parts
from app.errors import StoreUnavailable
from app.ingest.subscriber import Resync, Secure, Subscriber
from app.push.joining import EnrolmentServer, not_bound
from app.push.ledger import Ledger
from app.push.link import NodeLink
from app.push.node_sessions import NodeSessions
from app.push.worker import Worker
from app.store.base import migrate, private
from app.store.base.notify import Listener

SWEEP_S = 0.25
SAMPLE_S = 1.0
RESTART_TASK_S = 1.0
USAGE_CLOSE_S = 1.0
"""Seconds for the last read and write of usage."""
LEAVE_S = 1.0
WAIT_FIRST_S = 0.25
WAIT_MAX_S = 2.0
"""Shortest and longest pause of a task that waits for the database."""


class BackgroundTasks:
    """Runs everything besides requests: the push worker, the subscriber, the clockwork, the embedded data plane."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._tasks: list[asyncio.Task[None]] = []
        self._zmq: zmq.asyncio.Context | None = None
        self._node_sessions: NodeSessions | None = None
        self._joining: EnrolmentServer | None = None
        self._ledger = Ledger(parts.database)
        self._log = structlog.get_logger()

    async def start(self) -> None:
        """Migrate the database, load the state, start the tasks. A database that is readable but refuses writes because
        its disk is full is sufficient. Raises StoreUnavailable."""
        parts = self.parts
        await migrate.upgrade(parts.database)
        for found in private.exposed(parts.settings.state_dir, parts.database.path):
            self._log.warning("files.open_to_others", path=found.path, mode=found.mode, fix=found.fix)
        try:
            await self._authenticate()
        except StoreUnavailable as error:
            if not parts.auth.started:
                raise
            self._log.warning("database.takes_no_changes", reason=error.message)
            self._keep("setup", self._authenticate_later)
        await parts.startup_document.start()
        await parts.desired.refresh()
        await self._ledger.load(parts.fleet, time.monotonic())
        await parts.cache_watch.load()
        with suppress(StoreUnavailable):  # the task tries again
            await parts.managers.notify()
        await parts.leader_election.step()
        self._zmq = zmq.asyncio.Context()
        self._node_sessions = self._make_node_sessions(self._zmq)
        if parts.settings.app.join_url:
            self._open_joining(parts.settings.app.join_url)
        self._keep("leader_election", parts.leader_election.run)
        self._keep("ledger", self._ledger.run)
        self._keep("managers", parts.managers.run)
        if parts.database.url.get_backend_name() == "postgresql":
            listener = Listener(parts.database, parts.managers.on_notifications, parts.managers.missed)
            self._keep("notices", listener.run)
        self._keep("nodes", self._node_sessions.run)
        self._keep("tokens", parts.token_uses.run)
        self._keep("audit", parts.audit.run)
        self._keep("clockwork", self._clockwork)
        self._keep("usage", parts.usage_ledger.run)
        self._keep("retention", parts.retention.run)
        self._keep("apply_file", parts.startup_document.run)
        self._keep("history", parts.events.run)
        self._keep("caches", parts.cache_watch.run)
        if parts.supervisor is not None:
            self._keep("supervisor", parts.supervisor.run)

    async def stop(self) -> None:
        """Stop everything in reverse order; safe after a start that failed half way."""
        parts = self.parts
        parts.bus.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            await parts.usage_ledger.close(USAGE_CLOSE_S)
        if self._node_sessions is not None:
            await self._node_sessions.close()
        await self._leave()
        if parts.supervisor is not None:
            if parts.restarts.is_replacing:
                await parts.supervisor.leave()
            else:
                await parts.supervisor.stop(parts.settings.app.shutdown_grace_s)
        if self._joining is not None:
            self._joining.close()
        if self._zmq is not None:
            self._zmq.term()
        if parts.auth.started:
            await parts.token_uses.write(time.monotonic(), all_of_them=True)
            await parts.audit.tell()
        await parts.events.flush()
        await parts.database.close()

    async def _leave(self) -> None:
        """Write the pending part of the ledger, and let another manager push."""
        parts = self.parts
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._ledger.flush()
        except (StoreUnavailable, TimeoutError) as error:
            self._log.warning("ledger.not_written", reason=str(error))
        await parts.leader_election.stop()
        await parts.managers.leave()

    async def _authenticate(self) -> None:
        """Start authentication. If a setup token was created, only this log line contains it."""
        token = await self.parts.auth.start()
        if token:
            self._log.warning("auth.setup_token", token=token, once="larder login --setup")

    async def _authenticate_later(self) -> None:
        """Start authentication as soon as the database accepts writes."""
        await self._authenticate()
        await asyncio.Event().wait()

    def _make_node_sessions(self, context: zmq.asyncio.Context) -> NodeSessions:
        parts = self.parts

        def make_worker(link: NodeLink) -> Worker:
            timeout_s = parts.settings.app.push_timeout_s
            return Worker(
                link,
                parts.fleet,
                parts.desired,
                self._ledger,
                parts.bus,
                parts.push,
                timeout_s,
                parts.leader_election,
            )

        def make_subscriber(node: str, resync: Resync, secure: Secure | None) -> Subscriber:
            return Subscriber(
                node,
                parts.fleet,
                parts.bus,
                parts.rollup,
                parts.ingest,
                resync,
                parts.cache_watch.on_stats,
                secure,
            )

        return NodeSessions(
            parts.fleet,
            self._ledger,
            parts.operations,
            context,
            parts.keys,
            make_worker,
            make_subscriber,
            self._loop,
            parts.settings.common.control_url,
            f"larder-{os.getpid()}",
        )

    def _open_joining(self, url: str) -> None:
        """Open the enrolment socket. Raises SettingsError."""
        parts = self.parts
        try:
            joining = self._joining = EnrolmentServer(url, parts.keys(), parts.enrolment.decide)
        except zmq.ZMQError as error:
            raise not_bound(url, error) from None
        parts.enrolment.url = joining.url
        self._log.info("join.listening", url=joining.url, public_key=parts.keys().public)
        self._keep("join keys", joining.greet)
        self._keep("join visitors", joining.watch)
        self._keep("join", joining.run)

    def _keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run `work` in a loop until `stop`."""
        self._tasks.append(self._loop(name, work))

    def _loop(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
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
                    task.cancel()
                    await asyncio.wait({task})
                error = task.exception() if not task.cancelled() else None
                if isinstance(error, StoreUnavailable):
                    self._log.debug("task.waits", task=name, reason=error.message)
                    calm = time.monotonic() - started > WAIT_MAX_S
                    wait_s = WAIT_FIRST_S if calm else min(wait_s * 2, WAIT_MAX_S)
                    await asyncio.sleep(wait_s)
                    continue
                self._log.error("task.failed", task=name, exc_info=error)
                await asyncio.sleep(RESTART_TASK_S)

        return asyncio.create_task(loop(), name=f"keep {name}")

    async def _clockwork(self) -> None:
        """Find silent nodes, flush the sums of frequent events, sample the history."""
        parts = self.parts
        sampled = -SAMPLE_S
        while True:
            now = time.monotonic()
            for node in parts.fleet.sweep(now, parts.settings.app.node_lost_s):
                self._log.warning("node.lost", node=node.name)
                parts.bus.publish("node.lost", node.name)
            parts.rollup.flush()
            if now - sampled >= SAMPLE_S:
                sampled = now
                parts.history.sample(time.time(), parts.fleet.stats())
            await asyncio.sleep(SWEEP_S)
