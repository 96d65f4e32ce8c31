"""Findings: what is wrong with the fleet, one of its nodes, tenants or records; and the one table of their types.

A threshold that decides what is wrong is written here and nowhere else: the management plane finds, and the command
line, the dashboard and the alert rules of `deploy/prometheus` (made by `docs/generate.py`) show. Alerts wait for
minutes before they fire, findings do not; so an alert has a finding before it fires.

Types are in the order in which they explain trouble: a lost node explains more than a tenant that is refused, and a
refused tenant more than a full pin budget.
"""

from typing import Literal, NamedTuple

import msgspec

from app.schemas.views.changes import ChangeAnswer

Severity = Literal["critical", "warning", "info"]
SubjectKind = Literal["fleet", "node", "tier", "tenant", "pin", "policy", "actor"]

CRASHES, CRASHES_S = 3, 600.0
"""A crash loop: at least this many unexpected ends of a node's process within this many seconds."""
WINDOW_S = 120.0
"""Seconds over which thrashing, and a tenant at its limit, are measured."""
THRASHING_FULL, THRASHING_EVICTED, THRASHING_HITS = 0.9, 0.5, 0.05
"""Thrashing: the pool is at least this full of what the policy fills, this share of the stored blocks was evicted, and
a smaller share of the requested blocks was hit."""
MIN_EVICTED, MIN_REFUSED = 100, 100
"""Fewest evicted blocks that count as thrashing; fewest refused blocks of a tenant that count as at its limit."""
FULL_SHARE = 0.95
"""A pool or a pin budget is full above this share; and a tenant with this share of all evictions evicts its own."""
AT_LIMIT_SHARE = 0.9
"""Share of its limit from which a tenant is at its limit."""
CROWDED_SHARE = 0.5
"""Share of the pools from which pins leave others too little room."""
QUARANTINE_SHARE = 0.02
"""Share of the pools from which quarantined bytes are a finding."""
UNREAD_EVICTED, UNREAD_SHARE = 1_000, 0.25
"""A tenant that never hits: fewest evictions of a cache in use, and the tenant's share of all stored blocks."""
MANY_CHANGES, MANY_CHANGES_S = 10, 600.0
"""Changes of one kind by one actor that count as many, and the longest time between two of them."""
RATIO_FALL = 0.15
"""Smallest fall of the hit ratio after a change of a policy."""
ID_JOURNAL_SHARE = 0.8
"""Share of its id journal from which a node has room for few more tenants."""
REFUSED_SHARE = 0.05
"""Share of a tenant's requested blocks whose refusal the alert LarderStoresRefused tolerates."""
ENDED_SHOWN_S = 600.0
"""Seconds for which the overview shows what ended."""
MAX_OF_TYPE = 20
"""Most findings of one type; the rest is counted."""


class FindingType(NamedTuple):
    severity: Severity
    """Severity while it lasts, unless the finding says otherwise; what ended is `info`."""
    explains: bool
    """Whether it can be the cause of trouble of a tenant or node, and not just an effect or a note."""
    to_do: str
    runbook: str = ""
    """Heading in `docs/operate/runbook.md`, as a fragment."""


_RESTARTS = "the-data-plane-restarts"
_BEHIND = "a-node-is-behind-nacked-or-drifted"
_LIMIT = "a-tenant-is-over-its-limit"
_PINS_FULL = "the-pool-is-full-of-pins"

