"""`larder ceilings …`."""

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
)
from app.cli.support.fields import kept_fields, required
from app.cli.support.keys import FINITE, seconds
from app.cli.support.lists import listed, title
from app.cli.support.resources import Resource, add_delete, add_get
from app.cli.support.terminal import say
from app.schemas.records.ceilings import CeilingPut

_NONE = "none"
_CEILINGS = Resource("/api/v1/ceilings", "ceiling", key="tenant")
_MAXIMA = (
    *("max_limit_bytes", "max_floor_bytes", "max_weight", "max_pin_budget_bytes", "max_store_rate_bytes"),
    "max_ttl_s",
)


@click.group()
def ceilings() -> None:
    """Manage ceilings: bounds on changes to quotas and pins by callers that are limited to a tenant."""


add_get(ceilings, _CEILINGS, "Show one tenant's ceiling as JSON.")
add_delete(
    ceilings,
    _CEILINGS,
    "Delete a tenant's ceiling. Callers that are limited to the tenant may then not change its quota.",
)


@ceilings.command("list")
@url_option
@json_option
def list_ceilings(url: str | None, as_json: bool) -> None:
    """Show all ceilings. `as it is` means that the tenant's operators may lower the value but not raise it."""
    answer = listed(url, _CEILINGS.path)
    if as_json:
        print_json(answer)
        return
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "tenant": lambda c: c["tenant"],
        "limit ": lambda c: _cell(c, "max_limit_bytes", show.size),
        "floor ": lambda c: _cell(c, "max_floor_bytes", show.size),
        "weight ": lambda c: _cell(c, "max_weight", "{:g}".format),
        "pins ": lambda c: _cell(c, "max_pin_budget_bytes", show.size),
        "rate ": lambda c: _cell(c, "max_store_rate_bytes", show.rate),
        "ttl ": lambda c: _cell(c, "max_ttl_s", show.span),
        "strengths": lambda c: (
            "soft, guaranteed" if c["strengths"] is None else ", ".join(c["strengths"]) or "none"
        ),
        "note": lambda c: c["note"],
    }
    show.listing(title("Ceilings", answer), answer["items"], columns)


@ceilings.command("set")
@click.argument("tenant")
@click.option("--limit", "max_limit_bytes", help="Of the quota's limit, such as 4GiB; `none` for no bound.")
@click.option("--floor", "max_floor_bytes", help="Of its floor; `none` for no bound.")
@click.option("--weight", "max_weight", help="Of its weight; `none` for no bound.")
@click.option("--pin-budget", "max_pin_budget_bytes", help="Of its pin budget; `none` for no bound.")
@click.option(
    "--store-rate", "max_store_rate_bytes", help="Of its store rate, bytes a second; `none` for no bound."
)
@click.option(
    "--ttl",
    "max_ttl_s",
    metavar="TIME",
    help="Pins must end within this time, such as 7d; `none`, or never said: no bound.",
)
@click.option(
    "--strength", "strengths", multiple=True, type=click.Choice(["soft", "guaranteed", "permanent"]),
    help="Of pins that may be made; may be repeated.",
)  # fmt: skip
@click.option("--note", help="Free-form note.")
@url_option
@json_option
def set_ceiling(tenant: str, url: str | None, as_json: bool, **options: Any) -> None:
    """Set a tenant's ceiling. Omitted options keep the values of the record. For a value that was never set, the
    tenant's operators may only lower the value in the quota."""
    given = {**options, "strengths": list(options["strengths"]) or None}
    changed = required({name: _value(name, value) for name, value in given.items() if value is not None})
    path = _CEILINGS.of(tenant)
    held = find(url, path)
    kept = kept_fields(CeilingPut, held or {})
    opened = {name for name in _MAXIMA if name in changed and changed[name] is None}
    still = {name for name in kept.get("no_bound", ()) if name not in changed}
    changed["no_bound"] = sorted(opened | still)
    answer = call(url, "PUT", path, {**kept, **changed}, None, held_state(held))
    if as_json:
        print_json(answer)
        return
    say(f"{answer['tenant']}: ceiling set{_said(answer)}")


def _cell(ceiling: dict[str, Any], name: str, say: Callable[[Any], str]) -> str:
    if ceiling[name] is not None:
        return say(ceiling[name])
    return "no bound" if name in ceiling["no_bound"] else "as it is"


def _said(ceiling: dict[str, Any]) -> str:
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
