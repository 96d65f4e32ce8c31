"""Panels that several dashboards have."""

from source.panels import GOOD_IS_ONE, Panel, rows, timeline
from source.queries import NODE, of, per_second, quantile, ratio, total


def hit_ratio(by: str, only: str, legend: str) -> Panel:
    hits, requested = ("larder_hit_blocks_total", "larder_requested_blocks_total")
    if "tenant" in only or "tenant" in by:
        hits, requested = ("larder_tenant_hit_blocks_total", "larder_tenant_requested_blocks_total")
    every = "node, tenant" if "tenant" in hits else "node"
    return Panel(
        "Hit ratio",
        "Cached blocks as a share of requested blocks. Compare a drop with the marks of changes.",
        rows((ratio(total(per_second(hits, every, only), by), total(per_second(requested, every, only), by)), legend)),
        "percentunit",
        maximum=1,
    )


def refused(only: str) -> Panel:
    return Panel(
        "Refused stores by tenant and reason",
        "Blocks per second that engines computed but could not store. The runbook says what to do for each reason.",
        rows(
            (
                per_second("larder_tenant_refused_blocks_total", "node, tenant, reason", only),
                "{{tenant}} {{reason}} ({{node}})",
            )
        ),
    )


def evicted(only: str) -> Panel:
    return Panel(
        "Evictions by tenant and reason",
        "Evicted blocks per second. `limit`: for the tenant's own limit; `room`: for any store.",
        rows(
            (
                per_second("larder_tenant_evicted_blocks_total", "node, tenant, reason", only),
                "{{tenant}} {{reason}} ({{node}})",
            )
        ),
    )


def operations(legend: str, by: str, only: str = NODE) -> Panel:
    return Panel(
        "Latency of engine operations",
        "Measured by engines. Look-up and acquire read shared memory; reserve and commit send requests.",
        rows(
            (quantile(0.5, "larder_engine_operation_seconds", by, only), f"{legend} median"),
            (quantile(0.99, "larder_engine_operation_seconds", by, only), f"{legend} 99 %"),
        ),
        "s",
    )


def tiers_in_service(legend: str) -> Panel:
    return timeline(
        "Tiers in service",
        "Whether the circuit breaker of the tier is closed. If not, memory is served without the tier.",
        of("larder_tier_serves", "node, tier"),
        legend,
        GOOD_IS_ONE,
    )


def restarts(only: str, legend: str) -> Panel:
    return Panel(
        "Starts of data planes",
        "Starts of another process, planned ones included. The alert LarderDataPlaneRestarts fires at three "
        "unplanned ones within 10 minutes.",
        rows((f"max by (node) (resets(larder_process_cpu_seconds_total{{{only}}}[15m]))", legend)),
    )


ALERTS = timeline(
    "Alerts",
    "Start of each firing alert, with its node and tenant. What it tells of began some minutes earlier.",
    'max by (alertname, node, tenant) (ALERTS{alertstate="firing", alertname=~"Larder.*"})',
    "{{alertname}} {{tenant}} {{node}}",
    {"1": ("fires", "red")},
)
LAG = Panel(
    "Generations behind",
    "Generations that a node has not applied yet, by record type. If above 0 for minutes, check the pushes.",
    rows((of("larder_generation_lag", "node, type"), "{{node}} {{type}}")),
)


def processes(only: str, legend: str) -> list[Panel]:
    return [
        Panel(
            "Processor time",
            "Cores in use by the processes of both planes.",
            rows((per_second("larder_process_cpu_seconds_total", "plane, node", only), legend)),
        ),
        Panel(
            "Resident memory of processes",
            "Pages of the pool count once they were touched.",
            rows((of("larder_process_resident_bytes", "plane, node", only), legend)),
            "bytes",
        ),
        Panel(
            "Lag of event loops, 99 %",
            "Delay of due timers. Above 0.1 s, pushes and scrapes are delayed.",
            rows((quantile(0.99, "larder_event_loop_lag_seconds", "plane, node", only), legend)),
            "s",
        ),
        Panel(
            "Open files",
            "Each connection and each piece of an engine's memory uses file descriptors.",
            rows((of("larder_process_open_fds", "plane, node", only), legend)),
        ),
        Panel(
            "Pauses by garbage collection",
            "Share of time in which Python's garbage collector pauses a process.",
            rows((per_second("larder_gc_pause_seconds_total", "plane, node", only), legend)),
            "percentunit",
        ),
    ]
