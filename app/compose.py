"""Everything is created and wired here, on one page. Creating opens nothing: `Runtime.start` does."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import structlog
import zmq.asyncio
from prometheus_client import CollectorRegistry

from app.errors import StoreUnavailable
from app.http.edge import RequestCounts
from app.http.source import Sources
from app.ingest.fleet import Fleet
from app.ingest.history import History
from app.ingest.rollup import Rollup
from app.ingest.subscriber import IngestCounts, Subscriber
from app.observe import metrics
from app.observe.facts import FactHub
from app.push.desired import Desired
from app.push.lead import Lead
from app.push.ledger import Ledger
from app.push.link import Link
from app.push.operations import Operations
from app.push.supervisor import Supervisor
from app.push.worker import PushCounts, Worker
from app.services.actions import Actions
from app.services.apply import Apply
from app.services.audit import Audit
from app.services.auth import Auth
from app.services.blocks import BlockService
from app.services.boot import BootFile
from app.services.ceilings import Ceilings
from app.services.changes import Changes
from app.services.events import Events
from app.services.export import Export
from app.services.lookups import Lookups
from app.services.nodes import Nodes
from app.services.overview import OverviewService
from app.services.pins import Pins
from app.services.policies import Policies
from app.services.prefixes import PrefixService
from app.services.progress import Progress
from app.services.pushes import Pushes
from app.services.quotas import Quotas
from app.services.rates import Rates
from app.services.replicas import Replicas
from app.services.resize import Resizing
from app.services.retention import Retention
from app.services.sessions import Sessions
from app.services.snapshot import Snapshots
from app.services.targets import Targets
from app.services.tenants import Tenants
from app.services.token_uses import TokenUses
from app.services.tokenizers import Tokenizers
from app.services.tokenizing import Tokenizing
from app.services.tokens import Tokens
from app.services.traces import Traces
from app.services.usage import UsageReports
from app.services.usage_ledger import UsageLedger
from app.settings import Settings, admin_token, is_loopback, proxies
from app.store import migrate
from app.store.claim import claim_of
from app.store.database import Database
from app.store.notify import Listener
from dataplane.protocol.settings import TOKEN_VARIABLE, to_environ

SWEEP_S = 0.25
SAMPLE_S = 1.0
RESTART_TASK_S = 1.0
_SECRETS = frozenset({"LARDER_APP__ADMIN_TOKEN", TOKEN_VARIABLE})
"""Variables that the data plane has no business with."""
USAGE_CLOSE_S = 1.0
"""For reading and writing once more what was used."""
LEAVE_S = 1.0
WAIT_FIRST_S = 0.25
WAIT_MOST_S = 2.0
"""Pauses of a task that needs the database while that is away."""


@dataclass
class Parts:
    """The objects of one management plane."""

    settings: Settings
    database: Database
    hub: FactHub
    fleet: Fleet
    desired: Desired
    history: History
    progress: Progress
    quotas: Quotas
    pins: Pins
    policies: Policies
    tenants: Tenants
    prefixes: PrefixService
    nodes: Nodes
    pushes: Pushes
    audit: Audit
    auth: Auth
    tokens: Tokens
    ceilings: Ceilings
    token_uses: TokenUses
    sessions: Sessions
    sources: Sources
    actions: Actions
    lookups: Lookups
    blocks: BlockService
    tokenizers: Tokenizers
    resizing: Resizing
    traces: Traces
    rates: Rates
    usage: UsageReports
    usage_ledger: UsageLedger
    retention: Retention
    apply: Apply
    export: Export
    boot: BootFile
    overview: OverviewService
    events: Events
    snapshots: Snapshots
    registry: CollectorRegistry
    rollup: Rollup
    operations: Operations
    lead: Lead
    replicas: Replicas
    supervisor: Supervisor | None
    requests: RequestCounts = field(default_factory=RequestCounts)
    ingest: IngestCounts = field(default_factory=IngestCounts)
    push: PushCounts = field(default_factory=PushCounts)


def build(settings: Settings) -> Parts:
    """The object graph."""
    database = Database(settings.common.database_url)
    hub, fleet, history = FactHub(), Fleet(), History()
    desired = Desired(database)
    progress = Progress(fleet, desired)
    changes = Changes(database, fleet, hub)
    events = Events(database)
    # Every replica hears what happens on nodes; one writes it down.
    hub.keep = lambda fact: events.offer(fact) if not fact.node or lead.latest else None
    lead = Lead(claim_of(database, database.origin))
    auth = Auth(database, changes, admin_token(settings.app), may_open=_may_open(settings))
    operations = Operations(fleet, settings.app.push_timeout_s)
    prefixes = PrefixService(operations)
    tokenizers = Tokenizers(database, changes, Tokenizing())
    targets = Targets(operations, fleet)
    pins = Pins(database, changes, progress, fleet, prefixes)
    policies = Policies(database, changes, progress, fleet)
    quotas = Quotas(database, changes, progress, fleet)
    apply = Apply(database, changes, progress, fleet)
    boot = _boot_file(settings, apply, database, hub)
    nodes = Nodes(progress, fleet)
    supervisor = _supervisor(settings, fleet, hub) if settings.app.embedded_data_plane else None
    requests, ingest, push = RequestCounts(), IngestCounts(), PushCounts()
    sources = metrics.Sources(
        stats=fleet.stats,
        nodes_up=lambda: {node.name: not node.lost for node in fleet.nodes.values()},
        desired=progress.generations,
        requests=requests.ended,
        pushes=push.ended,
        auth_failures=auth.counts.failures,
        numbers=lambda: {
            metrics.EVENTS.name: ingest.events,
            metrics.EVENTS_MALFORMED.name: ingest.malformed,
            metrics.EVENTS_LOST.name: ingest.lost,
            metrics.STREAMS.name: hub.listeners,
            metrics.FACTS_DROPPED.name: hub.dropped,
            metrics.EVENTS_UNKEPT.name: events.dropped,
            metrics.REPLICA_PUSHING.name: lead.pushing,
            metrics.DATABASE_UP.name: not database.watch.away,
            metrics.APPLY_FILE.name: boot.in_force,
            metrics.APPLY_FILE_REFUSED.name: boot.refused,
            metrics.AUDIT_LEFT_OUT.name: auth.unrecorded,
            metrics.RESTARTS.name: supervisor.restarts if supervisor is not None else 0,
        },
    )
    return Parts(
        settings=settings,
        database=database,
        hub=hub,
        fleet=fleet,
        desired=desired,
        history=history,
        progress=progress,
        quotas=quotas,
        pins=pins,
        policies=policies,
        tenants=Tenants(database, changes, fleet, quotas),
        prefixes=prefixes,
        nodes=nodes,
        pushes=Pushes(database),
        audit=Audit(database),
        auth=auth,
        tokens=Tokens(database, changes, auth),
        ceilings=Ceilings(database, changes),
        token_uses=TokenUses(database, auth),
        sessions=Sessions(database, changes, auth),
        sources=Sources(proxies(settings.app)),
        actions=Actions(targets, changes, tokenizers),
        lookups=Lookups(targets, tokenizers),
        blocks=BlockService(targets, prefixes),
        tokenizers=tokenizers,
        resizing=Resizing(database, operations, changes, fleet),
        traces=Traces(operations, fleet),
        rates=Rates(database, changes),
        usage=UsageReports(database),
        usage_ledger=UsageLedger(
            operations,
            fleet,
            database,
            settings.app.usage_read_s,
            settings.app.usage_write_s,
            lambda: lead.pushing,
        ),
        retention=Retention(
            database,
            settings.app.keep_events_days,
            settings.app.keep_pushes,
            settings.app.keep_usage_days,
            lambda: lead.pushing,
        ),
        apply=apply,
        export=Export(database),
        boot=boot,
        overview=OverviewService(database, fleet, history, hub, progress, nodes, pins, policies),
        events=events,
        snapshots=Snapshots(database, fleet, progress, hub),
        registry=metrics.registry_of(sources),
        rollup=Rollup(hub),
        operations=operations,
        lead=lead,
        replicas=Replicas(database, lead, fleet, hub),
        supervisor=supervisor,
        requests=requests,
        ingest=ingest,
        push=push,
    )


def _boot_file(settings: Settings, apply: Apply, database: Database, hub: FactHub) -> BootFile:
    app = settings.app
    return BootFile(app.apply_file, app.apply_prune, app.apply_limit_bytes, apply, database, hub)


def _may_open(settings: Settings) -> bool:
    """Whether requests need no token before there is one: when only this machine can send any."""
    alone = is_loopback(settings.common.http_host) and not settings.app.trusted_proxies
    return settings.app.auth == "auto" and alone


def _supervisor(settings: Settings, fleet: Fleet, hub: FactHub) -> Supervisor:
    inherited = {name: value for name, value in os.environ.items() if name not in _SECRETS}
    environ = {**inherited, **to_environ(settings.common)}

    def on_exit(code: int | None, restart_in_s: float) -> None:
        fleet.left(settings.common.control_url)
        hub.publish("dataplane.exited", code=code, restart_in_s=restart_in_s)

    return Supervisor(
        environ,
        on_exit,
        on_start=lambda pid: hub.publish("dataplane.started", pid=pid),
        engine_socket=settings.common.engine_socket,
        state_dir=settings.state_dir,
        survives=settings.app.data_plane_survives,
        spare=settings.app.spare_data_plane,
    )


class Runtime:
    """What runs besides requests: the push worker, the subscriber, the clockwork, the embedded data plane."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._tasks: list[asyncio.Task[None]] = []
        self._zmq: zmq.asyncio.Context | None = None
        self._link: Link | None = None
        self._ledger = Ledger(parts.database)
        self._log = structlog.get_logger()

    async def start(self) -> None:
        """Migrate, remember, begin. Raises StoreUnavailable."""
        parts = self.parts
        await migrate.upgrade(parts.database)
        await parts.boot.start()
        await self._authenticate()
        await parts.desired.refresh()
        await self._ledger.load(parts.fleet, time.monotonic())
        await parts.replicas.beat()
        await parts.lead.step()
        self._zmq = zmq.asyncio.Context()
        url = parts.settings.common.control_url
        self._link = Link(url, f"larder-{os.getpid()}", self._zmq)
        parts.operations.opened(self._link)
        worker = Worker(
            self._link,
            parts.fleet,
            parts.desired,
            self._ledger,
            parts.hub,
            parts.push,
            parts.settings.app.push_timeout_s,
            parts.lead,
        )
        self._keep("lead", parts.lead.run)
        self._keep("ledger", self._ledger.run)
        self._keep("replicas", parts.replicas.run)
        if parts.database.url.get_backend_name() == "postgresql":
            listener = Listener(parts.database, parts.replicas.heard, parts.replicas.missed)
            self._keep("notices", listener.run)
        self._keep("tokens", parts.token_uses.run)
        self._keep("audit", parts.audit.run)
        self._keep("push", worker.run)
        self._keep("clockwork", self._clockwork)
        self._keep("usage", parts.usage_ledger.run)
        self._keep("retention", parts.retention.run)
        self._keep("apply_file", parts.boot.run)
        self._keep("history", parts.events.run)
        self._keep("events", lambda: self._listen(url, worker))
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
        await self._leave()
        if parts.supervisor is not None:
            await parts.supervisor.stop(parts.settings.app.shutdown_grace_s)
        if self._link is not None:
            parts.operations.closed(self._link)
            await self._link.close()
        if self._zmq is not None:
            self._zmq.term()
        await parts.events.flush()
        if parts.auth.started:
            await parts.token_uses.write(time.monotonic(), all_of_them=True)
            await parts.audit.tell()
        await parts.database.close()

    async def _authenticate(self) -> None:
        """From now on callers are known. Of a setup token this line is the only trace."""
        token = await self.parts.auth.start()
        if token:
            self._log.warning("auth.setup_token", token=token, once="larder login --setup TOKEN")

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

    def _keep(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
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

        self._tasks.append(asyncio.create_task(loop(), name=f"keep {name}"))

    async def _listen(self, control_url: str, worker: Worker) -> None:
        """Follow the events of the node behind a control URL, whatever name and events URL it has at the time."""
        parts = self.parts
        assert self._zmq is not None
        while True:
            node = parts.fleet.at_url(control_url)
            if node is None or not node.events_url:
                await parts.fleet.pulse.wait(SWEEP_S * 4)
                continue
            name, url = node.name, node.events_url
            subscriber = Subscriber(name, parts.fleet, parts.hub, parts.rollup, parts.ingest, worker.resync)
            task = asyncio.create_task(subscriber.run(url, self._zmq))
            try:
                while not task.done() and _is_at(parts.fleet, control_url, name, url):
                    await parts.fleet.pulse.wait(SAMPLE_S)
                if task.done():
                    task.result()
            finally:
                task.cancel()
                await asyncio.wait({task})

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


def _is_at(fleet: Fleet, control_url: str, name: str, events_url: str) -> bool:
    node = fleet.at_url(control_url)
    return node is not None and (node.name, node.events_url) == (name, events_url)
