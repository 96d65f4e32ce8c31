"""Report of a replay: a JSON object for programs, and a table for the terminal."""

from typing import Any

import msgspec
from rich.markup import escape
from rich.table import Table

from dataplane.base.units import format_size
from dataplane.replay.run import ReplayResult


def as_object(outcome: ReplayResult) -> dict[str, Any]:
    """Return the result as plain values. Scripts rely on the names."""
    tally = outcome.tally
    return {
        "requests": tally.requests,
        "blocks_requested": tally.blocks_requested,
        "blocks_hit": tally.blocks_hit,
        "hit_ratio": round(tally.blocks_hit / tally.blocks_requested, 6) if tally.blocks_requested else 0.0,
        "blocks_loaded": tally.blocks_loaded,
        "blocks_stored": tally.blocks_stored,
        "blocks_present": tally.blocks_present,
        "blocks_busy": tally.blocks_busy,
        "blocks_refused": dict(sorted(tally.blocks_refused.items())),
        "blocks_verified": tally.blocks_verified,
        "verify_errors": tally.verify_errors,
        "stored_bytes": tally.stored_bytes,
        "read_bytes": tally.read_bytes,
        "gbps_in": round(outcome.gbps_in, 3),
        "gbps_out": round(outcome.gbps_out, 3),
        "lookup_us": {"p50": round(tally.lookup_us(50), 1), "p99": round(tally.lookup_us(99), 1)},
        "seconds": round(outcome.seconds, 3),
        "engines": outcome.engines,
        "block_bytes": outcome.block_bytes,
        "tenants": outcome.tenants,
        "reconnects": tally.reconnects,
        "accounting": msgspec.to_builtins(outcome.accounting),
    }


def as_table(outcome: ReplayResult) -> Table:
    """Return the result as a table for a terminal."""
    result = as_object(outcome)
    table = Table(title="Replay", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(justify="right")
    refused = ", ".join(f"{blocks:,} {reason}" for reason, blocks in result["blocks_refused"].items())
    rows = {
        "requests": f"{result['requests']:,} by {outcome.engines} engine{'s' if outcome.engines > 1 else ''}",
        "tenants": f"{outcome.tenants:,}",
        "blocks requested": f"{result['blocks_requested']:,} of {format_size(outcome.block_bytes)}",
        "blocks hit": f"{result['blocks_hit']:,}",
        "of them from tiers": f"{result['blocks_loaded']:,}",
        "hit ratio": f"{result['hit_ratio']:.4f}",
        "blocks stored": f"{result['blocks_stored']:,}",
        "blocks refused": refused or "none",
        "blocks verified": f"{result['blocks_verified']:,}, {result['verify_errors']:,} wrong",
        "written": f"{format_size(result['stored_bytes'])} at {result['gbps_in']:.2f} GB/s",
        "read": f"{format_size(result['read_bytes'])} at {result['gbps_out']:.2f} GB/s",
        "lookup": f"p50 {result['lookup_us']['p50']:.0f} µs, p99 {result['lookup_us']['p99']:.0f} µs",
        "reconnects": f"{result['reconnects']:,}",
        "accounting": _accounting(outcome),
        "time": f"{result['seconds']:.2f} s",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _accounting(outcome: ReplayResult) -> str:
    accounting = outcome.accounting
    if accounting is None:
        return "not asked: the control socket is not known"
    if accounting.pool_bytes_equal:
        return f"{format_size(accounting.used_bytes)} used, equal to the tenants' sum"
    totals = (
        f"{accounting.used_bytes:,} B used, {accounting.tenant_bytes:,} B of tenants, "
        f"{accounting.reserved_bytes:,} B reserved, {accounting.quarantined_bytes:,} B quarantined"
    )
    return "\n".join([totals, *map(escape, accounting.faults)])
