"""The dashboard of one node."""

from source.changes import changes
from source.dashboard import Dashboard
from source.panels import BAD_IS_ONE, GOOD_IS_ONE, Panel, rows, timeline
from source.queries import NODE, TENANT, of, per_second, quantile, total
from source.recurring import ALERTS, LAG, evicted, hit_ratio, operations, processes, refused

DATA = f'plane="data", {NODE}'


def node() -> Dashboard:
    here = f"{NODE}, {TENANT}"

    def pool(name: str) -> str:
        return of(f"larder_pool_{name}_bytes", "node")

    return Dashboard(
        "node",
        "Node",
        "One node: contents of its pool, refusals, evictions, latency, and applied state.",
        {
            "State": [
                timeline(
                    "Up",
                    "Whether a manager hears from the node.",
                    of("larder_node_up", "node"),
                    "up",
                    GOOD_IS_ONE,
                ),
                Panel(
                    "Conditions",
                    "Possible reasons for misses and refusals: a cold cache, a drained node, a closed admission gate.",
                    rows(
                        (of("larder_cache_cold", "node"), "cold"),
                        (of("larder_node_draining", "node"), "drains"),
                        (of("larder_admission_gate_closed", "node"), "gate closed"),
                    ),
                    kind="state-timeline",
                    mappings=BAD_IS_ONE,
                ),
                ALERTS,
                LAG,
                Panel(
                    "Generations",
                    "Applied and newest generation. Each step is a change.",
                    rows(
                        (of("larder_observed_generation", "node, type"), "{{type}} applied"),
                        ("max by (type) (larder_desired_generation)", "{{type}} newest"),
                    ),
                ),
                changes(),
            ],
            "Pool": [
                Panel(
                    "Contents of the pool",
                    "Ready bytes include those of guaranteed pins.",
                    rows(
                        (pool("ready"), "ready"),
                        (pool("reserved"), "being written"),
                        (pool("quarantined"), "quarantined"),
                        (f"{pool('capacity')} - {pool('used')}", "free"),
                    ),
                    "bytes",
                    stacked=True,
                ),
                Panel(
                    "Guaranteed pins",
                    "Bytes that guaranteed pins keep, and their budget.",
                    rows((pool("pinned"), "kept"), (pool("pin_budget"), "budget")),
                    "bytes",
                ),
                Panel(
                    "Tenants",
                    "Bytes charged to each tenant.",
                    rows((of("larder_tenant_bytes", "node, tenant", here), "{{tenant}}")),
                    "bytes",
                    stacked=True,
                ),
                refused(here),
                evicted(here),
                Panel(
                    "Evictions by reason",
                    "Blocks per second. The node itself causes `watermark` and `index`.",
                    rows((per_second("larder_evicted_blocks_total", "node, reason"), "{{reason}}")),
                ),
                Panel(
                    "Idle age at eviction",
                    "Time since the last use of evicted blocks. A small value means that the pool is too small.",
                    rows(
                        (quantile(0.1, "larder_evicted_idle_seconds", "node"), "10 %"),
                        (quantile(0.5, "larder_evicted_idle_seconds", "node"), "median"),
                    ),
                    "s",
                ),
                Panel(
                    "Lifetime of blocks and gap between reads",
                    "If blocks live shorter than the gap between two reads, the next read misses.",
                    rows(
                        (quantile(0.5, "larder_block_lifetime_seconds", "node"), "lifetime, median"),
                        (quantile(0.9, "larder_block_reuse_gap_seconds", "node"), "gap, 90 %"),
                    ),
                    "s",
                ),
                Panel(
                    "Fragmentation",
                    "Bytes of slots beyond their blocks, and free slots in committed segments.",
                    rows((pool("padding"), "padding"), (pool("free_slot"), "free slots")),
                    "bytes",
                ),
            ],
            "Traffic": [
                hit_ratio("tenant", here, "{{tenant}}"),
                Panel(
                    "Bytes stored and read",
                    "A second.",
                    rows(
                        (per_second("larder_stored_bytes_total", "node"), "stored"),
                        (per_second("larder_read_bytes_total", "node"), "read"),
                    ),
                    "binBps",
                ),
                operations("{{operation}}", "operation"),
                Panel(
                    "Engines",
                    "Attached engines.",
                    rows((of("larder_engines", "node"), "engines")),
                ),
                Panel(
                    "Corrupt blocks and events lost",
                    "Investigate any corrupt block. Dropped accesses make eviction less exact.",
                    rows(
                        (per_second("larder_corrupt_blocks_total", "node"), "corrupt blocks"),
                        (per_second("larder_ring_dropped_total", "node"), "accesses dropped"),
                        (
                            f"{total(per_second('larder_events_dropped_total', 'node, event', DATA))} or vector(0)",
                            "events dropped",
                        ),
                    ),
                ),
                Panel(
                    "Id journal",
                    "Share of its capacity in use. When it is full, stores of new tenants are refused.",
                    rows(
                        (
                            f"{of('larder_id_journal_bytes', 'node')} / "
                            f"{of('larder_id_journal_capacity_bytes', 'node')}",
                            "in use",
                        )
                    ),
                    "percentunit",
                    maximum=1,
                ),
            ],
            "Process": [*processes(NODE, "{{plane}}")],
        },
        one_node=True,
    )
