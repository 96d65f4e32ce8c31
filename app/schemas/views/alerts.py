"""Alerts of Alertmanager and of Grafana: the webhook that they call, and the alerts that are stored."""

from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from app.schemas.base.fields import bounds, text
from app.schemas.base.listing import Page
from app.schemas.views.changes import ChangeAnswer

AlertState = Literal["firing", "resolved", "expired"]
MAX_ALERTS = 1000
MAX_LABELS = 64
MAX_NAME = 128
MAX_TEXT = 1024
MAX_LABELS_BYTES = 4096
MAX_STORED_BYTES = 8192
"""Largest size of the labels of an alert as JSON, and of its labels and annotations together."""
VERSIONS = ("4", "1")
FINGERPRINT = "[A-Za-z0-9_-]{0,64}"
_TextName = Annotated[str, bounds(minLength=1, maxLength=MAX_NAME)]
_Labels = Annotated[
    dict[_TextName, Annotated[str, bounds(maxLength=MAX_TEXT)]], bounds(minProperties=1, maxProperties=MAX_LABELS)
]


class WebhookAlert(msgspec.Struct, frozen=True, rename="camel"):
    """One alert of a webhook. Unknown fields are ignored."""

    status: Literal["firing", "resolved"]
    labels: _Labels
    """At most 64, of at most 1,024 characters, and at most 4 KiB together. `tenant` and `node` name what the alert is
    about."""
    starts_at: Annotated[str, bounds(format="date-time"), Meta(examples=["2026-01-31T12:00:00Z"])]
    """RFC 3339."""
    annotations: Annotated[dict[_TextName, str], bounds(maxProperties=MAX_LABELS)] = {}
    """At most 64; values are cut after 1,024 characters, and 8 KiB of labels and annotations are kept. `runbook_url`
    becomes a link."""
    ends_at: Annotated[str, bounds(anyOf=[{"format": "date-time"}, {"const": ""}])] = ""
    """End of a resolved alert; for a firing one, when it expires unless it is sent again. The year 1 or no value: after
    `alert_expire_s`."""
    generator_url: str = msgspec.field(default="", name="generatorURL")
    fingerprint: Annotated[str, text(FINGERPRINT)] = ""
    """1 to 64 of the characters A-Z a-z 0-9 _ -; by default a hash of the labels."""


class AlertsPost(msgspec.Struct, frozen=True, rename="camel"):
    """Body of a webhook of Alertmanager (version 4) or Grafana alerting (version 1). Unknown fields are ignored."""

    version: Annotated[str, bounds(enum=list(VERSIONS))]
    """`4` of Alertmanager, `1` of Grafana."""
    alerts: Annotated[list[WebhookAlert], Meta(max_length=MAX_ALERTS)]
    truncated_alerts: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    """Alerts that the sender left out."""


class AlertsTaken(msgspec.Struct, frozen=True):
    """Result of a webhook."""

    fired: int
    """Alerts that were not firing before."""
    resolved: int
    """Alerts that were firing before."""
    repeated: int
    """Alerts that were known to be in this state."""
    truncated: int
    """Alerts that the sender left out."""


class AlertAnswer(msgspec.Struct, frozen=True):
    """A stored alert."""

    fingerprint: str
    alertname: str
    severity: str
    """Label `severity`; empty if it has none."""
    state: AlertState
    """`expired`: it was neither resolved nor sent again in time."""
    tenant: str
    """Label `tenant`; empty if it has none."""
    node: str
    """Label `node`; empty if it has none."""
    summary: str
    """Annotation `summary`, otherwise `description`."""
    runbook_url: str
    """Annotation `runbook_url`, if it is an http or https URL."""
    generator_url: str
    """URL of the rule that generated the alert, if it is an http or https URL."""
    labels: dict[str, str]
    annotations: dict[str, str]
    starts_at: float
    """Unix seconds."""
    ended_at: float | None
    """Unix seconds; null while it fires."""
    received_at: float
    """Unix seconds at which it was last sent."""
    expires_at: float
    """Unix seconds at which it counts as expired unless it is sent again."""
    preceding_changes: list[ChangeAnswer]
    """The latest changes before its start that concern its tenant, its node or the fleet, newest first: at most 5, made
    within `alert_changes_s` seconds before the start."""


class AlertList(Page, frozen=True):
    items: list[AlertAnswer]


@dataclass(frozen=True)
class AlertFilters:
    """Filters; None matches everything."""

    state: AlertState | None = None
    node: str | None = None
    tenant: str | None = None
