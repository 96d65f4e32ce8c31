"""The dashboard of all nodes and tenants."""

from source.changes import changes
from source.dashboard import Dashboard
from source.panels import GOOD_IS_ONE, Panel, figure, rows, timeline
from source.queries import NODE, TENANT, of, per_second, ratio, total
from source.recurring import ALERTS, LAG, evicted, hit_ratio, operations, processes, refused, restarts, tiers_in_service


def fleet() -> Dashboard:
    requested, hits = (
        per_second("larder_requested_blocks_total", "node"),
        per_second("larder_hit_blocks_total", "node"),
    )
    used, capacity = of("larder_pool_used_bytes", "node"), of("larder_pool_capacity_bytes", "node")
    here = f"{NODE}, {TENANT}"
    return Dashboard(
        "fleet",
        "Fleet",
        "Problems in the fleet: which node and tenant, since when, and after which change.",
        {
            "Now": [
                figure(
                    "Nodes up", "Nodes that at least one manager hears from.", f"sum({of('larder_node_up', 'node')})"
                ),
                figure(
                    "Nodes lost, behind or nacked",
                    "Nodes that have not applied the newest state.",
                    'sum(max by (state) (larder_nodes{state=~"lost|behind|nacked"})) or 0 * max(larder_build_info)',
                    thresholds=[(None, "green"), (1, "red")],
                ),
                figure(
                    "Alerts firing",
                    "Alerts of Larder's rules.",
                    'count(ALERTS{alertstate="firing", alertname=~"Larder.*"}) or vector(0)',
                    thresholds=[(None, "green"), (1, "red")],
                ),
                figure("Hit ratio", "Of all nodes.", ratio(total(hits), total(requested)), "percentunit"),
                figure(
                    "Pools in use",
                    "Bytes in use, as a share of all pools. A full pool is normal, unless the policy is noop.",
                    f"{total(used)} / {total(capacity)}",
                    "percentunit",
                ),
                figure(
                    "Refused blocks a second",
                    "Stores that nodes refuse.",
                    total(per_second("larder_refused_blocks_total", "node, reason")),
                    thresholds=[(None, "green"), (1, "orange")],
                ),
            ],
            "What changed": [
                ALERTS,
                changes(),
                timeline(
                    "Nodes up",
                    "When a node was lost, and when it returned.",
                    of("larder_node_up", "node"),
                    "{{node}}",
                    GOOD_IS_ONE,
                ),
            ],
            "Nodes": [
                hit_ratio("node", NODE, "{{node}}"),
                Panel("Requested blocks", "Blocks per second that engines look up.", rows((requested, "{{node}}"))),
                Panel(
                    "Pool in use",
                    "Bytes that are ready, being written or quarantined, as a share of the pool's size.",
                    rows((f"{used} / {capacity}", "{{node}}")),
                    "percentunit",
                    maximum=1,
                ),
                Panel(
                    "Stored bytes",
                    "Bytes per second that engines commit.",
                    rows((per_second("larder_stored_bytes_total", "node"), "{{node}}")),
                    "binBps",
                ),
                Panel(
                    "Read bytes",
                    "Bytes per second that engines acquire.",
                    rows((per_second("larder_read_bytes_total", "node"), "{{node}}")),
                    "binBps",
                ),
                Panel(
                    "Refused blocks by reason",
                    "Blocks per second that nodes refuse to store.",
                    rows((per_second("larder_refused_blocks_total", "node, reason"), "{{node}} {{reason}}")),
                ),
                Panel(
                    "Evicted bytes by reason",
                    "Bytes evicted per second.",
                    rows((per_second("larder_evicted_bytes_total", "node, reason"), "{{node}} {{reason}}")),
                    "binBps",
                ),
                operations("{{node}} {{operation}}", "node, operation"),
                LAG,
            ],
            "Tenants": [
                Panel(
                    "Largest tenants",
                    "Bytes on all chosen nodes.",
                    rows(
                        (f"topk(10, {total(of('larder_tenant_bytes', 'node, tenant', here), 'tenant')})", "{{tenant}}")
                    ),
                    "bytes",
                    "bargauge",
                ),
                Panel(
                    "Most refused tenants",
                    "Blocks per second.",
                    rows(
                        (
                            "topk(10, "
                            + total(
                                per_second("larder_tenant_refused_blocks_total", "node, tenant, reason", here), "tenant"
                            )
                            + ")",
                            "{{tenant}}",
                        )
                    ),
                    kind="bargauge",
                ),
                Panel(
                    "Most evicted tenants",
                    "Blocks per second.",
                    rows(
                        (
                            "topk(10, "
                            + total(
                                per_second("larder_tenant_evicted_blocks_total", "node, tenant, reason", here), "tenant"
                            )
                            + ")",
                            "{{tenant}}",
                        )
                    ),
                    kind="bargauge",
                ),
                hit_ratio("tenant", here, "{{tenant}}"),
                refused(here),
                evicted(here),
            ],
            "Tiers": [
                tiers_in_service("{{tier}} ({{node}})"),
                Panel(
                    "Bytes in tiers",
                    "Bytes that tiers hold, as a share of their budgets.",
                    rows(
                        (
                            f"{of('larder_tier_stored_bytes', 'node, tier')} / "
                            f"({of('larder_tier_budget_bytes', 'node, tier')} > 0)",
                            "{{tier}} ({{node}})",
                        )
                    ),
                    "percentunit",
                    maximum=1,
                ),
                Panel(
                    "Bytes loaded from tiers",
                    "Bytes per second.",
                    rows((per_second("larder_tier_loaded_bytes_total", "node, tier"), "{{tier}} ({{node}})")),
                    "binBps",
                ),
            ],
            "Processes": [
                *processes('node=~"$node|"', "{{plane}} {{node}}"),
                restarts(f'plane="data", {NODE}', "{{node}}"),
                Panel(
                    "Versions",
                    "Release of each process.",
                    rows((of("larder_build_info", "plane, node, version, commit, python", ""), "")),
                    kind="table",
                ),
            ],
        },
    )
