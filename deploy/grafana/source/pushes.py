"""The dashboard of changes and their delivery."""

from source.changes import changes
from source.dashboard import Dashboard
from source.panels import BAD_IS_ONE, GOOD_IS_ONE, Panel, Query, rows, timeline
from source.queries import NODE, managers_quantile, of
from source.recurring import LAG


def pushes() -> Dashboard:
    return Dashboard(
        "pushes",
        "Pushes and audit",
        "Changes, who made them, and whether they reached the nodes.",
        {
            "Changes": [
                changes(width=16),
                Panel(
                    "Newest generations",
                    "Each step is a change of a record of this type.",
                    rows(("max by (type) (larder_desired_generation)", "{{type}}")),
                ),
            ],
            "Delivery": [
                LAG,
                Panel(
                    "Pushes by node and answer",
                    "Pushes per second. `nacked`: the node refuses the state; `timed_out`: it does not answer.",
                    rows(
                        (
                            f"sum by (node, state) (rate(larder_pushes_total{{{NODE}}}[$__rate_interval])) > 0",
                            "{{node}} {{state}}",
                        )
                    ),
                ),
                Panel(
                    "From push to acknowledgement",
                    "Exemplars lead to the trace of the change.",
                    [
                        Query(managers_quantile(0.5, "larder_push_seconds", "node", NODE), "{{node}} median"),
                        Query(
                            managers_quantile(0.99, "larder_push_seconds", "node", NODE), "{{node}} 99 %", exemplar=True
                        ),
                    ],
                    "s",
                ),
                Panel(
                    "Nodes by state",
                    "States according to the leader.",
                    rows(("max by (state) (larder_nodes)", "{{state}}")),
                    stacked=True,
                ),
                timeline(
                    "Nodes that refuse the newest state",
                    "A node answered a push with a NACK and keeps an older state. `larder pushes` shows the fields.",
                    of("larder_node_nacked", "node, type"),
                    "{{node}} {{type}}",
                    BAD_IS_ONE,
                ),
                timeline(
                    "Drifted nodes",
                    "A node enforces a different state from the one that it acknowledged.",
                    of("larder_node_drifted", "node, type"),
                    "{{node}} {{type}}",
                    BAD_IS_ONE,
                ),
                timeline(
                    "Managers",
                    "Which manager pushes to nodes.",
                    "max by (instance) (larder_manager_pushing)",
                    "{{instance}}",
                    {"1": ("leader", "green"), "0": ("follower", "blue")},
                ),
            ],
            "API and database": [
                timeline(
                    "Database",
                    "Whether the database accepts changes.",
                    "min by (instance) (larder_database_up)",
                    "{{instance}}",
                    GOOD_IS_ONE,
                ),
                Panel(
                    "Latency of the database, 99 %",
                    "By operation.",
                    rows((managers_quantile(0.99, "larder_database_seconds", "operation"), "{{operation}}")),
                    "s",
                ),
                Panel(
                    "HTTP requests",
                    "Requests per second, by route and status.",
                    rows(
                        (
                            "sum by (method, route, status) (rate(larder_http_requests_total[$__rate_interval]))",
                            "{{method}} {{route}} {{status}}",
                        )
                    ),
                ),
                Panel(
                    "Latency of HTTP requests, 99 %",
                    "Exemplars lead to traces.",
                    [
                        Query(
                            managers_quantile(0.99, "larder_http_request_seconds", "method, route"),
                            "{{method}} {{route}}",
                            exemplar=True,
                        )
                    ],
                    "s",
                ),
                Panel(
                    "Events received and not kept",
                    "Events per second. Dropped events only leave gaps in the history.",
                    rows(
                        ("sum(rate(larder_events_received_total[$__rate_interval]))", "received"),
                        ("sum(rate(larder_events_lost_total[$__rate_interval]))", "lost in transit"),
                        ("sum(rate(larder_events_unkept_total[$__rate_interval]))", "not stored"),
                    ),
                ),
                Panel(
                    "Audit entries suppressed",
                    "Refusals per second that were too frequent to be written.",
                    rows(("sum(rate(larder_audit_suppressed_total[$__rate_interval]))", "suppressed")),
                ),
            ],
        },
        has_tenant=False,
    )
