"""Composition root: creates and wires all objects. Creating them opens nothing; `BackgroundTasks.start` does."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from app.http.middleware.connections import ConnectionCounts
from app.http.middleware.source import ClientAddresses
from app.http.middleware.stack import RequestCounts
from app.http.middleware.turns import LARGE_READS
from app.ingest.cache_watch import CacheWatch
from app.ingest.fleet import Fleet
from app.ingest.node_conditions import NodeConditions
from app.ingest.rates import RateMeter
from app.ingest.refusal_runs import RefusalRuns
from app.ingest.sampler import Sampler
from app.ingest.subscriber import IngestCounts, Rollup
from app.observe import manager_metrics
from app.observe.catalogue.service import DataplaneExited, DataplaneStarted
from app.observe.events import EventBus
from app.observe.metric_sources import MetricSources
from app.observe.process_metrics import ProcessMeter
from app.observe.scrapes import Scrapes
from app.push.desired import DesiredState
from app.push.keys import ManagerKeyPair, key_pair, key_path, next_key
from app.push.leader_election import LeaderElection
from app.push.node_requests import NodeRequests
from app.services.access.audit import Audit
from app.services.access.auth import Auth
from app.services.access.sessions import LoginSessions
from app.services.access.token_expiries import TokenExpiries
from app.services.access.token_uses import TokenUses
from app.services.access.tokens import Tokens
from app.services.base.body_budget import BodyBudget
from app.services.base.changes import Changes
from app.services.base.concurrency_limiter import ConcurrencyLimiter, ConcurrencyLimits
from app.services.base.fair_limiter import FairLimiter
from app.services.base.large_work import LargeWork
from app.services.cache.actions import Actions
from app.services.cache.blocks import BlockService
from app.services.cache.dry_run import DryRuns
from app.services.cache.lookups import Lookups
from app.services.cache.requests import RequestFinder
from app.services.cache.traces import Traces
from app.services.documents.apply import Apply
from app.services.documents.export import Export
from app.services.documents.startup_document import StartupDocument
from app.services.fleet.cache_start import is_cold
from app.services.fleet.enrolment import Enrolment
from app.services.fleet.managers import Managers
from app.services.fleet.node_actions import NodeActions
from app.services.fleet.nodes import Nodes
from app.services.fleet.pushes import Pushes
from app.services.fleet.restarts import Restarts
from app.services.fleet.retirement import Retirement
from app.services.fleet.targets import Targets
from app.services.lmcache.objects import LmcacheObjects
from app.services.lmcache.quotas import LmcacheQuotas
from app.services.lmcache.status import LmcacheStatus
from app.services.records.pin_quota import PinQuota
from app.services.records.pins import Pins
from app.services.records.policies import Policies
from app.services.records.prefixes import PrefixService
from app.services.records.progress import RecordProgress
from app.services.records.quotas import Quotas
from app.services.records.records import RecordServices
from app.services.records.tenants import Tenants
from app.services.records.tokenizers import Tokenizers
from app.services.records.tokenizing import EncodeService
from app.services.usage.ledger import UsageLedger
from app.services.usage.reports import UsageReports
from app.services.usage.retention import Retention
from app.services.views.alerts import Alerts
from app.services.views.applied_changes import AppliedChanges
from app.services.views.events import Events
from app.services.views.evidence import EvidenceReader
from app.services.views.findings import Findings
from app.services.views.health import HealthChecks
from app.services.views.marks import Marks
from app.services.views.overview import OverviewService
from app.services.views.series import SeriesService
from app.services.views.series_writer import SeriesWriter
from app.services.views.snapshot import Snapshots
from app.settings import AppSettings, Settings, admin_token, join_addresses, proxies, requires_token
from app.store.base.database import Database
from app.store.fleet.leader_lock import leader_lock_of
from app.supervisor.environ import environ_of
from app.supervisor.supervisor import Supervisor
from dataplane.protocol.signals import HANDED_OVER_EXIT_CODE


@dataclass(frozen=True, slots=True)
class Foundation:
    """Parts that all subjects use: the database, the present state of the fleet, and ways to change and to query it."""

    settings: Settings
    database: Database
    bus: EventBus
    fleet: Fleet
    desired: DesiredState
    progress: RecordProgress
    changes: Changes
    leader_election: LeaderElection
    node_requests: NodeRequests
    targets: Targets

    @staticmethod
    def build(settings: Settings) -> Foundation:
        database = Database(settings.common.database_url)
        bus, fleet = EventBus(), Fleet()
        desired = DesiredState(database, fleet.change_traces)
        node_requests = NodeRequests(fleet, settings.app.push_timeout_s)
        return Foundation(
            settings,
            database,
            bus,
            fleet,
            desired,
            RecordProgress(fleet, desired),
            Changes(database, fleet, bus),
            LeaderElection(leader_lock_of(database, database.origin)),
            node_requests,
            Targets(node_requests, fleet),
        )

    def leads(self) -> bool:
        """Return whether this manager stores what only one of them stores."""
        return self.leader_election.latest

    def pushes(self) -> bool:
        """Return whether this manager pushes to the nodes."""
        return self.leader_election.pushing


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits and counters of requests."""

    large_work: LargeWork
    body_budget: BodyBudget
    large_reads: FairLimiter
    stream_slots: ConcurrencyLimiter
    sources: ClientAddresses
    connections: ConnectionCounts
    counts: RequestCounts

    @staticmethod
    def build(app: AppSettings) -> RequestLimits:
        limits = ConcurrencyLimits(app.streams_per_token, app.streams_per_session, app.streams_per_address)
        return RequestLimits(
            LargeWork(),
            BodyBudget(app.body_budget_bytes),
            FairLimiter("large reads", LARGE_READS),
            ConcurrencyLimiter(limits),
            ClientAddresses(proxies(app)),
            ConnectionCounts(),
            RequestCounts(),
        )


