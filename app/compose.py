"""Composition root: creates and wires all objects. Creating them opens nothing; `BackgroundTasks.start` does."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from prometheus_client import CollectorRegistry

from app.http.middleware.connections import ConnectionCounts
from app.http.middleware.source import ClientAddresses
from app.http.middleware.stack import RequestCounts
from app.ingest.cache_watch import CacheWatch
from app.ingest.fleet import Fleet
from app.ingest.history import History
from app.ingest.rollup import Rollup
from app.ingest.subscriber import IngestCounts
from app.observe import metrics
from app.observe.events import EventBus
from app.push.desired import DesiredState
from app.push.keys import ManagerKeyPair, key_pair, key_path, next_key
from app.push.leader_election import LeaderElection
from app.push.operations import NodeRequests
from app.push.worker import PushCounts
from app.services.access.audit import Audit
from app.services.access.auth import Auth
from app.services.access.sessions import LoginSessions
from app.services.access.token_uses import TokenUses
from app.services.access.tokens import Tokens
from app.services.base.changes import Changes
from app.services.base.concurrency_limiter import ConcurrencyLimiter, ConcurrencyLimits
from app.services.base.large_work import LargeWork
from app.services.cache.actions import Actions
from app.services.cache.blocks import BlockService
from app.services.cache.dry_run import DryRuns
from app.services.cache.lookups import Lookups
from app.services.cache.traces import Traces
from app.services.documents.apply import Apply
from app.services.documents.export import Export
from app.services.documents.startup_document import StartupDocument
from app.services.fleet.cache_start import is_cold
from app.services.fleet.enrolment import Enrolment
from app.services.fleet.expelling import EngineExpulsion
from app.services.fleet.managers import Managers
from app.services.fleet.node_intent import NodeIntent
from app.services.fleet.nodes import Nodes
from app.services.fleet.pushes import Pushes
from app.services.fleet.resize import PoolResize
from app.services.fleet.restarts import Restarts
from app.services.fleet.targets import Targets
from app.services.lmcache.objects import LmcacheObjects
from app.services.lmcache.quotas import LmcacheQuotas
from app.services.lmcache.status import LmcacheStatus
from app.services.records.ceilings import Ceilings
from app.services.records.pin_quota import PinQuota
from app.services.records.pins import Pins
from app.services.records.policies import Policies
from app.services.records.prefixes import PrefixService
from app.services.records.progress import RecordProgress
from app.services.records.quotas import Quotas
from app.services.records.rates import PrefillRates
from app.services.records.tenants import Tenants
from app.services.records.tokenizers import Tokenizers
from app.services.records.tokenizing import EncodeService
from app.services.usage.ledger import UsageLedger
from app.services.usage.reports import UsageReports
from app.services.usage.retention import Retention
from app.services.views.events import Events
from app.services.views.health import HealthChecks
from app.services.views.overview import OverviewService
from app.services.views.snapshot import Snapshots
from app.settings import Settings, admin_token, is_loopback, join_addresses, proxies
from app.store.base.database import Database
from app.store.fleet.leader_lock import claim_of
from app.supervisor.environ import environ_of
from app.supervisor.supervisor import Supervisor


@dataclass
class Parts:
    """All objects of one management plane."""

    settings: Settings
    database: Database
    bus: EventBus
    fleet: Fleet
    desired: DesiredState
    history: History
    progress: RecordProgress
    quotas: Quotas
    pins: Pins
    policies: Policies
    tenants: Tenants
    prefixes: PrefixService
    nodes: Nodes
    node_intent: NodeIntent
    joins: Enrolment
    keys: Callable[[], ManagerKeyPair]
    """Key pair of this management plane; the first call reads or creates it and may raise SettingsError."""
    pushes: Pushes
    audit: Audit
    auth: Auth
    tokens: Tokens
    ceilings: Ceilings
    token_uses: TokenUses
    sessions: LoginSessions
    sources: ClientAddresses
    connections: ConnectionCounts
    places: ConcurrencyLimiter
    actions: Actions
    lookups: Lookups
    large_work: LargeWork
    lmcache: LmcacheObjects
    lmcache_quotas: LmcacheQuotas
    lmcache_status: LmcacheStatus
    dry_runs: DryRuns
    blocks: BlockService
    tokenizers: Tokenizers
    resizing: PoolResize
    expelling: EngineExpulsion
    traces: Traces
    rates: PrefillRates
    usage: UsageReports
    usage_ledger: UsageLedger
    retention: Retention
    apply: Apply
    export: Export
    boot: StartupDocument
    overview: OverviewService
    events: Events
    health: HealthChecks
    snapshots: Snapshots
    registry: CollectorRegistry
    rollup: Rollup
    cache_watch: CacheWatch
    operations: NodeRequests
    lead: LeaderElection
    managers: Managers
    supervisor: Supervisor | None
    restarts: Restarts
    requests: RequestCounts = field(default_factory=RequestCounts)
    ingest: IngestCounts = field(default_factory=IngestCounts)
    push: PushCounts = field(default_factory=PushCounts)


def build(settings: Settings) -> Parts:
    """Return the object graph."""
    database = Database(settings.common.database_url)
    bus, fleet, history = EventBus(), Fleet(), History()
    desired = DesiredState(database)
    progress = RecordProgress(fleet, desired)
    changes = Changes(database, fleet, bus)
    lead = LeaderElection(claim_of(database, database.origin))
    events = Events(database)
    # Every manager receives the events of nodes; only one stores them.
    bus.keep = lambda event: events.offer(event) if not event.node or lead.latest else None
    auth = Auth(database, changes, admin_token(settings.app), may_open=_may_open(settings))
    operations = NodeRequests(fleet, settings.app.push_timeout_s)
    prefixes = PrefixService(operations)
    tokenizers = Tokenizers(database, changes, EncodeService())
    targets = Targets(operations, fleet)
    shares = PinQuota(settings.app.pins_per_tenant)
    pins = Pins(database, changes, progress, fleet, prefixes, tokenizers, shares)
    policies = Policies(database, changes, progress, fleet)
    quotas = Quotas(database, changes, progress, fleet)
    apply = Apply(database, changes, progress, fleet, tokenizers, shares)
    boot = _boot_file(settings, apply, database, bus)
    nodes = Nodes(progress, fleet)
    keys = cache(lambda: key_pair(settings.state_dir, settings.app.curve_key_file))
    key_file = key_path(settings.state_dir, settings.app.curve_key_file)
    blocks = BlockService(targets, prefixes)
    large_work = LargeWork()
    actions = Actions(targets, changes, tokenizers, large_work)
    lookups = Lookups(targets, tokenizers, large_work)
    supervisor = _supervisor(settings, fleet, bus) if settings.app.embedded_data_plane else None
    connections = ConnectionCounts()
    requests, ingest, push = RequestCounts(), IngestCounts(), PushCounts()
    sources = metrics.MetricSources(
        stats=fleet.stats,
        cold=lambda: {stats.node: is_cold(stats) for stats in fleet.stats()},
        empty_pins=fleet.empty_pins,
        nodes_up=lambda: {node.name: not node.lost for node in fleet.nodes.values()},
        node_states=progress.census,
        desired=progress.generations,
        requests=requests.ended,
        pushes=push.ended,
        lmcache_names=settings.app.lmcache_metrics,
        auth_failures=auth.counts.failures,
        connections_ended=connections.ended,
        numbers=lambda: {
            metrics.EVENTS.name: ingest.events,
            metrics.EVENTS_MALFORMED.name: ingest.malformed,
            metrics.EVENTS_LOST.name: ingest.lost,
            metrics.STREAMS.name: bus.listeners,
            metrics.STREAM_EVENTS_DROPPED.name: bus.dropped,
            metrics.EVENTS_UNKEPT.name: events.dropped,
            metrics.AUDIT_LEFT_OUT.name: auth.unrecorded,
            metrics.APPLY_FILE.name: boot.in_force,
            metrics.APPLY_FILE_REFUSED.name: boot.refused,
            metrics.MANAGER_PUSHING.name: lead.pushing,
            metrics.DATABASE_UP.name: not database.watch.away,
            metrics.APPLY_FILE.name: boot.in_force,
            metrics.APPLY_FILE_REFUSED.name: boot.refused,
            metrics.RESTARTS.name: supervisor.restarts if supervisor is not None else 0,
        },
    )
    return Parts(
        settings=settings,
        database=database,
        bus=bus,
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
        node_intent=NodeIntent(changes, fleet, bus),
        joins=Enrolment(
            database,
            changes,
            fleet,
            keys,
            join_addresses(settings.app),
            lambda: next_key(key_file, keys().public),
        ),
        keys=keys,
        pushes=Pushes(database),
        audit=Audit(database),
        auth=auth,
        tokens=Tokens(database, changes, auth),
        ceilings=Ceilings(database, changes),
        token_uses=TokenUses(database, auth),
        sessions=LoginSessions(database, changes, auth),
        sources=ClientAddresses(proxies(settings.app)),
        connections=connections,
        places=ConcurrencyLimiter(_places(settings)),
        actions=actions,
        lookups=lookups,
        large_work=large_work,
        lmcache=LmcacheObjects(targets, changes, blocks, actions, lookups, large_work),
        lmcache_quotas=LmcacheQuotas(quotas, fleet),
        lmcache_status=LmcacheStatus(fleet, settings),
        dry_runs=DryRuns(targets, desired, prefixes, tokenizers),
        blocks=blocks,
        tokenizers=tokenizers,
        resizing=PoolResize(database, operations, changes, fleet),
        expelling=EngineExpulsion(targets, changes),
        traces=Traces(operations, fleet),
        rates=PrefillRates(database, changes),
        usage=UsageReports(database),
        usage_ledger=UsageLedger(
            operations,
            fleet,
            database,
            settings.app.usage_poll_interval_s,
            settings.app.usage_write_interval_s,
            lambda: lead.pushing,
        ),
        retention=Retention(
            database,
            settings.app.events_retention_days,
            settings.app.max_kept_pushes,
            settings.app.usage_retention_days,
            lambda: lead.pushing,
        ),
        apply=apply,
        export=Export(database),
        boot=boot,
        overview=OverviewService(database, fleet, history, bus, progress, nodes, pins, policies),
        events=events,
        health=HealthChecks(database, progress, fleet),
        snapshots=Snapshots(database, fleet, progress, bus),
        registry=metrics.registry_of(sources),
        rollup=Rollup(bus),
        cache_watch=CacheWatch(database, bus, lambda: lead.latest),
        operations=operations,
        lead=lead,
        managers=Managers(database, lead, fleet, bus),
        supervisor=supervisor,
        restarts=Restarts(settings, supervisor, fleet, changes, database.origin),
        requests=requests,
        ingest=ingest,
        push=push,
    )


def _places(settings: Settings) -> ConcurrencyLimits:
    app = settings.app
    return ConcurrencyLimits(app.streams_per_token, app.streams_per_session, app.streams_per_address)


def _may_open(settings: Settings) -> bool:
    """Return whether requests need no token before one exists: only if no other machine can send requests."""
    alone = is_loopback(settings.common.http_host) and not settings.app.trusted_proxies
    return settings.app.auth == "auto" and alone


def _boot_file(settings: Settings, apply: Apply, database: Database, bus: EventBus) -> StartupDocument:
    app = settings.app
    return StartupDocument(app.apply_file, app.apply_prune, app.apply_limit_bytes, apply, database, bus)


def _supervisor(settings: Settings, fleet: Fleet, bus: EventBus) -> Supervisor:
    def on_exit(code: int | None, restart_in_s: float) -> None:
        fleet.left(settings.common.control_url)
        bus.publish("dataplane.exited", code=code, restart_in_s=restart_in_s)

    return Supervisor(
        environ_of(os.environ, settings.common),
        on_exit,
        on_start=lambda pid: bus.publish("dataplane.started", pid=pid),
        engine_socket=settings.common.engine_socket,
        state_dir=settings.state_dir,
        survives=settings.app.data_plane_survives,
        spare=settings.app.standby,
    )
