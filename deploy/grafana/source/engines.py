"""The dashboard of engines, pins and the gateway."""

from source.dashboard import Dashboard
from source.panels import Panel, rows
from source.queries import of, per_second, quantile, total
from source.recurring import operations


def engines() -> Dashboard:
    return Dashboard(
        "engines",
        "Engines and gateway",
        "Engines that use the cache, latency, and leased blocks. GPU panels are empty on nodes without a GPU.",
        {
            "Engines": [
                Panel("Engines", "Attached engines.", rows((of("larder_engines", "node"), "{{node}}"))),
                operations("{{operation}}", "operation"),
                Panel(
                    "Operations",
                    "Operations per second, of all engines.",
                    rows(
                        (
                            total(per_second("larder_engine_operation_seconds_count", "node, operation"), "operation"),
                            "{{operation}}",
                        )
                    ),
                ),
                Panel(
                    "Leased blocks",
                    "Leased blocks cannot be evicted. If there are many for a long time, an engine may hang.",
                    rows((of("larder_engine_leased_blocks", "node, engine"), "{{engine}} ({{node}})")),
                ),
                Panel(
                    "Being written and quarantined",
                    "Quarantined bytes are released when the engine's processes are gone.",
                    rows(
                        (of("larder_engine_reserved_bytes", "node, engine"), "{{engine}} writes ({{node}})"),
                        (of("larder_engine_quarantined_bytes", "node, engine"), "{{engine}} quarantined ({{node}})"),
                    ),
                    "bytes",
                ),
                Panel(
                    "Models",
                    "Bytes by model.",
                    rows(
                        (
                            f"sum by (node, model) ({of('larder_space_bytes', 'node, space, model')})",
                            "{{model}} ({{node}})",
                        )
                    ),
                    "bytes",
                ),
            ],
            "Pins": [
                Panel(
                    "Resident blocks of pins",
                    "0 means that the pin holds nothing; see the runbook.",
                    rows(
                        (of("larder_pin_resident_blocks", "node, pin"), "{{pin}} ({{node}})"),
                        ("max by (pin) (larder_pin_blocks)", "{{pin}} covered"),
                    ),
                ),
                Panel(
                    "Resident share of pins",
                    "Resident blocks as a share of the blocks that the pin covers.",
                    rows(
                        (
                            f"{of('larder_pin_resident_blocks', 'node, pin')} / on (pin) group_left () "
                            "max by (pin) (larder_pin_blocks > 0)",
                            "{{pin}} ({{node}})",
                        )
                    ),
                    "percentunit",
                    maximum=1,
                ),
            ],
            "LMCache gateway": [
                Panel(
                    "Requests",
                    "Requests per second, by operation.",
                    rows(
                        (
                            total(per_second("larder_gateway_requests_total", "node, gateway, operation"), "operation"),
                            "{{operation}}",
                        )
                    ),
                ),
                Panel(
                    "Latency of requests",
                    "Time that the node takes to serve a request.",
                    rows(
                        (quantile(0.5, "larder_gateway_request_seconds", "operation"), "{{operation}} median"),
                        (quantile(0.99, "larder_gateway_request_seconds", "operation"), "{{operation}} 99 %"),
                    ),
                    "s",
                ),
                Panel(
                    "Chunks found",
                    "Chunks per second that look-ups requested and found.",
                    rows(
                        (per_second("larder_gateway_requested_chunks_total", "node, gateway"), "requested ({{node}})"),
                        (per_second("larder_gateway_hit_chunks_total", "node, gateway"), "found ({{node}})"),
                    ),
                ),
                Panel(
                    "Bytes stored and read",
                    "A second.",
                    rows(
                        (per_second("larder_gateway_stored_bytes_total", "node, gateway"), "stored ({{node}})"),
                        (per_second("larder_gateway_read_bytes_total", "node, gateway"), "read ({{node}})"),
                    ),
                    "binBps",
                ),
                Panel(
                    "Failures",
                    "Failed requests per second, by reason.",
                    rows(
                        (
                            per_second("larder_gateway_failures_total", "node, gateway, operation, reason"),
                            "{{operation}} {{reason}} ({{node}})",
                        )
                    ),
                ),
                Panel(
                    "Workers and connections",
                    "Registered workers, and open connections of schedulers and workers.",
                    rows(
                        (of("larder_gateway_instances", "node, gateway"), "workers ({{node}})"),
                        (of("larder_gateway_connections", "node, gateway"), "connections ({{node}})"),
                    ),
                ),
            ],
            "GPU copies": [
                Panel(
                    "Memory of GPUs",
                    "Bytes in use, as a share of the bytes that GPU copies may use.",
                    rows(
                        (
                            f"{of('larder_gpu_copy_pool_used_bytes', 'node, device')} / "
                            f"{of('larder_gpu_copy_pool_capacity_bytes', 'node, device')}",
                            "{{device}} ({{node}})",
                        )
                    ),
                    "percentunit",
                    maximum=1,
                ),
                Panel(
                    "Copies",
                    "Blocks copied per second, and failed copies.",
                    rows(
                        (
                            per_second("larder_gpu_copy_pool_copied_blocks_total", "node, device"),
                            "copied {{device}} ({{node}})",
                        ),
                        (
                            per_second("larder_gpu_copy_pool_failed_copies_total", "node, device"),
                            "failed {{device}} ({{node}})",
                        ),
                    ),
                ),
                Panel(
                    "GPU copies of pins",
                    "Present copies, and copies wanted with unlimited room.",
                    rows(
                        (of("larder_pin_gpu_copies", "node, pin"), "{{pin}} present ({{node}})"),
                        (of("larder_pin_gpu_copies_wanted", "node, pin"), "{{pin}} wanted ({{node}})"),
                    ),
                ),
            ],
        },
        has_tenant=False,
    )
