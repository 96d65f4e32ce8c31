"""Composition root: creates and wires all objects. Creating them opens nothing; `BackgroundTasks.start` does."""

import os
from collections.abc import Callable
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
from app.services.access.token_expiries import TokenEnds, TokenExpiries
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
from app.services.fleet.retirement import Retirement
from app.services.fleet.targets import Targets
from app.services.lmcache.objects import LmcacheObjects
from app.services.lmcache.quotas import LmcacheQuotas
from app.services.lmcache.status import LmcacheStatus
from app.services.records.ceilings import Ceilings
from app.services.records.pin_quota import PinQuota
from app.services.records.pins import Pins
from app.services.records.policies import Policies
from app.services.records.prefill_rates import PrefillRates
from app.services.records.prefixes import PrefixService
from app.services.records.progress import RecordProgress
from app.services.records.quotas import Quotas
from app.services.records.tenants import Tenants
from app.services.records.tiers import Tiers
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
from app.settings import Settings, admin_token, join_addresses, proxies, requires_token
from app.store.base.database import Database
from app.store.fleet.leader_lock import leader_lock_of
from app.supervisor.environ import environ_of
from app.supervisor.supervisor import Supervisor
from dataplane.protocol.signals import HANDED_OVER_EXIT_CODE


class Parts:
    """All objects of one management plane."""

    def __init__(self, settings: Settings) -> None:
        app = settings.app
        self.settings = settings
        self.database = database = Database(settings.common.database_url)
        self.bus = bus = EventBus()
        self.fleet = fleet = Fleet()
        self.rate_meter = RateMeter()
        self.sampler = Sampler()
        self.desired = DesiredState(database, fleet.change_traces)
        self.progress = RecordProgress(fleet, self.desired)
        changes = Changes(database, fleet, bus)
        self.leader_election = leader_election = LeaderElection(leader_lock_of(database, database.origin))
        self.managers = Managers(database, leader_election, fleet, bus)
        self.node_requests = NodeRequests(fleet, app.push_timeout_s)
        targets = Targets(self.node_requests, fleet)
        self.large_work = LargeWork()
        self.body_budget = BodyBudget(app.body_budget_bytes)
        self.large_reads = FairLimiter("large reads", LARGE_READS)
        self.stream_slots = ConcurrencyLimiter(
            ConcurrencyLimits(app.streams_per_token, app.streams_per_session, app.streams_per_address)
        )
        self.sources = ClientAddresses(proxies(app))
        self.connections = ConnectionCounts()
        self.requests, self.ingest = RequestCounts(), IngestCounts()
        self.process = ProcessMeter()

        self.auth = Auth(database, changes, admin_token(app), may_open=not requires_token(settings))
        self.tokens = Tokens(database, changes, self.auth)
        self.token_uses = TokenUses(database, self.auth)
        self.token_ends = TokenEnds(database)
        self.sessions = LoginSessions(database, changes, self.auth)
        self.audit = Audit(database)

        self.prefixes = PrefixService(self.node_requests)
        self.tokenizers = Tokenizers(database, changes, EncodeService())
        shares = PinQuota(app.pins_per_tenant)
        self.quotas = Quotas(database, changes, self.progress, fleet)
        self.pins = Pins(database, changes, self.progress, fleet, self.prefixes, self.tokenizers, shares)
        self.policies = Policies(database, changes, self.progress, fleet)
        self.tiers = Tiers(database, changes, self.progress, fleet)
        self.ceilings = Ceilings(database, changes)
        self.prefill_rates = PrefillRates(database, changes)
        self.tenants = Tenants(database, changes, fleet, self.quotas)
        self.apply = Apply(database, changes, self.progress, fleet, self.tokenizers, shares)
        self.export = Export(database)
        self.startup_document = StartupDocument(
            app.apply_file, app.apply_prune, app.apply_limit_bytes, self.apply, database, bus
        )

        key_file = key_path(settings.state_dir, app.curve_key_file)
        self.keys: Callable[[], ManagerKeyPair] = cache(lambda: key_pair(settings.state_dir, app.curve_key_file))
        """Key pair of this management plane; the first call reads or creates it and may raise SettingsError."""
        self.enrolment = Enrolment(
            database, changes, fleet, self.keys, join_addresses(app), lambda: next_key(key_file, self.keys().public)
        )
        self.node_conditions = NodeConditions(bus, app.condition_kept_s)
        self.nodes = Nodes(self.progress, fleet, self.node_conditions)
        self.node_intent = NodeIntent(changes, fleet, bus)
        self.retirement = Retirement(
            fleet, self.node_intent, lambda: self.leader_election.pushing, app.retire_nodes_after_s
        )
        self.pushes = Pushes(database)
        self.resizing = PoolResize(database, self.node_requests, changes, fleet)
        self.expelling = EngineExpulsion(targets, changes)
        self.supervisor = _supervisor(settings, fleet, bus) if app.embedded_data_plane else None
        self.restarts = Restarts(settings, self.supervisor, fleet, changes, database.origin)

        self.blocks = BlockService(targets, self.prefixes)
        self.actions = Actions(targets, changes, self.tokenizers, self.large_work)
        self.lookups = Lookups(targets, self.tokenizers, self.large_work)
        self.dry_runs = DryRuns(targets, self.desired, self.prefixes, self.tokenizers)
        self.traces = Traces(self.node_requests, fleet)
        self.cache_watch = CacheWatch(database, bus, lambda: leader_election.latest)
        self.lmcache = LmcacheObjects(targets, changes, self.blocks, self.actions, self.lookups, self.large_work)
        self.lmcache_quotas = LmcacheQuotas(self.quotas, fleet)
        self.lmcache_status = LmcacheStatus(fleet, settings)

        self.usage = UsageReports(database)
        self.usage_ledger = UsageLedger(
            self.node_requests,
            fleet,
            database,
            app.usage_poll_interval_s,
            app.usage_write_interval_s,
            lambda: leader_election.pushing,
        )
        self.retention = Retention(
            database,
            app.events_retention_days,
            app.max_kept_pushes,
            app.usage_retention_days,
            lambda: leader_election.pushing,
        )

        self.applied_changes = AppliedChanges(database, fleet, app.alert_changes_s)
        self.refusal_runs = RefusalRuns(bus)
        evidence = EvidenceReader(database, self.applied_changes, self.refusal_runs)
        self.overview = OverviewService(
            database, fleet, self.rate_meter, bus, self.progress, self.nodes, self.pins, self.policies, evidence
        )
        self.health = HealthChecks(
            database,
            self.progress,
            fleet,
            lambda: self.supervisor is None or fleet.serves_at(settings.common.control_url),
        )
        self.snapshots = Snapshots(database, fleet, self.progress, bus)
        self.token_expiries = TokenExpiries(database, bus, lambda: leader_election.pushing)
        self.rollup = Rollup(bus)
        self.events = Events(database, retention_days=app.events_retention_days, lost=lambda: self.ingest.lost)
        self.series_writer = SeriesWriter(database, self.sampler, lambda: leader_election.pushing)
        self.series = SeriesService(database, self.sampler, self.series_writer, Marks(database, self.applied_changes))
        self.alerts = Alerts(database, bus, self.applied_changes, app.alert_expire_s)
        self.findings = Findings(evidence, self.overview, self.tenants, self.alerts, self.series)
        # Every manager receives the events of nodes; only one stores them.
        bus.keep = lambda event: (
            self.events.offer(event)
            if not event.node or event.name.startswith("dataplane.") or leader_election.latest
            else None
        )
        bus.watch = lambda event: self.node_conditions.on_event(event.name, event.node, event.at, event.fields)
        self.scrapes = Scrapes(self._metric_sources())

    def _metric_sources(self) -> MetricSources:
        fleet, ingest, supervisor = self.fleet, self.ingest, self.supervisor
        return MetricSources(
            leads=lambda: self.leader_election.latest,
            stats=fleet.stats,
            cold=lambda: {stats.node: is_cold(stats) for stats in fleet.stats()},
            conditions=self.node_conditions.lasting,
            empty_pins=fleet.empty_pins,
            alerts=self.alerts.firing,
            nodes_up=lambda: {node.name: not node.lost for node in fleet.nodes.values()},
            node_states=self.progress.census,
            desired=self.progress.generations,
            requests=self.requests.ended,
            request_seconds=self.requests.seconds,
            pushes=lambda: {node.name: node.pushes for node in fleet.nodes.values()},
            database_seconds=self.database.seconds,
            lags=self.progress.lags,
            events_dropped=self.bus.dropped,
            token_ends=lambda: self.token_ends.next,
            process=self.process.read,
            lmcache_names=self.settings.app.lmcache_metrics,
            auth_failures=self.auth.counts.failures,
            connections_ended=self.connections.ended,
            numbers=lambda: [
                (manager_metrics.EVENTS, ingest.events),
                (manager_metrics.EVENTS_MALFORMED, ingest.malformed),
                (manager_metrics.EVENTS_LOST, ingest.lost),
                (manager_metrics.STREAMS, self.bus.listeners),
                (manager_metrics.EVENTS_UNKEPT, self.events.dropped.total()),
                (manager_metrics.SERIES_LOST, self.series_writer.lost),
                (manager_metrics.AUDIT_SUPPRESSED, self.auth.unrecorded),
                (manager_metrics.APPLY_FILE, self.startup_document.in_force),
                (manager_metrics.APPLY_FILE_REFUSED, self.startup_document.refused),
                (manager_metrics.MANAGER_PUSHING, self.leader_election.pushing),
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
