"""`larder quotas …`."""

from typing import Any

import click

from app.cli.support import show
from app.cli.support.client import (
    ANY_STATE,
    call,
    find,
    held_state,
    json_option,
    print_json,
    segment,
    url_option,
    wait_option,
)
from app.cli.support.keys import FINITE
from app.cli.support.lists import listed, owner_option, paged, title, unasked_option
from app.cli.support.selectors import reach, selector_option
from app.cli.support.selectors import selector as read_selector
from app.cli.support.terminal import say

_SHARE = (
    "limit_bytes",
    "floor_bytes",
    "weight",
    "pin_budget_bytes",
    "store_rate_bytes",
    "on_exceed",
    "mode",
    "note",
    "managed_by",
    "selector",
)
_NONE = "none"


@click.group()
def quotas() -> None:
    """Manage quotas: the shares of tenants in the pool. The empty salt is the tenant `_default`."""


@quotas.command("list")
@owner_option
@paged
@url_option
@json_option
def list_quotas(url: str | None, managed_by: str | None, as_json: bool, **page: Any) -> None:
    """Show all quotas."""
    answer = listed(url, "/api/v1/quotas", {"managed_by": managed_by}, **page)
    if as_json:
        print_json(answer)
        return
    rows = [
        [
            q["tenant"],
            show.size(q["used_bytes"]),
            show.size(q["limit_bytes"]) + (" (over)" if q["over_limit"] else ""),
            show.floor(q["floor_bytes"], q["effective_floor_bytes"]),
            f"{q['weight']:g}",
            show.size(q["pin_budget_bytes"]),
            show.rate(q["store_rate_bytes"]),
            q["on_exceed"],
            q["mode"],
            show.applied(q),
            reach(q["selector"]),
            q["managed_by"] or "-",
            q["note"],
        ]
        for q in answer["items"]
    ]
    columns = [
        "tenant",
        "used ",
        "limit ",
        "floor ",
        "weight ",
        "pins ",
        "rate ",
        "exceed",
        "mode",
        "state",
        "nodes",
        "owner",
        "note",
    ]
    show.table(title("Quotas", answer), columns, rows)


@quotas.command("get")
@click.argument("tenant")
@url_option
def get_quota(url: str | None, tenant: str) -> None:
    """Show one tenant's quota as JSON."""
    print_json(call(url, "GET", f"/api/v1/quotas/{segment(tenant, 'tenant')}"))


@quotas.command("set")
@click.argument("tenant")
@click.argument("limit_", metavar="[LIMIT]", required=False)
@click.option("--limit", help="Hard cap, such as 4GiB; `none` for no cap. The same as LIMIT.")
@click.option("--floor", help="What no other tenant can take, such as 1GiB; at most the limit.")
@click.option("--weight", type=FINITE, help="Share of what is borrowed: 0.01 to 1000.")
@click.option("--pin-budget", help="What guaranteed pins may hold; `none` for the pool's budget alone.")
@click.option("--store-rate", help="Bytes a second that may be stored, such as 100MiB; `none` for no bound.")
@click.option("--on-exceed", type=click.Choice(["evict_self", "reject"]), help="At the limit.")
@click.option("--mode", type=click.Choice(["enforce", "observe"]), help="`observe` only counts.")
@selector_option
@click.option("--note", help="Free-form note.")
@url_option
@wait_option
@json_option
def set_quota(
    tenant: str,
    limit_: str | None,
    limit: str | None,
    floor: str | None,
    weight: float | None,
    pin_budget: str | None,
    store_rate: str | None,
    on_exceed: str | None,
    mode: str | None,
    selector: tuple[str, ...],
    note: str | None,
    url: str | None,
    wait: str | None,
    as_json: bool,
) -> None:
    """Set a tenant's quota. Omitted options keep the values of the record; a new record gets the defaults."""
    if limit is not None and limit_ is not None:
        raise click.UsageError("expected the limit once, as LIMIT or as --limit")
    asked: dict[str, Any] = {
        "limit_bytes": _size(limit if limit_ is None else limit_),
        "floor_bytes": floor,
        "weight": weight,
        "pin_budget_bytes": _size(pin_budget),
        "store_rate_bytes": _size(store_rate),
        "on_exceed": on_exceed,
        "mode": mode,
        "selector": read_selector(selector),
        "note": note,
    }
    changed = {name: None if value == _NONE else value for name, value in asked.items() if value is not None}
    if not changed:
        raise click.UsageError("expected at least one option that says what to set")
    path = f"/api/v1/quotas/{segment(tenant, 'tenant')}"
    held = find(url, path)
    kept = {"limit_bytes": None} if held is None else {name: held[name] for name in _SHARE}
    answer = call(url, "PUT", path, {**kept, **changed}, {"wait": wait}, held_state(held))
    if as_json:
        print_json(answer)
        return
    left = [_kept(name, held[name]) for name in _SHARE if held and name not in changed and held[name]]
    said = f" (kept: {', '.join(left)})" if left else ""
    say(
        f"{answer['tenant']}: limit {show.size(answer['limit_bytes'])},"
        f" floor {show.floor(answer['floor_bytes'], answer['effective_floor_bytes'])},"
        f" weight {answer['weight']:g}, {answer['on_exceed']}, {answer['mode']}; {show.applied(answer)}{said}"
    )


@quotas.command("delete")
@click.argument("tenant")
@unasked_option
@url_option
@wait_option
def delete_quota(url: str | None, tenant: str, wait: str | None) -> None:
    """Delete a tenant's quota."""
    call(url, "DELETE", f"/api/v1/quotas/{segment(tenant, 'tenant')}", None, {"wait": wait}, ANY_STATE)
    say(f"{tenant}: quota deleted")


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


def _size(text: str | None) -> str | None:
    """Return the text, with any spelling of `none` in lower case."""
    return _NONE if text is not None and text.lower() == _NONE else text
