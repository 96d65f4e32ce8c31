"""`larder tenants …`."""

from collections.abc import Callable
from typing import Any

import click

from app.cli.support import show
from app.cli.support.client import call, json_option, print_json, url_option, wait_option
from app.cli.support.lists import listed, paged, title
from app.cli.support.resources import Resource, add_get
from app.cli.support.terminal import say

_TENANTS = Resource("/api/v1/tenants", "tenant", key="tenant")


@click.group()
def tenants() -> None:
    """Show and adopt tenants, with or without a quota. The empty salt is the tenant `_default`."""


add_get(tenants, _TENANTS, "Show one tenant as JSON.")


@tenants.command("list")
@click.option("--managed/--unmanaged", default=None, help="Only those with, or without, a quota.")
@paged
@url_option
@json_option
def list_tenants(managed: bool | None, sort: str | None, url: str | None, as_json: bool, **page: Any) -> None:
    """Show all tenants, largest first."""
    query = {"managed": None if managed is None else str(managed).lower()}
    answer = listed(url, _TENANTS.path, query, sort=sort or "-bytes", **page)
    if as_json:
        print_json(answer)
        return
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "tenant": lambda t: t["tenant"],
        "used ": lambda t: show.size(t["bytes"]),
        "limit ": lambda t: show.size(t["limit_bytes"]) + (" (over)" if t["over_limit"] else ""),
        "floor ": lambda t: show.floor(t["floor_bytes"], t["effective_floor_bytes"]),
        "blocks ": lambda t: str(t["blocks"]),
        "hits ": lambda t: show.percent(t["hit_ratio"]),
        "pins ": lambda t: str(t["pins"]),
        "refused ": lambda t: str(t["refused_blocks"]),
        "quota": lambda t: "yes" if t["managed"] else "no",
        "note": lambda t: t["note"],
    }
    show.listing(title("Tenants", answer), answer["items"], columns)


@tenants.command("adopt")
@click.argument("tenant")
@click.option("--floor", default="0", help="What no other tenant can take, such as 1GiB.")
@click.option("--note", default="", help="Free-form note.")
@url_option
@wait_option
def adopt_tenant(tenant: str, floor: str, note: str, url: str | None, wait: str | None) -> None:
    """Create a quota without a limit for a tenant that has none."""
    body = {"floor_bytes": floor, "note": note}
    answer = call(url, "POST", f"{_TENANTS.of(tenant)}/adopt", body, {"wait": wait})
    say(
        f"{answer['tenant']}: quota made, no cap, floor {show.size(answer['floor_bytes'])}; {show.applied(answer)}"
    )
