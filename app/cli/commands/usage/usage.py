"""`larder usage`: report usage by tenant."""

import re
import time

import click

from app.cli.support.api.client import call, stream
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, exact, say, table
from app.cli.support.resources.options import Output, request_options

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


def _share(part: int, whole: int) -> str:
    return show.percent(part / whole if whole else None)


_HELD = Column("GiB hours", lambda row: f"{row['byte_hours'] / (1 << 30):,.3f}", right=True)
_COLUMNS = (
    _HELD,
    Column("tokens", lambda row: f"{row['requested_tokens']:,}", drop=1, right=True),
    Column("served", lambda row: f"{row['served_tokens']:,}", drop=2, right=True),
    Column("ratio", lambda row: _share(row["served_tokens"], row["requested_tokens"]), right=True),
    Column("spared", lambda row: f"{row['saved_prefill_s']:,.1f} s", right=True),
    Column("stored", lambda row: show.size(row["stored_bytes"]), drop=4, right=True),
    Column("evicted", lambda row: show.size(row["evicted_bytes"]), drop=5, right=True),
    Column("refused", lambda row: f"{row['refused_blocks']:,}", drop=3, right=True),
)
_TIER_COLUMNS = (
    Column("tier", lambda row: row["tier"]),
    _HELD,
    Column("served", lambda row: f"{row['served_tokens']:,}", right=True),
    Column("share", lambda row: _share(row["served_tokens"], row["of_tokens"]), drop=1, right=True),
    Column("bytes served", lambda row: show.size(row["served_bytes"]), drop=2, right=True),
)


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
    rows = [{**item, "at": time.strftime(time_format, time.gmtime(item["start"]))} for item in report["items"]]
    rows.append({**report["totals"], "at": "total", "group": ""})
    if by_tier:
        rows = [
            {**row, **tier, "tier": name, "of_tokens": row["served_tokens"]}
            for row in rows
            for name, tier in row["tiers"].items()
        ]
    columns = (
        Column("from (UTC)", lambda row: row["at"]),
        Column(group_by, lambda row: row["group"]),
        *(_TIER_COLUMNS if by_tier else _COLUMNS),
    )
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
