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
from app.ingest.subscriber import EventIntake
from app.observe.catalogue.service import DatabaseLost, DatabaseRecovered, DataplaneExited, DataplaneStarted
from app.observe.events import EventBus, LarderEvent
from app.observe.process_metrics import ProcessMeter
from app.push.desired import DesiredState
from app.push.keys import key_pair, key_path, next_key
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
from app.services.base.concurrency_limiter import ConcurrencyLimiter
from app.services.base.fair_limiter import FairLimiter
from app.services.base.large_work import LargeWork
from app.services.cache.actions import Actions
from app.services.cache.blocks import BlockService
from app.services.cache.dry_run import DryRuns
from app.services.cache.lookups import Lookups
from app.services.cache.requests import RequestFinder
from app.services.cache.sessions import Sessions
from app.services.cache.traces import Traces
from app.services.documents.apply import Apply
from app.services.documents.export import Export
from app.services.documents.startup_document import StartupDocument
from app.services.fleet.enrolment import Enrolment
from app.services.fleet.managers import Managers
from app.services.fleet.node_actions import NodeActions
from app.services.fleet.nodes import Nodes
from app.services.fleet.pushes import Pushes
from app.services.fleet.restarts import Restarts
from app.services.fleet.targets import Targets
from app.services.lmcache.objects import LmcacheObjects
from app.services.lmcache.quotas import LmcacheQuotas
from app.services.lmcache.status import LmcacheStatus
from app.services.records.chains import Chains
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
from dataplane.protocol.stats.node import NodeStats


class Foundation:
    """Parts that all subjects use: the database, the present state of the fleet, and ways to change and to query it."""

    def __init__(self, settings: Settings, url: str, keep: Callable[[LarderEvent], None]) -> None:
        """`url` is that of the API of this process; `keep` stores events."""
        app = settings.app
        self.settings = settings
        self.fleet = Fleet()
        self.node_conditions = NodeConditions(app.condition_kept_s)
        self.bus = EventBus(keep, self.node_conditions.on_event)
        self.database = Database(settings.common.database_url, self._on_database_change)
        self.managers = Managers(self.database, self.pushes, self.fleet, self.bus, url)
        self.leader_election = LeaderElection(
            leader_lock_of(self.database, self.database.origin), self.managers.on_election
        )
        self.changes = Changes(self.database, self.fleet, self.bus)
        self.desired = DesiredState(self.database, self.fleet.change_traces)
        self.progress = RecordProgress(self.fleet, self.desired)
        self.node_requests = NodeRequests(self.fleet, app.push_timeout_s)
        self.targets = Targets(self.node_requests, self.fleet)

    def leads(self) -> bool:
        """Return whether this manager stores what only one of them stores."""
        return self.leader_election.latest

    def pushes(self) -> bool:
        """Return whether this manager pushes to the nodes."""
        return self.leader_election.pushing

    def _on_database_change(self, is_lost: bool, reason: str, seconds: float) -> None:
        if is_lost:
            self.bus.publish(DatabaseLost(reason))
        else:
            self.bus.publish(DatabaseRecovered(round(seconds, 3)))
            self.fleet.change_signal.notify()


class RequestLimits:
    """Limits and counters of requests."""

    def __init__(self, app: AppSettings) -> None:
        self.large_work = LargeWork()
        self.body_budget = BodyBudget(app.body_budget_bytes)
        self.large_reads = FairLimiter("large reads", LARGE_READS)
        self.stream_slots = ConcurrencyLimiter(
            token=app.streams_per_token, session=app.streams_per_session, address=app.streams_per_address
        )
        self.sources = ClientAddresses(proxies(app))
        self.connections = ConnectionCounts()
        self.counts = RequestCounts()


class AccessServices:
    def __init__(self, base: Foundation) -> None:
        database, changes, settings = base.database, base.changes, base.settings
        self.auth = Auth(database, changes, admin_token(settings.app), may_open=not requires_token(settings))
        self.tokens = Tokens(database, changes, self.auth)
        self.token_uses = TokenUses(database, self.auth)
        self.token_expiries = TokenExpiries(database, base.bus)
        self.sessions = LoginSessions(database, changes, self.auth)
        self.audit = Audit(database)


class RecordParts:
    def __init__(self, base: Foundation, pin_quota: PinQuota) -> None:
        common = base.database, base.changes, base.progress, base.fleet
        self.prefixes = PrefixService(base.node_requests)
        self.tokenizers = Tokenizers(*common, EncodeService())
        self.pins = Pins(*common, self.prefixes, self.tokenizers, pin_quota)
        self.services = RecordServices(*common, (self.pins, self.tokenizers))
        self.tenants = Tenants(base.database, base.changes, base.fleet, self.services.of(Quotas))


class DocumentServices:
    def __init__(self, base: Foundation, tokenizers: Tokenizers, pin_quota: PinQuota) -> None:
        app, database = base.settings.app, base.database
        self.apply = Apply(database, base.changes, base.progress, base.fleet, tokenizers, pin_quota)
        self.export = Export(database)
        self.startup = StartupDocument(
            app.apply_file, app.apply_prune, app.apply_limit_bytes, self.apply, database, base.bus
        )


