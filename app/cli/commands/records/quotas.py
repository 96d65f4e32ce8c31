"""`larder quotas …`."""

from collections.abc import Callable
from typing import Any

import click

from app.cli.support import show
from app.cli.support.client import (
    call,
    find,
    held_state,
    json_option,
    print_json,
    url_option,
    wait_option,
)
from app.cli.support.fields import field_options, given_fields, kept_fields, required
from app.cli.support.lists import listed, owner_option, paged, title
from app.cli.support.resources import Resource, add_delete, add_get
from app.cli.support.selectors import reach
from app.cli.support.terminal import say
from app.schemas.records.quotas import QuotaPut

_QUOTAS = Resource("/api/v1/quotas", "quota", key="tenant")
_OPTIONS = [name for name in QuotaPut.__struct_fields__ if name != "managed_by"]


@click.group()
def quotas() -> None:
    """Manage quotas: the shares of tenants in the pool. The empty salt is the tenant `_default`."""


add_get(quotas, _QUOTAS, "Show one tenant's quota as JSON.")
add_delete(quotas, _QUOTAS, "Delete a tenant's quota.", waits=True)


@quotas.command("list")
@owner_option
@paged
@url_option
@json_option
def list_quotas(url: str | None, managed_by: str | None, as_json: bool, **page: Any) -> None:
    """Show all quotas."""
    answer = listed(url, _QUOTAS.path, {"managed_by": managed_by}, **page)
    if as_json:
        print_json(answer)
        return
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "tenant": lambda q: q["tenant"],
        "used ": lambda q: show.size(q["used_bytes"]),
        "limit ": lambda q: show.size(q["limit_bytes"]) + (" (over)" if q["over_limit"] else ""),
        "floor ": lambda q: show.floor(q["floor_bytes"], q["effective_floor_bytes"]),
        "weight ": lambda q: f"{q['weight']:g}",
        "pins ": lambda q: show.size(q["pin_budget_bytes"]),
        "rate ": lambda q: show.rate(q["store_rate_bytes"]),
        "exceed": lambda q: q["on_exceed"],
        "mode": lambda q: q["mode"],
        "state": show.applied,
        "nodes": lambda q: reach(q["selector"]),
        "owner": lambda q: q["managed_by"] or "-",
        "note": lambda q: q["note"],
    }
    show.listing(title("Quotas", answer), answer["items"], columns)


@quotas.command("set")
@click.argument("tenant")
@click.argument("limit_", metavar="[LIMIT]", required=False)
@field_options(QuotaPut, _OPTIONS)
@url_option
@wait_option
@json_option
def set_quota(
    tenant: str,
    limit_: str | None,
    url: str | None,
    wait: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Set a tenant's quota. Omitted options keep the values of the record; a new record gets the defaults."""
    if limit_ is not None:
        if options["limit_bytes"] is not None:
            raise click.UsageError("expected the limit once, as LIMIT or as --limit")
        options["limit_bytes"] = limit_
    changed = required(given_fields(QuotaPut, options))
    path = _QUOTAS.of(tenant)
    held = find(url, path)
    kept = {"limit_bytes": None} if held is None else kept_fields(QuotaPut, held)
    answer = call(url, "PUT", path, {**kept, **changed}, {"wait": wait}, held_state(held))
    if as_json:
        print_json(answer)
        return
    left = [_kept(name, value) for name, value in kept.items() if name not in changed and value]
    said = f" (kept: {', '.join(left)})" if left else ""
    say(
        f"{answer['tenant']}: limit {show.size(answer['limit_bytes'])},"
        f" floor {show.floor(answer['floor_bytes'], answer['effective_floor_bytes'])},"
        f" weight {answer['weight']:g}, {answer['on_exceed']}, {answer['mode']}; {show.applied(answer)}{said}"
    )


def _kept(name: str, value: Any) -> str:
    """Describe a kept field for the output."""
    if name == "selector":
        return f"nodes {reach(value)}"
    if name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes').replace('_', ' ')} {show.size(value)}"
    return (
        f"{name.replace('_', ' ')} {value:g}"
        if isinstance(value, float)
        else f"{name.replace('_', ' ')} {value}"
    )