@dataclass(frozen=True, slots=True)
class AccessServices:
    auth: Auth
    tokens: Tokens
    token_uses: TokenUses
    token_expiries: TokenExpiries
    sessions: LoginSessions
    audit: Audit

    @staticmethod
    def build(base: Foundation) -> AccessServices:
        database, changes, settings = base.database, base.changes, base.settings
        auth = Auth(database, changes, admin_token(settings.app), may_open=not requires_token(settings))
        return AccessServices(
            auth,
            Tokens(database, changes, auth),
            TokenUses(database, auth),
            TokenExpiries(database, base.bus),
            LoginSessions(database, changes, auth),
            Audit(database),
        )


@dataclass(frozen=True, slots=True)
class RecordParts:
    prefixes: PrefixService
    tokenizers: Tokenizers
    quotas: Quotas
    pins: Pins
    policies: Policies
    services: RecordServices
    """Those above that are services of a type of records, and those of all other types."""
    tenants: Tenants

    @staticmethod
    def build(base: Foundation, shares: PinQuota) -> RecordParts:
        common = base.database, base.changes, base.progress, base.fleet
        prefixes = PrefixService(base.node_requests)
        tokenizers = Tokenizers(*common, EncodeService())
        quotas = Quotas(*common)
        pins = Pins(*common, prefixes, tokenizers, shares)
        policies = Policies(*common)
        return RecordParts(
            prefixes,
            tokenizers,
            quotas,
            pins,
            policies,
            RecordServices(*common, (quotas, pins, policies, tokenizers)),
            Tenants(base.database, base.changes, base.fleet, quotas),
        )


@dataclass(frozen=True, slots=True)
class DocumentServices:
    apply: Apply
    export: Export
    startup: StartupDocument

    @staticmethod
    def build(base: Foundation, tokenizers: Tokenizers, shares: PinQuota) -> DocumentServices:
        app, database = base.settings.app, base.database
        apply = Apply(database, base.changes, base.progress, base.fleet, tokenizers, shares)
        startup = StartupDocument(app.apply_file, app.apply_prune, app.apply_limit_bytes, apply, database, base.bus)
        return DocumentServices(apply, Export(database), startup)


@dataclass(frozen=True, slots=True)
class FleetServices:
    keys: Callable[[], ManagerKeyPair]
    """Key pair of this management plane; the first call reads or creates it and may raise SettingsError."""
    managers: Managers
    enrolment: Enrolment
    node_conditions: NodeConditions
    nodes: Nodes
    node_actions: NodeActions
    retirement: Retirement
    pushes: Pushes
    supervisor: Supervisor | None
    restarts: Restarts

    @staticmethod
    def build(base: Foundation) -> FleetServices:
        settings, database, fleet, changes, bus = base.settings, base.database, base.fleet, base.changes, base.bus
        app = settings.app
        keys = cache(lambda: key_pair(settings.state_dir, app.curve_key_file))
        key_file = key_path(settings.state_dir, app.curve_key_file)
        conditions = NodeConditions(bus, app.condition_kept_s)
        node_actions = NodeActions(base.node_requests, changes, fleet, bus)
        supervisor = _supervisor(settings, fleet, bus) if app.embedded_data_plane else None
        return FleetServices(
            keys,
            Managers(database, base.leader_election, fleet, bus),
            Enrolment(database, changes, fleet, keys, join_addresses(app), lambda: next_key(key_file, keys().public)),
            conditions,
            Nodes(base.progress, fleet, conditions),
            node_actions,
            Retirement(fleet, node_actions, base.pushes, app.retire_nodes_after_s),
            Pushes(database),
            supervisor,
            Restarts(settings, supervisor, fleet, changes, database.origin),
        )


