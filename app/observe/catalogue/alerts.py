"""Alerts that Alertmanager or Grafana sent, and refusals and limits that nodes report, for `larder why`."""

from app.observe.catalogue.plane_event import PlaneEvent


class AlertFired(PlaneEvent, tag="alert.fired"):
    """A webhook reported that an alert started to fire."""

    severity = "warning"

    alertname: str
    """Label `alertname` of the alert."""
    alert_severity: str
    """Label `severity` of the alert."""
    fingerprint: str
    """Fingerprint by which Alertmanager or Grafana identifies the alert."""
    starts_at: float
    """Unix seconds."""
    tenant: str
    """Empty if the alert names no tenant."""


class AlertResolved(PlaneEvent, tag="alert.resolved"):
    """An alert was resolved, or was not sent again in time."""

    alertname: str
    """Label `alertname` of the alert."""
    alert_severity: str
    """Label `severity` of the alert."""
    fingerprint: str
    """Fingerprint by which Alertmanager or Grafana identifies the alert."""
    starts_at: float
    """Unix seconds."""
    tenant: str
    """Empty if the alert names no tenant."""
    reason: str
    """`resolved` or `expired`."""


class RefusalsStarted(PlaneEvent, tag="refusals.started"):
    """A node refuses blocks of a tenant after a minute without a refusal."""

    severity = "warning"

    tenant: str
    reason: str
    """The most frequent reason."""
    holder: str
    """Tenant that held most of the node's pool then, if room was missing; else empty. Callers who are limited to
    tenants see the name of no other tenant."""
    holder_bytes: int
    """Bytes that it held."""


class RefusalsEnded(PlaneEvent, tag="refusals.ended"):
    """A node that refused blocks of a tenant has refused none for a minute."""

    tenant: str
    blocks: int
    """Blocks that it refused since `refusals.started`."""


class LimitExceeded(PlaneEvent, tag="limit.exceeded"):
    """A tenant holds more than its limit on a node; also if the limit is only observed."""

    severity = "warning"

    tenant: str
    held_bytes: int
    """Size of its blocks on the node."""
    limit_bytes: int
    """Its limit."""


class LimitRestored(PlaneEvent, tag="limit.restored"):
    """A tenant that held more than its limit on a node has been within it, or without a limit, for a minute."""

    tenant: str
    held_bytes: int
    """Size of its blocks on the node."""