class FleetServices:
    def __init__(self, base: Foundation) -> None:
        settings, database, fleet, changes, bus = base.settings, base.database, base.fleet, base.changes, base.bus
        app = settings.app
        key_file = key_path(settings.state_dir, app.curve_key_file)
        self.keys = keys = cache(lambda: key_pair(settings.state_dir, app.curve_key_file))
        """Key pair of this management plane; the first call reads or creates it and may raise SettingsError."""
        self.enrolment = Enrolment(
            database, changes, fleet, keys, join_addresses(app), lambda: next_key(key_file, keys().public)
        )
        self.nodes = Nodes(base.progress, fleet, base.node_conditions)
        self.node_actions = NodeActions(base.node_requests, changes, fleet, bus)
        self.pushes = Pushes(database)
        self.supervisor = _supervisor(settings, fleet, bus) if app.embedded_data_plane else None
        self.restarts = Restarts(settings, self.supervisor, fleet, changes, database.origin)


class CacheServices:
    def __init__(self, base: Foundation, records: RecordParts, chains: Chains) -> None:
        targets = base.targets
        self.blocks = BlockService(targets, records.prefixes)
        self.requests = RequestFinder(targets)
        self.sessions = Sessions(targets, base.changes)
        self.actions = Actions(targets, base.changes, chains)
        self.lookups = Lookups(targets, chains)
        self.dry_runs = DryRuns(targets, base.desired, records.prefixes, records.tokenizers)
        self.traces = Traces(base.node_requests, base.fleet)
        self.watch = CacheWatch(base.database, base.bus, base.leads)


class LmcacheServices:
    def __init__(self, base: Foundation, records: RecordParts, cached: CacheServices, chains: Chains) -> None:
        self.objects = LmcacheObjects(base.targets, base.changes, cached.blocks, cached.actions, cached.lookups, chains)
        self.quotas = LmcacheQuotas(records.services.of(Quotas), base.fleet)
        self.status = LmcacheStatus(base.fleet, base.settings)


class UsageServices:
    def __init__(self, base: Foundation) -> None:
        app, database = base.settings.app, base.database
        intervals_s = app.usage_poll_interval_s, app.usage_write_interval_s
        self.reports = UsageReports(database)
        self.ledger = UsageLedger(base.node_requests, base.fleet, database, *intervals_s, base.pushes)
        self.retention = Retention(database, app.events_retention_days, app.usage_retention_days)


class Ingest:
    """Receivers of the events and statistics of nodes."""

    def __init__(self, base: Foundation, compare: Callable[[str, NodeStats], None]) -> None:
        """`compare` reads all stats of nodes."""
        self.intake = EventIntake(base.fleet, base.bus, compare)
        self.rate_meter = RateMeter()
        self.sampler = Sampler()
        self.refusal_runs = RefusalRuns(base.bus)


class Views:
    def __init__(self, base: Foundation, records: RecordParts, fleet_services: FleetServices, ingest: Ingest) -> None:
        app, database, fleet, bus, progress = base.settings.app, base.database, base.fleet, base.bus, base.progress
        control_url, has_data_plane = base.settings.common.control_url, fleet_services.supervisor is not None
        self.applied_changes = AppliedChanges(database, fleet, app.alert_changes_s)
        evidence = EvidenceReader(database, fleet, self.applied_changes, ingest.refusal_runs, records.pins)
        self.overview = OverviewService(
            database,
            fleet,
            ingest.rate_meter,
            bus,
            progress,
            fleet_services.nodes,
            records.pins,
            records.services.of(Policies),
            evidence,
        )
        self.health = HealthChecks(
            database, progress, fleet, lambda: not has_data_plane or fleet.serves_at(control_url)
        )
        self.snapshots = Snapshots(database, fleet, progress, bus)
        self.events = Events(database, retention_days=app.events_retention_days, lost=lambda: ingest.intake.lost)
        self.series_writer = SeriesWriter(database, ingest.sampler, base.pushes)
        self.series = SeriesService(database, ingest.sampler, self.series_writer, Marks(database, self.applied_changes))
        self.alerts = Alerts(database, bus, self.applied_changes, app.alert_expire_s)
        self.findings = Findings(evidence, self.overview, records.tenants, self.alerts, self.series)


class Parts:
    """All objects of one management plane, by subject."""

    def __init__(self, settings: Settings, url: str) -> None:
        self.settings = settings
        self.foundation = base = Foundation(settings, url, self._keep)
        self.database, self.bus, self.fleet = base.database, base.bus, base.fleet
        self.limits = RequestLimits(settings.app)
        self.process = ProcessMeter()
        pin_quota = PinQuota(settings.app.pins_per_tenant)
        self.access = AccessServices(base)
        self.records = RecordParts(base, pin_quota)
        self.documents = DocumentServices(base, self.records.tokenizers, pin_quota)
        self.fleet_services = FleetServices(base)
        chains = Chains(self.records.tokenizers, self.limits.large_work)
        self.cache = CacheServices(base, self.records, chains)
        self.lmcache = LmcacheServices(base, self.records, self.cache, chains)
        self.usage = UsageServices(base)
        self.ingest = Ingest(base, self.cache.watch.on_stats)
        self.views = Views(base, self.records, self.fleet_services, self.ingest)

    def _keep(self, event: LarderEvent) -> None:
        """Store an event. Every manager receives the events of nodes; only one stores them."""
        if not event.node or event.name.startswith("dataplane.") or self.foundation.leads():
            self.views.events.offer(event)


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