@dataclass(frozen=True, slots=True)
class CacheServices:
    blocks: BlockService
    requests: RequestFinder
    actions: Actions
    lookups: Lookups
    dry_runs: DryRuns
    traces: Traces
    watch: CacheWatch

    @staticmethod
    def build(base: Foundation, records: RecordParts, large_work: LargeWork) -> CacheServices:
        targets, tokenizers = base.targets, records.tokenizers
        return CacheServices(
            BlockService(targets, records.prefixes),
            RequestFinder(targets),
            Actions(targets, base.changes, tokenizers, large_work),
            Lookups(targets, tokenizers, large_work),
            DryRuns(targets, base.desired, records.prefixes, tokenizers),
            Traces(base.node_requests, base.fleet),
            CacheWatch(base.database, base.bus, base.leads),
        )


@dataclass(frozen=True, slots=True)
class LmcacheServices:
    objects: LmcacheObjects
    quotas: LmcacheQuotas
    status: LmcacheStatus

    @staticmethod
    def build(base: Foundation, records: RecordParts, cached: CacheServices, large_work: LargeWork) -> LmcacheServices:
        return LmcacheServices(
            LmcacheObjects(base.targets, base.changes, cached.blocks, cached.actions, cached.lookups, large_work),
            LmcacheQuotas(records.quotas, base.fleet),
            LmcacheStatus(base.fleet, base.settings),
        )


@dataclass(frozen=True, slots=True)
class UsageServices:
    reports: UsageReports
    ledger: UsageLedger
    retention: Retention

    @staticmethod
    def build(base: Foundation) -> UsageServices:
        app, database = base.settings.app, base.database
        return UsageServices(
            UsageReports(database),
            UsageLedger(
                base.node_requests,
                base.fleet,
                database,
                app.usage_poll_interval_s,
                app.usage_write_interval_s,
                base.pushes,
            ),
            Retention(database, app.events_retention_days, app.max_kept_pushes, app.usage_retention_days),
        )


@dataclass(frozen=True, slots=True)
class Ingest:
    """Receivers of the events and statistics of nodes."""

    counts: IngestCounts
    rate_meter: RateMeter
    sampler: Sampler
    refusal_runs: RefusalRuns
    rollup: Rollup

    @staticmethod
    def build(bus: EventBus) -> Ingest:
        return Ingest(IngestCounts(), RateMeter(), Sampler(), RefusalRuns(bus), Rollup(bus))


@dataclass(frozen=True, slots=True)
class Views:
    applied_changes: AppliedChanges
    overview: OverviewService
    health: HealthChecks
    snapshots: Snapshots
    events: Events
    series_writer: SeriesWriter
    series: SeriesService
    alerts: Alerts
    findings: Findings

    @staticmethod
    def build(base: Foundation, records: RecordParts, fleet_services: FleetServices, ingest: Ingest) -> Views:
        settings, database, fleet, bus, progress = base.settings, base.database, base.fleet, base.bus, base.progress
        app = settings.app
        applied_changes = AppliedChanges(database, fleet, app.alert_changes_s)
        evidence = EvidenceReader(database, fleet, applied_changes, ingest.refusal_runs, records.pins)
        overview = OverviewService(
            database,
            fleet,
            ingest.rate_meter,
            bus,
            progress,
            fleet_services.nodes,
            records.pins,
            records.policies,
            evidence,
        )
        has_data_plane = fleet_services.supervisor is not None
        health = HealthChecks(
            database, progress, fleet, lambda: not has_data_plane or fleet.serves_at(settings.common.control_url)
        )
        series_writer = SeriesWriter(database, ingest.sampler, base.pushes)
        series = SeriesService(database, ingest.sampler, series_writer, Marks(database, applied_changes))
        alerts = Alerts(database, bus, applied_changes, app.alert_expire_s)
        return Views(
            applied_changes,
            overview,
            health,
            Snapshots(database, fleet, progress, bus),
            Events(database, retention_days=app.events_retention_days, lost=lambda: ingest.counts.lost),
            series_writer,
            series,
            alerts,
            Findings(evidence, overview, records.tenants, alerts, series),
        )


