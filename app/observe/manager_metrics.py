"""Metrics of a manager: what it serves, pushes and stores, and what it knows about its nodes.

`app.manager_samples` adds their samples.
"""

from app.observe.page import NODE, counter, gauge, histogram

PIN_LABELS = 50
ALERT_LABELS = 50
COLD = gauge(
    "larder_cache_cold",
    "1 while a cache that lost its blocks at its start, not on purpose, holds less than half of the lost bytes.",
    NODE,
)
EMPTY_PINS = gauge(
    "larder_pin_holds_nothing", "1 for each guaranteed or permanent pin without a cached block on any node.", ("pin",)
)
NODES = gauge("larder_nodes", "Known nodes by their state.", ("state",))
UP = gauge("larder_node_up", "1 when the node was heard from in the last seconds, else 0.", NODE)
DESIRED = gauge("larder_desired_generation", "Newest generation in the database.", ("type",))
REQUESTS = counter(
    "larder_http_requests",
    "Answered HTTP requests. The route is a template, or unmatched if no route has the path.",
    ("method", "route", "status"),
)
REQUEST_SECONDS = histogram(
    "larder_http_request_seconds", "Duration of HTTP requests, without event streams.", ("method", "route")
)
PUSH_SECONDS = histogram(
    "larder_push_seconds",
    "Time that the node took to acknowledge pushes of this manager, bodies included.",
    ("node", "type"),
)
DATABASE_SECONDS = histogram(
    "larder_database_seconds",
    "Duration of transactions: reads, changes with their wait for others, and commits of changes.",
    ("operation",),
)
GENERATION_LAG = gauge(
    "larder_generation_lag", "Number of generations by which the node is behind the newest.", ("node", "type")
)
DRIFTED = gauge(
    "larder_node_drifted",
    "1 while the node reports the newest generation with other contents, else 0.",
    ("node", "type"),
)
NACKED = gauge(
    "larder_node_nacked",
    "1 while the node refuses the newest generation and keeps an older one in force, else 0.",
    ("node", "type"),
)
TOKEN_EXPIRES = gauge(
    "larder_token_expires_timestamp_seconds",
    "Expiry of the token in Unix time, for the 50 tokens that expire next.",
    ("token",),
)
PUSHES = counter(
    "larder_pushes",
    "Pushes of this manager to the node, by result: acked, nacked, timed_out (no answer), refused (not understood).",
    ("node", "state"),
)
PUSH_STATES = ("acked", "nacked", "timed_out", "refused")
EVENTS = counter("larder_events_received", "Events received from nodes.")
EVENTS_MALFORMED = counter("larder_events_malformed", "Malformed messages from nodes.")
EVENTS_LOST = counter("larder_events_lost", "Events that nodes sent but that did not arrive.")
STREAMS = gauge("larder_event_streams", "Open event streams.")
EVENTS_UNKEPT = counter("larder_events_unkept", "Events that were not stored because the queue was full.")
SERIES_LOST = counter(
    "larder_series_points_lost",
    "Points of series that were not stored because the database took none for half an hour.",
)
AUTH_FAILURES = counter(
    "larder_auth_failures",
    "Unauthenticated requests: a missing, malformed, unknown or expired token, or an ended session.",
    ("reason",),
)
CONNECTIONS_ENDED = counter(
    "larder_http_connections_ended",
    "Connections that were refused (all: too many; address: too many of one) or closed (heads: too many bytes of "
    "incomplete ones; slow_head, slow_body).",
    ("reason",),
)
AUDIT_SUPPRESSED = counter(
    "larder_audit_suppressed", "Refusals that are missing from the audit log because they were too frequent."
)
APPLY_FILE = gauge("larder_apply_file_in_force", "0 while the file of apply_file cannot be applied, else 1.")
APPLY_FILE_REFUSED = counter("larder_apply_file_refused", "Times that the file of apply_file could not be applied.")
ALERTS_FIRING = gauge(
    "larder_alerts_firing",
    "Firing alerts that were posted to /api/v1/alerts: the 50 most frequent names, and `other`.",
    ("alertname", "severity"),
)
RESTARTS = counter("larder_data_plane_restarts", "Unplanned restarts of the embedded data plane.")
MANAGER_PUSHING = gauge("larder_manager_pushing", "1 while this manager is the leader, which pushes to nodes, else 0.")
CONDITION = gauge(
    "larder_node_condition",
    "1 for each condition of a node that lasts: crash_loop, thrashing or tenant_at_limit.",
    ("node", "type"),
)
DATABASE_UP = gauge("larder_database_up", "1 while the database responds and accepts changes, else 0.")
