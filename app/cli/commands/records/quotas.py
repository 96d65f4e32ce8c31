"""`larder quotas …`."""

from typing import Any

import click

from app.cli.support import show
from app.cli.support.client import call, held_state, url_option, wait_option
from app.cli.support.fields import field_options, given_fields, kept_fields, required
from app.cli.support.lists import listed, owner_option, paged
from app.cli.support.nouns import Noun
from app.cli.support.output import Output, output_option
from app.cli.support.resources import Resource, add_delete, add_describe, add_edit, add_get, add_set
from app.cli.support.selectors import reach
from app.cli.support.table import Column
from app.cli.support.terminal import say
from app.cli.support.watch import watch_option
from app.schemas.records.quotas import QuotaPut

_OPTIONS = [name for name in QuotaPut.__struct_fields__ if name != "managed_by"]


_COLUMNS = (
    Column("tenant", lambda q: q["tenant"]),
    Column("used", lambda q: show.size(q["used_bytes"]), right=True),
    Column(
        "limit", lambda q: show.size(q["limit_bytes"]) + (" (over)" if q["over_limit"] else ""), right=True
    ),
    Column("floor", lambda q: show.floor(q["floor_bytes"], q["effective_floor_bytes"]), right=True),
    Column("weight", lambda q: f"{q['weight']:g}", drop=3, right=True),
    Column("pins", lambda q: show.size(q["pin_budget_bytes"]), drop=4, right=True),
    Column("rate", lambda q: show.rate(q["store_rate_bytes"]), drop=5, right=True),
    Column("exceed", lambda q: q["on_exceed"], drop=6),
    Column("mode", lambda q: q["mode"], drop=2),
    Column("refused", show.refused, drop=1, right=True),
    Column("state", show.applied),
    Column("nodes", lambda q: reach(q["selector"]), drop=7),
    Column("owner", lambda q: q["managed_by"] or "-", drop=9),
    Column("note", lambda q: q["note"], drop=8, text=True),
)
_QUOTAS = Resource("/api/v1/quotas", "quota", _COLUMNS, key="tenant", editable=_OPTIONS)


@click.group(cls=Noun)
def quotas() -> None:
    """Manage quotas: the shares of tenants in the pool. The empty salt is the tenant `_default`."""


@quotas.command("list")
@owner_option
@paged
@url_option
@output_option
@watch_option
def list_quotas(url: str | None, managed_by: str | None, output: Output, **page: Any) -> None:
    """List all quotas."""
    answer = listed(url, _QUOTAS.path, {"managed_by": managed_by}, **page)
    output.listing("Quotas", answer, _COLUMNS, "tenant")


add_get(quotas, _QUOTAS, "Show one tenant's quota.")


@click.argument("tenant")
@click.argument("limit_", metavar="[LIMIT]", required=False)
@field_options(QuotaPut, _OPTIONS)
@url_option
@wait_option
@output_option
def set_quota(
    tenant: str,
    limit_: str | None,
    url: str | None,
    wait: str | None,
    output: Output,
    **options: Any,
) -> None:
    if limit_ is not None:
        if options["limit_bytes"] is not None:
            raise click.UsageError("expected the limit once, as LIMIT or as --limit")
        options["limit_bytes"] = limit_
    changed = required(given_fields(QuotaPut, options))
    path = _QUOTAS.of(tenant)
    held = _QUOTAS.held(url, tenant)
    kept = {"limit_bytes": None} if held is None else kept_fields(QuotaPut, held)
    answer = call(url, "PUT", path, {**kept, **changed}, {"wait": wait}, held_state(held))
    if output.data(answer, tenant):
        return
    left = [_kept(name, value) for name, value in kept.items() if name not in changed and value]
    said = f" (kept: {', '.join(left)})" if left else ""
    say(
        f"{answer['tenant']}: limit {show.size(answer['limit_bytes'])},"
        f" floor {show.floor(answer['floor_bytes'], answer['effective_floor_bytes'])},"
        f" weight {answer['weight']:g}, {answer['on_exceed']}, {answer['mode']}; {show.applied(answer)}{said}"
    )


add_set(
    quotas,
    set_quota,
    about="Set a tenant's quota. Omitted options keep the values of the record; a new record gets the defaults.",
    create="Create a quota for a tenant that has none.",
)
add_edit(quotas, _QUOTAS, waits=True)
add_delete(quotas, _QUOTAS, "Delete a tenant's quota.", waits=True)
add_describe(quotas, _QUOTAS)


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
