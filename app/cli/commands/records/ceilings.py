"""`larder ceilings …`: manage the bounds on what callers limited to tenants may set."""

from collections.abc import Callable
from typing import Any

import click

from app.cli.support.api.client import call, state_headers, url_option
from app.cli.support.api.names import TENANTS
from app.cli.support.keys import FINITE, seconds
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say
from app.cli.support.resources.fields import put_fields, required
from app.cli.support.resources.options import Noun, Output, output_option
from app.cli.support.resources.verbs import Resource, add_delete, add_describe, add_edit, add_get, add_list, add_set
from app.schemas.records.ceilings import CeilingPut

_NONE = "none"
_MAXIMA = (
    *("max_limit_bytes", "max_floor_bytes", "max_weight", "max_pin_budget_bytes", "max_store_rate_bytes"),
    "max_ttl_s",
)


def _cell(ceiling: dict[str, Any], name: str, say: Callable[[Any], str]) -> str:
    if ceiling[name] is not None:
        return say(ceiling[name])
    return "no bound" if name in ceiling["no_bound"] else "as it is"


_COLUMNS = (
    Column("tenant", lambda c: c["tenant"]),
    Column("limit", lambda c: _cell(c, "max_limit_bytes", show.size), right=True),
    Column("floor", lambda c: _cell(c, "max_floor_bytes", show.size), right=True),
    Column("weight", lambda c: _cell(c, "max_weight", "{:g}".format), drop=2, right=True),
    Column("pins", lambda c: _cell(c, "max_pin_budget_bytes", show.size), right=True),
    Column("rate", lambda c: _cell(c, "max_store_rate_bytes", show.rate), drop=4, right=True),
    Column("ttl", lambda c: _cell(c, "max_ttl_s", show.span), drop=3, right=True),
    Column(
        "strengths",
        lambda c: "soft, guaranteed" if c["strengths"] is None else ", ".join(c["strengths"]) or "none",
        drop=5,
    ),
    Column("note", lambda c: c["note"], drop=1, text=True),
)
_CEILINGS = Resource("/api/v1/ceilings", "ceiling", _COLUMNS, key="tenant", editable=CeilingPut.__struct_fields__)


@click.group(cls=Noun)
def ceilings() -> None:
    """Manage ceilings: bounds on changes to quotas and pins by callers that are limited to a tenant."""


add_list(
    ceilings,
    _CEILINGS,
    "List all ceilings. `as it is` means that the tenant's operators may lower the value but not raise it.",
)
add_get(ceilings, _CEILINGS, "Show one tenant's ceiling.")


@click.argument("tenant", shell_complete=TENANTS)
@click.option("--limit", "max_limit_bytes", help="Largest limit of the quota, such as 4GiB; `none`: no bound.")
@click.option("--floor", "max_floor_bytes", help="Largest floor; `none`: no bound.")
@click.option("--weight", "max_weight", help="Largest weight; `none`: no bound.")
@click.option("--pin-budget", "max_pin_budget_bytes", help="Largest pin budget; `none`: no bound.")
@click.option("--store-rate", "max_store_rate_bytes", help="Largest store rate in bytes per second; `none`: no bound.")
@click.option(
    "--ttl", "max_ttl_s", metavar="TIME", help="Longest TTL of a pin, such as 7d; `none`, the default: no bound."
)
@click.option(
    "--strength", "strengths", multiple=True, type=click.Choice(["soft", "guaranteed", "permanent"]),
    help="Strength that pins may have; may be repeated.",
)  # fmt: skip
@click.option("--note", help="Free-form note; at most 1,024 characters.")
@url_option
@output_option
def set_ceiling(tenant: str, url: str | None, output: Output, **options: Any) -> None:
    given = {**options, "strengths": list(options["strengths"]) or None}
    changed = required({name: _value(name, value) for name, value in given.items() if value is not None})
    path = _CEILINGS.of(tenant)
    current = _CEILINGS.current(url, tenant)
    unchanged = put_fields(CeilingPut, current or {})
    opened = {name for name in _MAXIMA if name in changed and changed[name] is None}
    still = {name for name in unchanged.get("no_bound", ()) if name not in changed}
    changed["no_bound"] = sorted(opened | still)
    answer = call(url, "PUT", path, {**unchanged, **changed}, None, state_headers(current))
    if not output.data(answer, tenant):
        say(f"{answer['tenant']}: ceiling set{_described(answer)}")


add_set(
    ceilings,
    set_ceiling,
    about="Set a tenant's ceiling. Omitted options keep the values of the record. For a value that was never set, the "
    "tenant's operators may only lower the value in the quota.",
    create="Create a ceiling for a tenant that has none.",
)
add_edit(ceilings, _CEILINGS)
add_delete(
    ceilings,
    _CEILINGS,
    "Delete a tenant's ceiling. Callers that are limited to the tenant may then not change its quota.",
)
add_describe(ceilings, _CEILINGS)


def _described(ceiling: dict[str, Any]) -> str:
    """Describe the maxima of a ceiling that are null."""
    names = {
        name: name.removeprefix("max_").removesuffix("_bytes").removesuffix("_s").replace("_", " ")
        for name in _MAXIMA
        if ceiling[name] is None
    }
    no_bound = [word for name, word in names.items() if name in ceiling["no_bound"]]
    as_it_is = [word for name, word in names.items() if name not in ceiling["no_bound"]]
    words = [f"no bound for {', '.join(no_bound)}"] if no_bound else []
    words += [f"{', '.join(as_it_is)} may not be raised"] if as_it_is else []
    return f"; {'; '.join(words)}" if words else ""


def _value(name: str, text: Any) -> Any:
    if isinstance(text, str) and text.lower() == _NONE and name != "note":
        return None
    if name == "max_ttl_s":
        return seconds("--ttl", text)
    if name == "max_weight":
        try:
            return FINITE.convert(text, None, None)
        except click.BadParameter:
            raise click.UsageError(f"--weight: expected a number such as 2, or none, got {text!r}") from None
    return text
