"""`larder usage` and `larder rates …`: report usage by tenant, and manage prefill rates without the cache."""

import re
import time
from operator import itemgetter
from typing import Any

import click

from app.cli.support.api.client import ApiError, call, state_headers, stream, url_option
from app.cli.support.exit_codes import worded
from app.cli.support.keys import FINITE
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, exact, say, table
from app.cli.support.resources.options import Noun, Output, output_option
from app.cli.support.resources.verbs import Resource, add_delete, add_describe, add_edit, add_get, add_list, add_set
from app.schemas.records.prefill_rates import RatePut

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
@url_option
@output_option
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
    given = {"group_by": group_by, "step": step, "from": _moment(start), "to": _moment(end), "tenant": tenant}
    query = {name: value for name, value in given.items() if value is not None}
    if as_csv:
        exact(stream(url, "/api/v1/usage", {**query, "format": "csv"}))
        return
    report = call(url, "GET", "/api/v1/usage", None, query)
    if output.data(report, sorted({item["group"] for item in report["items"]})):
        return
    time_format = "%Y-%m-%d" if step == "1d" else "%Y-%m-%d %H:%M"
    lines, more = (_tier_rows, _TIER_COLUMNS) if by_tier else (_rows, _COLUMNS)
    rows = [
        [time.strftime(time_format, time.gmtime(item["start"])), item["group"], *line]
        for item in report["items"]
        for line in lines(item)
    ]
    rows += [["total", "", *line] for line in lines(report["totals"])]
    names = {"from (UTC)": 0, group_by: 0, **more}
    columns = [
        Column(name, itemgetter(at), drop=drop, right=at > 1 and name != "tier")
        for at, (name, drop) in enumerate(names.items())
    ]
    table("Usage", columns, rows, wide=output.wide)
    if not report["items"]:
        say(f"nothing was used{'' if tenant is None else f' by {tenant}'} in this time")
    unrated = report["totals"]["unrated_tokens"]
    if unrated:
        say(f"{unrated:,} served tokens have no rate: set one with 'larder rates set'")
    if not by_tier and any(
        each["served_tokens"] > each["requested_tokens"] > 0 for each in (*report["items"], report["totals"])
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


_RATE_COLUMNS = (
    Column("name", lambda r: r["name"]),
    Column("model", lambda r: r["model"]),
    Column("space", lambda r: r["space"] or "all", drop=2),
    Column("tokens/s", lambda r: f"{r['prefill_tokens_per_s']:,g}", right=True),
    Column("note", lambda r: r["note"], drop=1, text=True),
)
_RATES = Resource("/api/v1/rates", "rate", _RATE_COLUMNS, editable=RatePut.__struct_fields__)


@click.group(cls=Noun)
def rates() -> None:
    """Manage prefill rates of engines, from which the saved prefill time is estimated."""


add_list(rates, _RATES, "List all rates.")
add_get(rates, _RATES, "Show one rate.")
add_edit(rates, _RATES, method="PUT")
add_delete(rates, _RATES, "Delete a rate.")
add_describe(rates, _RATES)


@click.argument("name")
@click.option("--model", required=True, help="Model name, as engines attach with it.")
@click.option("--tokens-per-s", type=FINITE, required=True, help="Tokens per second that a whole engine prefills.")
@click.option("--space", default="", help="One space of the model, 32 hex digits; default: all.")
@click.option("--note", default="", help="Free-form note; at most 1,024 characters.")
@url_option
@output_option
def set_rate(
    name: str, model: str, tokens_per_s: float, space: str, note: str, url: str | None, output: Output
) -> None:
    body = {"model": model, "prefill_tokens_per_s": tokens_per_s, "space": space, "note": note}
    path = _RATES.of(name)
    try:
        answer = call(url, "PUT", path, body, headers=state_headers(_RATES.current(url, name)))
    except ApiError as refused:
        raise worded(refused, refused.message.replace("prefill_tokens_per_s", "--tokens-per-s")) from None
    if not output.data(answer, name):
        say(f"rate {name}: {answer['prefill_tokens_per_s']:,g} tokens/s of {answer['model']}")


add_set(rates, set_rate, about="Create or replace a rate.", create="Create a rate.")
