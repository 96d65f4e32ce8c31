"""`larder quotas …`: manage the shares of tenants in the pool."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from app.cli.support.api.client import ApiError, call, every, state_headers, url_option, wait_option
from app.cli.support.api.names import TENANTS
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say
from app.cli.support.resources.fields import field_options, given_fields, put_fields, required
from app.cli.support.resources.options import (
    NONE,
    Noun,
    Output,
    output_option,
    owner_option,
    paged,
    reach,
    watch_option,
)
from app.cli.support.resources.verbs import Resource, add_delete, add_describe, add_edit, add_get, add_set, show_dry_run
from app.schemas.records.quotas import QuotaPut

MAX_TIERS = 1000
_OPTIONS = [name for name in QuotaPut.__struct_fields__ if name not in ("managed_by", "tiers")]
_EDITABLE = [name for name in QuotaPut.__struct_fields__ if name != "managed_by"]


_COLUMNS = (
    Column("tenant", lambda q: q["tenant"]),
    Column("used", lambda q: show.size(q["used_bytes"]), right=True),
    Column("limit", lambda q: show.size(q["limit_bytes"]) + (" (over)" if q["over_limit"] else ""), right=True),
    Column("floor", lambda q: show.floor(q["floor_bytes"], q["effective_floor_bytes"]), right=True),
    Column("weight", lambda q: f"{q['weight']:g}", drop=3, right=True),
    Column("pins", lambda q: show.size(q["pin_budget_bytes"]), drop=4, right=True),
    Column("rate", lambda q: show.rate(q["store_rate_bytes"]), drop=5, right=True),
    Column("exceed", lambda q: q["on_exceed"], drop=6),
    Column("tiers", lambda q: show.tier_shares(q.get("tiers") or {}), drop=7),
    Column("mode", lambda q: q["mode"], drop=2),
    Column("refused", show.refused, drop=1, right=True),
    Column("state", show.applied),
    Column("nodes", lambda q: reach(q["selector"]), drop=8),
    Column("owner", lambda q: q["managed_by"] or "-", drop=10),
    Column("note", lambda q: q["note"], drop=9, text=True),
)
_QUOTAS = Resource("/api/v1/quotas", "quota", _COLUMNS, key="tenant", editable=_EDITABLE)


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
    answer = every(url, _QUOTAS.path, {"managed_by": managed_by}, **page)
    output.listing("Quotas", answer, _COLUMNS, "tenant")


add_get(quotas, _QUOTAS, "Show one tenant's quota.")


@click.argument("tenant", shell_complete=TENANTS)
@click.argument("limit_", metavar="[LIMIT]", required=False)
@field_options(QuotaPut, _OPTIONS)
@click.option(
    "--tier-limit",
    "tier_limits",
    metavar="TIER=SIZE",
    multiple=True,
    help="Most bytes that the tenant may hold in this tier of each node; `none` for no limit. May be repeated.",
)
@click.option(
    "--tier-floor",
    "tier_floors",
    metavar="TIER=SIZE",
    multiple=True,
    help="Bytes of this tier that no other tenant's blocks may take; `0` for none. May be repeated.",
)
@click.option(
    "--dry-run", is_flag=True, help="Only show how every node would respond, and what it would evict at once."
)
@url_option
@wait_option
@output_option
def set_quota(
    tenant: str,
    limit_: str | None,
    url: str | None,
    wait: str | None,
    output: Output,
    tier_limits: Sequence[str],
    tier_floors: Sequence[str],
    dry_run: bool,
    **options: Any,
) -> None:
    if limit_ is not None:
        if options["limit_bytes"] is not None:
            raise click.UsageError("expected the limit once, as LIMIT or as --limit")
        options["limit_bytes"] = limit_
    shares = _shares(tier_limits, tier_floors)
    changed = given_fields(QuotaPut, options)
    required({**changed, **shares})
    path = _QUOTAS.of(tenant)
    current = _QUOTAS.current(url, tenant)
    if shares:
        changed["tiers"] = _merged({} if current is None else current.get("tiers") or {}, shares)
    unchanged = {"limit_bytes": None} if current is None else put_fields(QuotaPut, current)
    body = {**unchanged, **changed}
    if dry_run:
        tried = call(url, "POST", "/api/v1/actions/dry-run", {"quotas": {tenant: body}})
        show_dry_run(tried, "quota", body.get("selector"), output)
        return
    answer = call(url, "PUT", path, body, {"wait": wait}, state_headers(current))
    _warn_of_unknown_tiers(url, sorted(shares.keys() & changed.get("tiers", {}).keys()))
    if output.data(answer, tenant):
        return
    left = [_described(name, value) for name, value in unchanged.items() if name not in changed and value]
    tiers = f", {show.tier_shares(answer['tiers'])}" if "tiers" in changed else ""
    suffix = f" (kept: {', '.join(left)})" if left else ""
    say(
        f"{answer['tenant']}: limit {show.size(answer['limit_bytes'])},"
        f" floor {show.floor(answer['floor_bytes'], answer['effective_floor_bytes'])},"
        f" weight {answer['weight']:g}, {answer['on_exceed']}, {answer['mode']}{tiers}; {show.applied(answer)}{suffix}"
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


def _shares(limits: Sequence[str], floors: Sequence[str]) -> dict[str, dict[str, str | None]]:
    """Return the options as fields of shares, by the name of the tier. Raises UsageError."""
    found: dict[str, dict[str, str | None]] = {}
    for option, given, field in (("--tier-limit", limits, "limit_bytes"), ("--tier-floor", floors, "floor_bytes")):
        for text in given:
            name, equals, size = text.rpartition("=")
            if not equals or not name or not size:
                raise click.UsageError(f"{option}: expected TIER=SIZE, such as disk=100GiB, got {text!r}")
            if field in found.setdefault(name, {}):
                raise click.UsageError(f"{option}: expected the tier {name!r} once")
            found[name][field] = None if size.lower() == NONE else size
    return found


def _merged(
    current: Mapping[str, Mapping[str, Any]], given: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the shares with these changes; a share without a limit and a floor is left out."""
    merged = {name: {**current.get(name, {}), **given.get(name, {})} for name in (*current, *given)}
    stated = {
        name: {field: value for field, value in share.items() if value not in (None, 0, "0")}
        for name, share in merged.items()
    }
    return {name: share for name, share in stated.items() if share}


def _warn_of_unknown_tiers(url: str | None, named: Sequence[str]) -> None:
    """Print a warning for each name that no tier has, if the caller may list tiers."""
    if not named:
        return
    try:
        answer = call(url, "GET", "/api/v1/tiers", None, {"limit": str(MAX_TIERS)})
    except ApiError:
        return
    known = {tier["name"] for tier in (*answer["items"], *answer.get("from_settings", ()))}
    if len(known) >= MAX_TIERS:
        return
    for name in named:
        if name not in known:
            tiers = ", ".join(sorted(known)) or "none"
            say(f"Warning: no tier is called {name!r}; tiers: {tiers}", err=True)


def _described(name: str, value: Any) -> str:
    """Describe a kept field for the output."""
    if name == "selector":
        return f"nodes {reach(value)}"
    if name == "tiers":
        return show.tier_shares(value)
    if name.endswith("_bytes"):
        return f"{name.removesuffix('_bytes').replace('_', ' ')} {show.size(value)}"
    return f"{name.replace('_', ' ')} {value:g}" if isinstance(value, float) else f"{name.replace('_', ' ')} {value}"
