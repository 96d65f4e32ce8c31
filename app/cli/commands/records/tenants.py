"""`larder tenants …`: show tenants with cached blocks or a quota, and give one a quota without a limit."""

from typing import Any

import click

from app.cli.support.api.client import call, url_option, wait_option
from app.cli.support.api.names import TENANTS
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say
from app.cli.support.resources.options import Noun, paged
from app.cli.support.resources.verbs import Resource, add_describe, add_get, add_list

_COLUMNS = (
    Column("tenant", lambda t: t["tenant"]),
    Column("used", lambda t: show.size(t["bytes"]), right=True),
    Column("limit", lambda t: show.size(t["limit_bytes"]) + (" (over)" if t["over_limit"] else ""), right=True),
    Column("floor", lambda t: show.floor(t["floor_bytes"], t["effective_floor_bytes"]), drop=1, right=True),
    Column("blocks", lambda t: str(t["blocks"]), drop=3, right=True),
    Column("hits", lambda t: show.percent(t["hit_ratio"]), right=True),
    Column("pins", lambda t: str(t["pins"]), drop=4, right=True),
    Column("refused", show.refused, right=True),
    Column("quota", lambda t: "yes" if t["managed"] else "no", drop=2),
    Column("note", lambda t: t["note"], drop=5, text=True),
)
_TENANTS = Resource("/api/v1/tenants", "tenant", _COLUMNS, key="tenant")


def _query(options: dict[str, Any]) -> dict[str, Any]:
    managed = options["managed"]
    return {
        **options,
        "managed": None if managed is None else str(managed).lower(),
        "sort": options["sort"] or "-bytes",
    }


tenants = Noun("tenants", help="Manage tenants, with or without a quota. The empty salt is the tenant `_default`.")
add_list(
    tenants,
    _TENANTS,
    "List all tenants, largest first.",
    click.option("--managed/--unmanaged", default=None, help="Only tenants with, or without, a quota."),
    paged,
    pages=True,
    query=_query,
)
add_get(tenants, _TENANTS, "Show one tenant.")
add_describe(tenants, _TENANTS)


@tenants.command("adopt")
@click.argument("tenant", shell_complete=TENANTS)
@click.option("--floor", default="0", help="Bytes that no other tenant can take, such as 1GiB.")
@click.option("--note", default="", help="Free-form note; at most 1,024 characters.")
@url_option
@wait_option
def adopt_tenant(tenant: str, floor: str, note: str, url: str | None, wait: str | None) -> None:
    """Create a quota without a limit for a tenant that has none."""
    body = {"floor_bytes": floor, "note": note}
    answer = call(url, "POST", f"{_TENANTS.of(tenant)}/adopt", body, {"wait": wait})
    say(
        f"{answer['tenant']}: quota created, no limit, floor {show.size(answer['floor_bytes'])}; {show.applied(answer)}"
    )