class Parts:
    """All objects of one management plane, by subject."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.foundation = base = Foundation.build(settings)
        self.database, self.bus, self.fleet = base.database, base.bus, base.fleet
        self.limits = RequestLimits.build(settings.app)
        self.process = ProcessMeter()
        shares = PinQuota(settings.app.pins_per_tenant)
        self.access = AccessServices.build(base)
        self.records = RecordParts.build(base, shares)
        self.documents = DocumentServices.build(base, self.records.tokenizers, shares)
        self.fleet_services = FleetServices.build(base)
        self.cache = CacheServices.build(base, self.records, self.limits.large_work)
        self.lmcache = LmcacheServices.build(base, self.records, self.cache, self.limits.large_work)
        self.usage = UsageServices.build(base)
        self.ingest = Ingest.build(base.bus)
        self.views = Views.build(base, self.records, self.fleet_services, self.ingest)
        # Every manager receives the events of nodes; only one stores them.
        conditions, events = self.fleet_services.node_conditions, self.views.events
        base.bus.keep = lambda event: (
            events.offer(event) if not event.node or event.name.startswith("dataplane.") or base.leads() else None
        )
        base.bus.watch = lambda event: conditions.on_event(event.name, event.node, event.at, event.fields)
        self.scrapes = Scrapes(self._metric_sources())

    def _metric_sources(self) -> MetricSources:
        base, fleet, counts, auth = self.foundation, self.fleet, self.ingest.counts, self.access.auth
        supervisor, startup = self.fleet_services.supervisor, self.documents.startup
        return MetricSources(
            leads=base.leads,
            stats=fleet.stats,
            cold=lambda: {stats.node: is_cold(stats) for stats in fleet.stats()},
            conditions=self.fleet_services.node_conditions.lasting,
            empty_pins=fleet.empty_pins,
            alerts=self.views.alerts.firing,
            nodes_up=lambda: {node.name: not node.lost for node in fleet.nodes.values()},
            node_states=base.progress.census,
            desired=base.progress.generations,
            requests=self.limits.counts.ended,
            request_seconds=self.limits.counts.seconds,
            pushes=lambda: {node.name: node.pushes for node in fleet.nodes.values()},
            database_seconds=self.database.seconds,
            lags=base.progress.lags,
            events_dropped=self.bus.dropped,
            token_ends=lambda: self.access.token_expiries.next,
            process=self.process.read,
            lmcache_names=self.settings.app.lmcache_metrics,
            auth_failures=auth.counts.failures,
            connections_ended=self.limits.connections.ended,
            numbers=lambda: [
                (manager_metrics.EVENTS, counts.events),
                (manager_metrics.EVENTS_MALFORMED, counts.malformed),
                (manager_metrics.EVENTS_LOST, counts.lost),
                (manager_metrics.STREAMS, self.bus.listeners),
                (manager_metrics.EVENTS_UNKEPT, self.views.events.dropped.total()),
                (manager_metrics.SERIES_LOST, self.views.series_writer.lost),
                (manager_metrics.AUDIT_SUPPRESSED, auth.unrecorded),
                (manager_metrics.APPLY_FILE, startup.in_force),
                (manager_metrics.APPLY_FILE_REFUSED, startup.refused),
                (manager_metrics.MANAGER_PUSHING, base.pushes()),
                (manager_metrics.DATABASE_UP, not self.database.watch.away),
                (manager_metrics.RESTARTS, supervisor.restarts if supervisor is not None else 0),
            ],
        )


def _supervisor(settings: Settings, fleet: Fleet, bus: EventBus) -> Supervisor:
    def on_exit(code: int | None, restart_in_s: float) -> None:
        node = fleet.process_exited(settings.common.control_url)
        if code != HANDED_OVER_EXIT_CODE:  # a planned restart, which the audit log records
            bus.publish(DataplaneExited(code, restart_in_s), node=node)

    def on_start(pid: int) -> None:
        bus.publish(DataplaneStarted(pid), node=fleet.name_at(settings.common.control_url))

    return Supervisor(
        environ_of(os.environ, settings.common),
        on_exit,
        on_start=on_start,
        engine_socket=settings.common.engine_socket,
        state_dir=settings.state_dir,
        survives=settings.app.data_plane_survives,
        standby=settings.app.standby,
    )
