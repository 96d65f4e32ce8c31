"""Alerts that Alertmanager or Grafana sent, and refusals that nodes report, for `larder why`."""

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