FINDING_TYPES: dict[str, FindingType] = {
    "no_node": FindingType("critical", True, "run larder up, or let a data plane join: larder nodes token create"),
    "no_node_connected": FindingType("critical", True, "look at the log of the node and its control address"),
    "node_lost": FindingType("critical", True, "start its data plane again, or mend the network", "a-node-is-lost"),
    "crash_loop": FindingType("critical", True, "revert the change before it, and read its log", _RESTARTS),
    "snapshot_refused": FindingType("critical", True, "correct the field that it names", _BEHIND),
    "gateway_unreachable": FindingType("critical", True, "restart the data plane", "the-name-in-devshm"),
    "blocks_refused": FindingType("warning", True, "do what the reason needs", "stores-are-refused"),
    "dataplane_exited": FindingType("warning", True, "read its log", _RESTARTS),
    "tier_out_of_service": FindingType("warning", True, "mend what the reason says", "a-tier-is-out-of-service"),
    "tier_opening": FindingType("info", False, "wait until its contents are read"),
    "tier_not_listed": FindingType("warning", False, "mend what the reason says", "a-tier-is-out-of-service"),
    "tier_directory_full": FindingType("warning", False, "raise dataplane.tier_directory_blocks and restart the node"),
    "hit_ratio_fell": FindingType("warning", True, "revert the change of the policy", "the-hit-ratio-collapses"),
    "many_changes": FindingType("info", True, "larder audit list shows each of them", _PINS_FULL),
    "thrashing": FindingType("warning", True, "enlarge the pool, or limit who stores unread", "a-node-thrashes"),
    "tenant_at_limit": FindingType("warning", True, "raise its limit, or store less", "stores-are-refused"),
    "node_draining": FindingType("info", True, "larder nodes drain --off ends it"),
    "cache_cold": FindingType("warning", True, "wait until engines have stored again", "cold-caches"),
    "gateway_client_refused": FindingType("warning", True, "compare the client's release with docs/engines/lmcache.md"),
    "node_behind": FindingType("warning", False, "larder pushes shows what it lacks", _BEHIND),
    "node_joining": FindingType("info", False, "wait for its first snapshots"),
    "not_ready": FindingType("critical", False, "/healthz/fleet of the management plane shows the reason"),
    "quotas_not_enforced": FindingType("warning", True, "wait for the first snapshots, or start a node"),
    "clock_offset": FindingType("warning", False, "set its clock right and start the data plane again"),
    "gpu_copies_fail": FindingType("warning", False, "mend what the problem says", "gpu-copies-fail"),
    "policy_evicts_nothing": FindingType("info", True, "set another policy"),
    "tenant_over_limit": FindingType("warning", True, "end its leases or pins, or raise its limit", _LIMIT),
    "tenant_never_hits": FindingType("info", True, "look at the reasons of its missed tokens, or lower its limit"),
    "pin_holds_nothing": FindingType("warning", False, "send its prefix to an engine", "a-pin-holds-nothing"),
    "pin_in_tiers": FindingType("warning", False, "raise the pin budget, or attach an engine", _PINS_FULL),
    "pin_unlisted": FindingType("info", False, "wait until the listing is complete"),
    "pin_budget_full": FindingType("warning", False, "raise the pin budget, or delete pins", _PINS_FULL),
    "pin_degraded": FindingType("warning", False, "raise the pin budget, or delete pins", _PINS_FULL),
    "pin_without_gpu_copies": FindingType("info", False, "set dataplane.gpu_pool_bytes on nodes that it selects"),
    "pin_not_applied": FindingType("warning", False, "larder pushes shows which nodes lack it", _BEHIND),
    "policy_not_applied": FindingType("warning", False, "larder pushes shows which nodes lack it", _BEHIND),
    "id_journal_fills": FindingType("warning", False, "raise its size before it is full", "the-id-journal-fills"),
    "quarantine": FindingType("info", False, "end the engines that may still write", "an-engine-holds-the-cache"),
    "alert_firing": FindingType("warning", True, "follow the runbook of the alert"),
}  # fmt: skip
"""Every type of finding by its code."""


class FindingSubject(msgspec.Struct, frozen=True):
    """The subject of a finding."""

    kind: SubjectKind
    name: str = ""
    """Empty for the fleet, and for several of the kind."""
    node: str = ""
    """Node where it is so; empty for all."""
    tenant: str = ""
    """Tenant that it concerns, as shown; empty for all."""


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong, or was a short time ago."""

    code: str
    """Type of the finding, such as `node_lost`; see `docs/reference/findings.md`."""
    severity: Severity
    subject: FindingSubject
    what: str
    """The fault as a sentence without a full stop: `Node a is lost`."""
    detail: str
    """Figures and reasons; empty if there are none."""
    since: float | None
    """Unix seconds since which it is so; null if that is not known."""
    ended_at: float | None
    """Unix seconds; null while it lasts."""
    likely_change: ChangeAnswer | None
    """The change before it that most likely caused it; null if none did, or none is known."""
    to_do: str
    """Advice: the next step, or a reason to wait."""
    runbook: str
    """Path of the section of the runbook; empty if there is none."""
    count: int = 1
    """How many findings it stands for: more than one if it only says how many more there are of its type."""


class FindingList(msgspec.Struct, frozen=True):
    """Findings, most explaining first."""

    items: list[Finding]
    total: int
    cause: str
    """The most likely cause of the trouble in one or two sentences; empty if none was found."""
