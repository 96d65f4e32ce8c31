"""`larder usage` and `larder rates …`."""

import re
import time
from typing import Any

import click

from app.cli.support import show
from app.cli.support.client import (
    ANY_STATE,
    ApiError,
    call,
    find,
    json_option,
    print_json,
    stream,
    url_option,
)
from app.cli.support.keys import FINITE
from app.cli.support.lists import listed, title
from app.cli.support.resources import Resource, add_delete, add_get
from app.cli.support.terminal import exact, say

_RATES = Resource("/api/v1/rates", "rate")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_COLUMNS = ("GiB hours ", "tokens ", "served ", "ratio ", "spared ", "stored ", "evicted ", "refused ")


@click.command()
@click.option(
    "--by",
    "group_by",
    type=click.Choice(["tenant", "model", "node"]),
    default="tenant",
    help="What to group by.",
)
@click.option(
    "--step", type=click.Choice(["1h", "1d"]), default="1d", show_default=True, help="Length of a step."
)
@click.option(
    "--from", "start", metavar="TIME", help="Unix seconds, 2026-11-01 (UTC) or 2026-11-01T00:00:00Z."
)
@click.option("--to", "end", metavar="TIME", help="The same; now when left out.")
@click.option("--tenant", help="Only of this tenant.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@url_option
@json_option
def usage(
    group_by: str,
    step: str,
    start: str | None,
    end: str | None,
    tenant: str | None,
    as_csv: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Show usage: bytes held over time, tokens requested and served, and the prefill time saved."""
    if as_csv and as_json:
        raise click.UsageError("expected at most one of --csv and --json")
    given = {"group_by": group_by, "step": step, "from": _moment(start), "to": _moment(end), "tenant": tenant}
    query = {name: value for name, value in given.items() if value is not None}
    if as_csv:
        exact(stream(url, "/api/v1/usage", {**query, "format": "csv"}))
        return
    report = call(url, "GET", "/api/v1/usage", None, query)
    if as_json:
        print_json(report)
        return
    form = "%Y-%m-%d" if step == "1d" else "%Y-%m-%d %H:%M"
    rows = [
        [time.strftime(form, time.gmtime(item["start"])), item["group"], *_row(item)]
        for item in report["items"]
    ]
    rows.append(["total", "", *_row(report["totals"])])
    show.table("Usage", ["from (UTC)", group_by, *_COLUMNS], rows)
    if not report["items"]:
        say(f"nothing was used{'' if tenant is None else f' by {tenant}'} in this time")
    unrated = report["totals"]["unrated_tokens"]
    if unrated:
        say(f"{unrated:,} served tokens have no rate: set one with 'larder rates set'")


def _moment(text: str | None) -> str | None:
    """Return a time for the query. A date without a time means its start in UTC."""
    return f"{text}T00:00:00Z" if text is not None and _DAY.fullmatch(text) else text


def _row(used: dict[str, Any]) -> list[str]:
    requested, served = used["requested_tokens"], used["served_tokens"]
    return [
        f"{used['byte_hours'] / (1 << 30):,.3f}",
        f"{requested:,}",
        f"{served:,}",
        show.percent(min(1.0, served / requested) if requested else None),
        f"{used['saved_prefill_s']:,.1f} s",
        show.size(used["stored_bytes"]),
        show.size(used["evicted_bytes"]),
        f"{used['refused_blocks']:,}",
    ]


@click.group()
def rates() -> None:
    """Manage prefill rates of engines, from which the saved prefill time is estimated."""


add_get(rates, _RATES, "Show one rate as JSON.")
add_delete(rates, _RATES, "Delete a rate.", verb="unset")


@rates.command("list")
@url_option
@json_option
def list_rates(url: str | None, as_json: bool) -> None:
    """Show all rates."""
    answer = listed(url, _RATES.path)
    if as_json:
        print_json(answer)
        return
    rows = [
        [r["name"], r["model"], r["space"] or "all", f"{r['prefill_tokens_per_s']:,g}", r["note"]]
        for r in answer["items"]
    ]
    show.table(title("Rates", answer), ["name", "model", "space", "tokens/s ", "note"], rows)


@rates.command("set")
@click.argument("name")
@click.option("--model", required=True, help="The model's name, as engines attach with it.")
@click.option("--tokens-per-s", type=FINITE, required=True, help="Prefill tokens a second of a whole engine.")
@click.option("--space", default="", help="One space of the model, 32 hex digits; default: all.")
@click.option("--note", default="", help="Free-form note.")
@url_option
@json_option
def set_rate(
    name: str, model: str, tokens_per_s: float, space: str, note: str, url: str | None, as_json: bool
) -> None:
    """Create or replace a rate."""
    body = {"model": model, "prefill_tokens_per_s": tokens_per_s, "space": space, "note": note}
    path = _RATES.of(name)
    try:
        answer = call(url, "PUT", path, body, headers=None if find(url, path) is None else ANY_STATE)
    except ApiError as refused:
        raise click.ClickException(
            refused.message.replace("prefill_tokens_per_s", "--tokens-per-s")
        ) from None
    if as_json:
        print_json(answer)
    else:
        say(f"rate {name}: {answer['prefill_tokens_per_s']:,g} tokens/s of {answer['model']}")
