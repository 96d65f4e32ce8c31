"""The dashboard of one tenant."""

from source.changes import changes
from source.dashboard import Dashboard
from source.panels import Panel, rows
from source.queries import NODE, TENANT, of, per_second
from source.recurring import ALERTS, evicted, hit_ratio, refused


def tenant() -> Dashboard:
    here = f"{NODE}, {TENANT}"

    def by_node(name: str) -> str:
        return of(f"larder_tenant_{name}_bytes", "node, tenant", here)

    return Dashboard(
        "tenant",
        "Tenant",
        "One tenant: usage and quota, hits, refusals and evictions, on each node.",
        {
            "Quota": [
                Panel(
                    "Bytes against limit and floor",
                    "A step of a line is a change of the quota; the marks show who made it.",
                    rows(
                        (of("larder_tenant_bytes", "node, tenant", here), "kept ({{node}})"),
                        (by_node("limit"), "limit ({{node}})"),
                        (by_node("floor"), "floor ({{node}})"),
                        (by_node("effective_floor"), "floor in effect ({{node}})"),
                    ),
                    "bytes",
                    width=16,
                ),
                changes(),
                Panel(
                    "Kept by guaranteed pins",
                    "Bytes of the tenant that are not evicted.",
                    rows((by_node("pinned"), "{{node}}")),
                    "bytes",
                ),
                refused(here),
                Panel(
                    "Would be refused",
                    "Blocks per second that would be refused if the quota were enforced (mode observe).",
                    rows((per_second("larder_tenant_would_refuse_blocks_total", "node, tenant", here), "{{node}}")),
                ),
            ],
            "Hits": [
                hit_ratio("node", here, "{{node}}"),
                Panel(
                    "Requested blocks",
                    "Blocks per second.",
                    rows((per_second("larder_tenant_requested_blocks_total", "node, tenant", here), "{{node}}")),
                ),
                evicted(here),
                Panel(
                    "Tokens served from the cache",
                    "Tokens per second whose KV bytes were cached, by tier.",
                    rows((per_second("larder_hit_tokens_total", "node, tenant, tier", here), "{{tier}} ({{node}})")),
                ),
                Panel(
                    "Bytes found",
                    "Bytes per second, by tier.",
                    rows((per_second("larder_hit_bytes_total", "node, tenant, tier", here), "{{tier}} ({{node}})")),
                    "binBps",
                ),
                ALERTS,
            ],
            "Neighbours": [
                Panel(
                    "All tenants",
                    "Find the tenant that grew while this one lost blocks.",
                    rows((of("larder_tenant_bytes", "node, tenant"), "{{tenant}} ({{node}})")),
                    "bytes",
                    stacked=True,
                    width=12,
                ),
                Panel(
                    "Blocks requested by all tenants",
                    "Blocks per second.",
                    rows((per_second("larder_tenant_requested_blocks_total", "node, tenant"), "{{tenant}} ({{node}})")),
                    width=12,
                ),
            ],
        },
        one_tenant=True,
    )
