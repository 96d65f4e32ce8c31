"""What runs besides requests, from the start to the end of a management plane."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
import zmq
import zmq.asyncio

from app.compose import Parts
from app.errors import StoreUnavailable
from app.ingest.subscriber import Resync, Secure, Subscriber
from app.push.crews import Crews
from app.push.joining import Joining, not_bound
from app.push.ledger import Ledger
from app.push.link import Link
from app.push.worker import Worker
from app.store import migrate, private
from app.store.notify import Listener

SWEEP_S = 0.25
SAMPLE_S = 1.0
RESTART_TASK_S = 1.0
USAGE_CLOSE_S = 1.0
"""For reading and writing once more what was used."""
LEAVE_S = 1.0
WAIT_FIRST_S = 0.25
WAIT_MOST_S = 2.0
"""Pauses of a task that needs the database while that is away."""


class Runtime:
    """What runs besides requests: the push worker, the subscriber, the clockwork, the embedded data plane."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._tasks: list[asyncio.Task[None]] = []
        self._zmq: zmq.asyncio.Context | None = None
        self._crews: Crews | None = None
        self._joining: Joining | None = None
        self._ledger = Ledger(parts.database)
        self._log = structlog.get_logger()

    async def start(self) -> None:
        """Migrate, remember, begin. Raises StoreUnavailable."""
        parts = self.parts
        await migrate.upgrade(parts.database)
        for found in private.exposed(parts.settings.state_dir, parts.database.path):
            self._log.warning("files.open_to_others", path=found.path, mode=found.mode, fix=found.fix)
        await self._authenticate()
        await parts.boot.start()
        await parts.desired.refresh()
        await self._ledger.load(parts.fleet, time.monotonic())
        await parts.replicas.beat()
        await parts.lead.step()
        self._zmq = zmq.asyncio.Context()
        self._crews = self._make_crews(self._zmq)
        if parts.settings.app.join_url:
            self._open_joining(parts.settings.app.join_url)
        self._keep("lead", parts.lead.run)
        self._keep("ledger", self._ledger.run)
        self._keep("replicas", parts.replicas.run)
        if parts.database.url.get_backend_name() == "postgresql":
            listener = Listener(parts.database, parts.replicas.heard, parts.replicas.missed)
            self._keep("notices", listener.run)
        self._keep("nodes", self._crews.run)
        self._keep("tokens", parts.token_uses.run)
        self._keep("audit", parts.audit.run)
        self._keep("clockwork", self._clockwork)
        self._keep("usage", parts.usage_ledger.run)
        self._keep("retention", parts.retention.run)
        self._keep("apply_file", parts.boot.run)
        self._keep("history", parts.events.run)
        if parts.supervisor is not None:
            self._keep("supervisor", parts.supervisor.run)

    async def stop(self) -> None:
        """In the reverse order; safe after a start that failed half way."""
        parts = self.parts
        parts.hub.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            await parts.usage_ledger.close(USAGE_CLOSE_S)
        if self._crews is not None:
            await self._crews.close()
        await self._leave()
        if parts.supervisor is not None:
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
        """Write down what is not written yet, and let another replica push."""
        parts = self.parts
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._ledger.flush()
        except (StoreUnavailable, TimeoutError) as error:
            self._log.warning("ledger.not_written", reason=str(error))
        await parts.lead.stop()
        await parts.replicas.leave()

    async def _authenticate(self) -> None:
        """From now on callers are known. Of a setup token this line is the only trace."""
        token = await self.parts.auth.start()
        if token:
            self._log.warning("auth.setup_token", token=token, once="larder login --setup")

    def _make_crews(self, context: zmq.asyncio.Context) -> Crews:
        parts = self.parts

        def make_worker(link: Link) -> Worker:
            timeout_s = parts.settings.app.push_timeout_s
            return Worker(
                link,
                parts.fleet,
                parts.desired,
                self._ledger,
                parts.hub,
                parts.push,
                timeout_s,
                parts.lead,
            )

        def make_subscriber(node: str, resync: Resync, secure: Secure | None) -> Subscriber:
            return Subscriber(node, parts.fleet, parts.hub, parts.rollup, parts.ingest, resync, secure)

        return Crews(
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
        """Raises SettingsError."""
        parts = self.parts
        try:
            joining = self._joining = Joining(url, parts.keys(), parts.joins.decide)
        except zmq.ZMQError as error:
            raise not_bound(url, error) from None
        parts.joins.url = joining.url
        self._log.info("join.listening", url=joining.url, public_key=parts.keys().public)
        self._keep("join keys", joining.greet)
        self._keep("join visitors", joining.watch)
        self._keep("join", joining.run)

    def _keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """The same, until the end."""
        self._tasks.append(self._loop(name, work))

    def _loop(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None]:
        """Run for ever; what fails is told and started again: one broken part must not stop the others. That the
        database is away is told by its watch, once for all."""

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
                    calm = time.monotonic() - started > WAIT_MOST_S
                    wait_s = WAIT_FIRST_S if calm else min(wait_s * 2, WAIT_MOST_S)
                    await asyncio.sleep(wait_s)
                    continue
                self._log.error("task.failed", task=name, exc_info=error)
                await asyncio.sleep(RESTART_TASK_S)

        return asyncio.create_task(loop(), name=f"keep {name}")

    async def _clockwork(self) -> None:
        """Find silent nodes, tell sums of busy events, sample the history."""
        parts = self.parts
        sampled = -SAMPLE_S
        while True:
            now = time.monotonic()
            for node in parts.fleet.sweep(now, parts.settings.app.node_lost_s):
                self._log.warning("node.lost", node=node.name)
                parts.hub.publish("node.lost", node.name)
            parts.rollup.flush()
            if now - sampled >= SAMPLE_S:
                sampled = now
                parts.history.sample(time.time(), parts.fleet.stats())
            await asyncio.sleep(SWEEP_S)
