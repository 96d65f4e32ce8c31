"""The dashboard of one node."""

from source.changes import changes
from source.dashboard import Dashboard
from source.panels import BAD_IS_ONE, GOOD_IS_ONE, Panel, rows, timeline
from source.queries import NODE, TENANT, of, per_second, quantile, total
from source.recurring import ALERTS, LAG, evicted, hit_ratio, operations, processes, refused, restarts, tiers_in_service

DATA = f'plane="data", {NODE}'


def _by_reason(what: str) -> str:
    """Return a tier's blocks per second by reason, and 0 for a tier that has counted none."""
    counted = per_second(f"larder_tier_{what}_blocks_total", "node, tier, reason")
    return f"{counted} or on (node, tier) 0 * {of('larder_tier_serves', 'node, tier')}"


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
                    "Up", "Whether a manager hears from the node.", of("larder_node_up", "node"), "up", GOOD_IS_ONE
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
                Panel("Engines", "Attached engines.", rows((of("larder_engines", "node"), "engines"))),
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
            "Tiers": [
                tiers_in_service("{{tier}}"),
                Panel(
                    "Bytes in tiers",
                    "Bytes that tiers hold, and their budgets.",
                    rows(
                        (of("larder_tier_stored_bytes", "node, tier"), "{{tier}}"),
                        (of("larder_tier_budget_bytes", "node, tier"), "{{tier}} budget"),
                    ),
                    "bytes",
                ),
                Panel(
                    "Bytes copied and loaded",
                    "Bytes per second that are copied to tiers, and loaded from them into memory.",
                    rows(
                        (per_second("larder_tier_spilled_bytes_total", "node, tier"), "copied to {{tier}}"),
                        (per_second("larder_tier_loaded_bytes_total", "node, tier"), "loaded from {{tier}}"),
                    ),
                    "binBps",
                ),
                Panel(
                    "Latency of loads",
                    "Duration of calls that load up to 8 MiB. Engines wait for it in addition to what waits before.",
                    rows(
                        (quantile(0.5, "larder_tier_load_seconds", "tier"), "{{tier}} median"),
                        (quantile(0.99, "larder_tier_load_seconds", "tier"), "{{tier}} 99 %"),
                    ),
                    "s",
                ),
                Panel(
                    "Blocks not copied and not loaded",
                    "Blocks per second, by reason. Blocks that only a tier held and that it lost are misses.",
                    rows(
                        (_by_reason("refused"), "{{tier}} not copied {{reason}}"),
                        (_by_reason("lost"), "{{tier}} not loaded {{reason}}"),
                    ),
                ),
                Panel(
                    "Work that waits for tiers",
                    "Bytes that are being copied and loaded. If many wait for long, the tier is too slow.",
                    rows(
                        (of("larder_tier_spilling_bytes", "node, tier"), "being copied to {{tier}}"),
                        (of("larder_tier_loading_bytes", "node, tier"), "being loaded from {{tier}}"),
                    ),
                    "bytes",
                ),
            ],
            "Routers, shared-memory queues and stores": [
                Panel(
                    "KV events for routers",
                    "Events per second. Empty if the node publishes none.",
                    rows(
                        (per_second("larder_kv_events_published_total", "node"), "published"),
                        (per_second("larder_kv_events_dropped_total", "node"), "dropped"),
                        (per_second("larder_kv_events_replayed_total", "node"), "sent again"),
                        (per_second("larder_kv_events_replays_abandoned_total", "node"), "replays abandoned"),
                    ),
                ),
                Panel(
                    "Queues and stores in shared memory",
                    "Live ones of the data plane's user, and processes per second that ended without leaving.",
                    rows(
                        (of("larder_ipc_queues", "node"), "queues"),
                        (of("larder_ipc_stores", "node"), "stores"),
                        (per_second("larder_ipc_dead_peers_total", "node"), "dead peers"),
                    ),
                ),
                Panel(
                    "Bytes through queues and stores",
                    "Bytes per second.",
                    rows(
                        (per_second("larder_ipc_message_bytes_total", "node"), "messages"),
                        (per_second("larder_ipc_put_bytes_total", "node"), "objects"),
                    ),
                    "binBps",
                ),
            ],
            "Process": [*processes(NODE, "{{plane}}"), restarts(DATA, "starts")],
        },
        one_node=True,
    )
