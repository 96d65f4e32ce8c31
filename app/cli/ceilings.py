"""`larder ceilings …`."""

from typing import Any

import click

from app.cli import show
from app.cli.client import (
    ANY_STATE,
    call,
    find,
    held_state,
    json_option,
    print_json,
    segment,
    url_option,
)
from app.cli.keys import seconds

_NONE = "none"
_FIELDS = (
    *("max_limit_bytes", "max_floor_bytes", "max_weight", "max_pin_budget_bytes", "max_store_rate_bytes"),
    *("max_ttl_s", "strengths", "note"),
)


@click.group()
def ceilings() -> None:
    """How far callers that are limited to a tenant may go with its quota and pins."""


@ceilings.command("list")
@url_option
@json_option
def list_ceilings(url: str | None, as_json: bool) -> None:
    """Show all ceilings."""
    answer = call(url, "GET", "/api/v1/ceilings")
    if as_json:
        print_json(answer)
        return
    rows = [
        [
            c["tenant"],
            show.size(c["max_limit_bytes"]),
            show.size(c["max_floor_bytes"]),
            "-" if c["max_weight"] is None else f"{c['max_weight']:g}",
            show.size(c["max_pin_budget_bytes"]),
            show.rate(c["max_store_rate_bytes"]),
            "-" if c["max_ttl_s"] is None else f"{c['max_ttl_s']:g} s",
            "soft, guaranteed" if c["strengths"] is None else ", ".join(c["strengths"]) or "none",
            c["note"],
        ]
        for c in answer["items"]
    ]
    columns = ["tenant", "limit ", "floor ", "weight ", "pins ", "rate ", "ttl ", "strengths", "note"]
    show.table(f"Ceilings ({answer['total']})", columns, rows)


@ceilings.command("get")
@click.argument("tenant")
@url_option
def get_ceiling(url: str | None, tenant: str) -> None:
    """Show one tenant's ceiling as JSON."""
    print_json(call(url, "GET", f"/api/v1/ceilings/{segment(tenant)}"))


@ceilings.command("set")
@click.argument("tenant")
@click.option("--limit", help="Of the quota's limit, such as 4GiB; `none` for no ceiling.")
@click.option("--floor", help="Of its floor; `none` for no ceiling.")
@click.option("--weight", help="Of its weight; `none` for no ceiling.")
@click.option("--pin-budget", help="Of its pin budget; `none` for no ceiling.")
@click.option("--store-rate", help="Of its store rate, bytes a second; `none` for no ceiling.")
@click.option(
    "--ttl", metavar="TIME", help="Pins must end within this time, such as 7d; `none` for no ceiling."
)
@click.option(
    "--strength", "strengths", multiple=True, type=click.Choice(["soft", "guaranteed", "permanent"]),
    help="Of pins that may be made; may be repeated.",
)  # fmt: skip
@click.option("--note", help="For people.")
@url_option
@json_option
def set_ceiling(
    tenant: str,
    limit: str | None,
    floor: str | None,
    weight: str | None,
    pin_budget: str | None,
    store_rate: str | None,
    ttl: str | None,
    strengths: tuple[str, ...],
    note: str | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Set a tenant's ceiling. Options that are left out keep what the record has."""
    given = {
        "max_limit_bytes": limit,
        "max_floor_bytes": floor,
        "max_weight": weight,
        "max_pin_budget_bytes": pin_budget,
        "max_store_rate_bytes": store_rate,
        "max_ttl_s": ttl,
        "strengths": list(strengths) or None,
        "note": note,
    }
    changed = {name: _value(name, value) for name, value in given.items() if value is not None}
    if not changed:
        raise click.UsageError("expected at least one option that says what to set")
    path = f"/api/v1/ceilings/{segment(tenant)}"
    held = find(url, path)
    kept = {} if held is None else {name: held[name] for name in _FIELDS}
    answer = call(url, "PUT", path, {**kept, **changed}, None, held_state(held))
    if as_json:
        print_json(answer)
        return
    click.echo(f"{answer['tenant']}: ceiling set")


@ceilings.command("delete")
@click.argument("tenant")
@url_option
def delete_ceiling(url: str | None, tenant: str) -> None:
    """Forget a tenant's ceiling: callers that are limited to the tenant may then not change its quota."""
    call(url, "DELETE", f"/api/v1/ceilings/{segment(tenant)}", None, None, ANY_STATE)
    click.echo(f"{tenant}: ceiling deleted")


def _value(name: str, text: Any) -> Any:
    if isinstance(text, str) and text.lower() == _NONE and name != "note":
        return None
    if name == "max_ttl_s":
        return seconds("--ttl", text)
    if name == "max_weight":
        try:
            return float(text)
        except ValueError:
            raise click.UsageError(f"--weight: expected a number such as 2, or none, got {text!r}") from None
    return text
