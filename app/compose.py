"""Everything is created and wired here, on one page. Creating opens nothing: `Runtime.start` does."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from prometheus_client import CollectorRegistry

from app.http.connections import Connections
from app.http.edge import RequestCounts
from app.http.source import Sources
from app.ingest.fleet import Fleet
from app.ingest.history import History
from app.ingest.rollup import Rollup
from app.ingest.subscriber import IngestCounts
from app.observe import metrics
from app.observe.facts import FactHub
from app.push.desired import Desired
from app.push.environ import environ_of
from app.push.keys import KeyPair, key_pair, key_path, next_key
from app.push.lead import Lead
from app.push.operations import Operations
from app.push.supervisor import Supervisor
from app.push.worker import PushCounts
from app.services.actions import Actions
from app.services.apply import Apply
from app.services.audit import Audit
from app.services.auth import Auth
from app.services.blocks import BlockService
from app.services.boot import BootFile
from app.services.ceilings import Ceilings
from app.services.changes import Changes
from app.services.dry_run import DryRuns
from app.services.events import Events
from app.services.export import Export
from app.services.joins import Joins
from app.services.lmcache import Lmcache
from app.services.lmcache_quotas import LmcacheQuotas
from app.services.lmcache_status import LmcacheStatus
from app.services.lookups import Lookups
from app.services.node_intent import NodeIntent
from app.services.nodes import Nodes
from app.services.overview import OverviewService
from app.services.pin_shares import PinShares
from app.services.pins import Pins
from app.services.places import Most, Places
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
from app.settings import Settings, admin_token, is_loopback, join_addresses, proxies
from app.store.claim import claim_of
from app.store.database import Database


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
    node_intent: NodeIntent
    joins: Joins
    keys: Callable[[], KeyPair]
    """Of this management plane; made or read at the first call, which raises SettingsError."""
    pushes: Pushes
    audit: Audit
    auth: Auth
    tokens: Tokens
    ceilings: Ceilings
    token_uses: TokenUses
    sessions: Sessions
    sources: Sources
    connections: Connections
    places: Places
    actions: Actions
    lookups: Lookups
    lmcache: Lmcache
    lmcache_quotas: LmcacheQuotas
    lmcache_status: LmcacheStatus
    dry_runs: DryRuns
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
    lead = Lead(claim_of(database, database.origin))
    events = Events(database)
    # Every replica hears what happens on nodes; one writes it down.
    hub.keep = lambda fact: events.offer(fact) if not fact.node or lead.latest else None
    auth = Auth(database, changes, admin_token(settings.app), may_open=_may_open(settings))
    operations = Operations(fleet, settings.app.push_timeout_s)
    prefixes = PrefixService(operations)
    tokenizers = Tokenizers(database, changes, Tokenizing())
    targets = Targets(operations, fleet)
    shares = PinShares(settings.app.pins_per_tenant)
    pins = Pins(database, changes, progress, fleet, prefixes, tokenizers, shares)
    policies = Policies(database, changes, progress, fleet)
    quotas = Quotas(database, changes, progress, fleet)
    apply = Apply(database, changes, progress, fleet, tokenizers, shares)
    boot = _boot_file(settings, apply, database, hub)
    nodes = Nodes(progress, fleet)
    keys = cache(lambda: key_pair(settings.state_dir, settings.app.curve_key_file))
    key_file = key_path(settings.state_dir, settings.app.curve_key_file)
    blocks = BlockService(targets, prefixes)
    actions = Actions(targets, changes, tokenizers)
    lookups = Lookups(targets, tokenizers)
    supervisor = _supervisor(settings, fleet, hub) if settings.app.embedded_data_plane else None
    connections = Connections(settings.app.connections_per_address, proxies(settings.app))
    requests, ingest, push = RequestCounts(), IngestCounts(), PushCounts()
    sources = metrics.Sources(
        stats=fleet.stats,
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
            metrics.STREAMS.name: hub.listeners,
            metrics.FACTS_DROPPED.name: hub.dropped,
            metrics.EVENTS_UNKEPT.name: events.dropped,
            metrics.AUDIT_LEFT_OUT.name: auth.unrecorded,
            metrics.APPLY_FILE.name: boot.in_force,
            metrics.APPLY_FILE_REFUSED.name: boot.refused,
            metrics.REPLICA_PUSHING.name: lead.pushing,
            metrics.DATABASE_UP.name: not database.watch.away,
            metrics.APPLY_FILE.name: boot.in_force,
            metrics.APPLY_FILE_REFUSED.name: boot.refused,
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
        node_intent=NodeIntent(changes, fleet, hub),
        joins=Joins(
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
        sessions=Sessions(database, changes, auth),
        sources=Sources(proxies(settings.app)),
        connections=connections,
        places=Places(_places(settings)),
        actions=actions,
        lookups=lookups,
        lmcache=Lmcache(targets, changes, blocks, actions, lookups),
        lmcache_quotas=LmcacheQuotas(quotas, fleet),
        lmcache_status=LmcacheStatus(fleet, settings),
        dry_runs=DryRuns(targets, desired, prefixes, tokenizers),
        blocks=blocks,
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


def _places(settings: Settings) -> Most:
    app = settings.app
    return Most(app.streams_per_token, app.streams_per_session, app.streams_per_address)


def _may_open(settings: Settings) -> bool:
    """Whether requests need no token before there is one: when only this machine can send any."""
    alone = is_loopback(settings.common.http_host) and not settings.app.trusted_proxies
    return settings.app.auth == "auto" and alone


def _boot_file(settings: Settings, apply: Apply, database: Database, hub: FactHub) -> BootFile:
    app = settings.app
    return BootFile(app.apply_file, app.apply_prune, app.apply_limit_bytes, apply, database, hub)


def _supervisor(settings: Settings, fleet: Fleet, hub: FactHub) -> Supervisor:
    def on_exit(code: int | None, restart_in_s: float) -> None:
        fleet.left(settings.common.control_url)
        hub.publish("dataplane.exited", code=code, restart_in_s=restart_in_s)

    return Supervisor(
        environ_of(os.environ, settings.common),
        on_exit,
        on_start=lambda pid: hub.publish("dataplane.started", pid=pid),
        engine_socket=settings.common.engine_socket,
        state_dir=settings.state_dir,
        survives=settings.app.data_plane_survives,
        spare=settings.app.spare_data_plane,
    )
