"""`larder usage`: report usage by tenant."""

import re
import time
from operator import itemgetter
from typing import Any

import click

from app.cli.support.api.client import call, stream
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, exact, say, table
from app.cli.support.resources.options import Output, request_options

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_COLUMNS = {
    "GiB hours": 0, "tokens": 1, "served": 2, "ratio": 0, "spared": 0, "stored": 4, "evicted": 5, "refused": 3
}  # fmt: skip
"""Columns, and the order in which a narrow terminal leaves them out, highest first."""
_TIER_COLUMNS = {"tier": 0, "GiB hours": 0, "served": 0, "share": 1, "bytes served": 2}


@click.command()
@click.option(
    "--by",
    "group_by",
    type=click.Choice(["tenant", "model", "node"]),
    default="tenant",
    help="Group usage by this field.",
)
@click.option("--step", type=click.Choice(["1h", "1d"]), default="1d", show_default=True, help="Length of a step.")
@click.option("--from", "start", metavar="TIME", help="Start: Unix seconds, 2026-11-01 (UTC) or 2026-11-01T00:00:00Z.")
@click.option("--to", "end", metavar="TIME", help="End, in the same form; default now.")
@click.option("--tenant", help="Only this tenant; `_default` for the empty salt.")
@click.option("--tiers", "by_tier", is_flag=True, help="Show the usage of memory and of each tier.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@request_options
def usage(
    group_by: str,
    step: str,
    start: str | None,
    end: str | None,
    tenant: str | None,
    by_tier: bool,
    as_csv: bool,
    url: str | None,
    output: Output,
) -> None:
    """Show usage: bytes held over time, tokens requested and served, and the prefill time saved."""
    if as_csv and output.format != "table":
        raise click.UsageError("expected at most one of --csv, --json and --output")
    parameters = {"group_by": group_by, "step": step, "from": _moment(start), "to": _moment(end), "tenant": tenant}
    query = {name: value for name, value in parameters.items() if value is not None}
    if as_csv:
        exact(stream(url, "/api/v1/usage", {**query, "format": "csv"}))
        return
    report = call(url, "GET", "/api/v1/usage", None, query)
    if output.data(report, sorted({item["group"] for item in report["items"]})):
        return
    time_format = "%Y-%m-%d" if step == "1d" else "%Y-%m-%d %H:%M"
    lines, count_columns = (_tier_rows, _TIER_COLUMNS) if by_tier else (_rows, _COLUMNS)
    rows = [
        [time.strftime(time_format, time.gmtime(item["start"])), item["group"], *line]
        for item in report["items"]
        for line in lines(item)
    ]
    rows += [["total", "", *line] for line in lines(report["totals"])]
    column_drops = {"from (UTC)": 0, group_by: 0, **count_columns}
    columns = [
        Column(name, itemgetter(at), drop=drop, right=at > 1 and name != "tier")
        for at, (name, drop) in enumerate(column_drops.items())
    ]
    table("Usage", columns, rows, wide=output.wide)
    if not report["items"]:
        say(f"nothing was used{'' if tenant is None else f' by {tenant}'} in this time")
    unrated = report["totals"]["unrated_tokens"]
    if unrated:
        say(f"{unrated:,} served tokens have no rate: set one with 'larder rates set'")
    if not by_tier and any(
        counts["served_tokens"] > counts["requested_tokens"] > 0 for counts in (*report["items"], report["totals"])
    ):
        say(
            "More tokens were served than asked for: a look-up counts once for each request, but each acquire of its "
            "blocks counts as served"
        )


def _moment(text: str | None) -> str | None:
    """Return a time for the query. A date without a time means its start in UTC."""
    return f"{text}T00:00:00Z" if text is not None and _DAY.fullmatch(text) else text


def _rows(used: dict[str, Any]) -> list[list[str]]:
    return [_row(used)]


def _tier_rows(used: dict[str, Any]) -> list[list[str]]:
    """Return a line for memory and for each tier, with its share of the served tokens."""
    served = used["served_tokens"]
    return [
        [
            name,
            f"{tier['byte_hours'] / (1 << 30):,.3f}",
            f"{tier['served_tokens']:,}",
            show.percent(tier["served_tokens"] / served if served else None),
            show.size(tier["served_bytes"]),
        ]
        for name, tier in used["tiers"].items()
    ]


def _row(used: dict[str, Any]) -> list[str]:
    requested, served = used["requested_tokens"], used["served_tokens"]
    return [
        f"{used['byte_hours'] / (1 << 30):,.3f}",
        f"{requested:,}",
        f"{served:,}",
        show.percent(served / requested if requested else None),
        f"{used['saved_prefill_s']:,.1f} s",
        show.size(used["stored_bytes"]),
        show.size(used["evicted_bytes"]),
        f"{used['refused_blocks']:,}",
    ]
