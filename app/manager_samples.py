"""The samples of a manager in a scrape: its metrics, and where their numbers come from."""

from collections.abc import Mapping
from functools import partial

from app.compose import Parts
from app.observe import manager_metrics as metrics
from app.observe import process_metrics
from app.observe.page import OTHER, MetricsPage, largest
from app.observe.scrapes import Scrapes
from app.services.fleet.cache_start import is_cold
from dataplane.base import tracing


def scrapes_of(parts: Parts) -> Scrapes:
    """Return what makes the pages of scrapes of this manager."""
    return Scrapes(
        leads=parts.foundation.leads,
        stats=parts.fleet.stats,
        known=lambda: {node.name for node in parts.fleet.nodes.values()},
        add_fleet=partial(_add_fleet, parts),
        add_own=partial(_add_own, parts),
        lmcache_names=parts.settings.app.lmcache_metrics,
    )


def _add_fleet(parts: Parts, page: MetricsPage) -> None:
    """Add what every manager knows of the nodes and the records."""
    fleet, progress = parts.fleet, parts.foundation.progress
    page.add_by(metrics.UP, ((node.name, not node.lost) for node in fleet.nodes.values()))
    page.add_by(metrics.COLD, ((stats.node, is_cold(stats)) for stats in fleet.stats()))
    for name, kind in parts.foundation.node_conditions.lasting():
        page.add(metrics.CONDITION, 1, name, kind)
    empty_pins = dict.fromkeys(fleet.empty_pins(), 1)
    page.add_by(metrics.EMPTY_PINS, empty_pins.items(), named=frozenset(largest(empty_pins, metrics.PIN_LABELS)))
    _add_alerts(page, parts.views.alerts.firing())
    page.add_by(metrics.NODES, progress.census().items())
    page.add_by(metrics.DESIRED, progress.generations().items())
    for lag in progress.lags():
        page.add(metrics.GENERATION_LAG, lag.generations, lag.node, lag.type)
        page.add(metrics.DRIFTED, lag.drifted, lag.node, lag.type)
        page.add(metrics.NACKED, lag.nacked, lag.node, lag.type)
    page.add_by(metrics.TOKEN_EXPIRES, parts.access.token_expiries.next)


def _add_alerts(page: MetricsPage, firing: Mapping[tuple[str, str], int]) -> None:
    other_labels = (OTHER, OTHER)
    named = sorted(firing.keys() - {other_labels}, key=lambda labels: (-firing[labels], labels))[: metrics.ALERT_LABELS]
    for labels in named:
        page.add(metrics.ALERTS_FIRING, firing[labels], *labels)
    if folded_count := sum(firing.values()) - sum(firing[labels] for labels in named):
        page.add(metrics.ALERTS_FIRING, folded_count, *other_labels)


def _add_own(parts: Parts, page: MetricsPage) -> None:
    """Add the samples of this manager's own process."""
    base, requests, intake = parts.foundation, parts.limits.counts, parts.ingest.intake
    auth, startup, supervisor = parts.access.auth, parts.documents.startup, parts.fleet_services.supervisor
    page.add(process_metrics.SPANS_DROPPED, tracing.spans_dropped(), process_metrics.MANAGEMENT, "")
    for (method, route, status), count in requests.ended.items():
        page.add(metrics.REQUESTS, count, method, route, str(status))
    for labels, seconds in requests.seconds.items():
        page.add_observed(metrics.REQUEST_SECONDS, seconds, *labels)
    for node in parts.fleet.nodes.values():
        for state in metrics.PUSH_STATES:  # at 0 from the start, so that a rate sees the first one
            page.add(metrics.PUSHES, node.pushes.ended[state], node.name, state)
        for kind, seconds in node.pushes.seconds.items():
            page.add_observed(metrics.PUSH_SECONDS, seconds, node.name, kind)
    for operation, seconds in parts.database.seconds.items():
        page.add_observed(metrics.DATABASE_SECONDS, seconds, operation)
    page.add_by(metrics.AUTH_FAILURES, auth.failures.items())
    page.add_by(metrics.CONNECTIONS_ENDED, parts.limits.connections.ended.items())
    page.add_by(process_metrics.EVENTS_DROPPED, parts.bus.dropped.items(), process_metrics.MANAGEMENT, "")
    if (process := parts.process.read()) is not None:
        process_metrics.add(page, process, process_metrics.MANAGEMENT)
    page.add(metrics.EVENTS, intake.events)
    page.add(metrics.EVENTS_MALFORMED, intake.malformed)
    page.add(metrics.EVENTS_LOST, intake.lost)
    page.add(metrics.STREAMS, parts.bus.listeners)
    page.add(metrics.EVENTS_UNKEPT, parts.views.events.dropped.total())
    page.add(metrics.SERIES_LOST, parts.views.series_writer.lost)
    page.add(metrics.AUDIT_SUPPRESSED, auth.unrecorded)
    page.add(metrics.APPLY_FILE, startup.in_force)
    page.add(metrics.APPLY_FILE_REFUSED, startup.refused)
    page.add(metrics.MANAGER_PUSHING, base.pushes())
    page.add(metrics.DATABASE_UP, not parts.database.watch.away)
    page.add(metrics.RESTARTS, supervisor.restarts if supervisor is not None else 0)
