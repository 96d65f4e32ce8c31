"""`larder tenants …`."""

from typing import Any

import click

from app.cli.support import show
from app.cli.support.client import call, json_option, print_json, segment, url_option, wait_option
from app.cli.support.lists import listed, paged, title
from app.cli.support.terminal import say


@click.group()
def tenants() -> None:
    """Show and adopt tenants, with or without a quota. The empty salt is the tenant `_default`."""


@tenants.command("list")
@click.option("--managed/--unmanaged", default=None, help="Only those with, or without, a quota.")
@paged
@url_option
@json_option
def list_tenants(managed: bool | None, sort: str | None, url: str | None, as_json: bool, **page: Any) -> None:
    """Show all tenants, largest first."""
    query = {"managed": None if managed is None else str(managed).lower()}
    answer = listed(url, "/api/v1/tenants", query, sort=sort or "-bytes", **page)
    if as_json:
        print_json(answer)
        return
    rows = [
        [
            t["tenant"],
            show.size(t["bytes"]),
            show.size(t["limit_bytes"]) + (" (over)" if t["over_limit"] else ""),
            show.floor(t["floor_bytes"], t["effective_floor_bytes"]),
            str(t["blocks"]),
            show.percent(t["hit_ratio"]),
            str(t["pins"]),
            str(t["refused_blocks"]),
            "yes" if t["managed"] else "no",
            t["note"],
        ]
        for t in answer["items"]
    ]
    columns = [
        "tenant",
        "used ",
        "limit ",
        "floor ",
        "blocks ",
        "hits ",
        "pins ",
        "refused ",
        "quota",
        "note",
    ]
    show.table(title("Tenants", answer), columns, rows)


@tenants.command("get")
@click.argument("tenant")
@url_option
def get_tenant(tenant: str, url: str | None) -> None:
    """Show one tenant as JSON."""
    print_json(call(url, "GET", f"/api/v1/tenants/{segment(tenant, 'tenant')}"))


@tenants.command("adopt")
@click.argument("tenant")
@click.option("--floor", default="0", help="What no other tenant can take, such as 1GiB.")
@click.option("--note", default="", help="Free-form note.")
@url_option
@wait_option
def adopt_tenant(tenant: str, floor: str, note: str, url: str | None, wait: str | None) -> None:
    """Create a quota without a limit for a tenant that has none."""
    body = {"floor_bytes": floor, "note": note}
    answer = call(url, "POST", f"/api/v1/tenants/{segment(tenant, 'tenant')}/adopt", body, {"wait": wait})
    say(
        f"{answer['tenant']}: quota made, no cap, floor {show.size(answer['floor_bytes'])}; {show.applied(answer)}"
    )
