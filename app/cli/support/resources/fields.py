"""Options of `set` commands, made from the fields of a record's PUT body."""

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import msgspec

from app.cli.support.keys import FINITE, F, seconds, together
from app.cli.support.resources.options import NONE, selector, selector_option
from app.descriptions import descriptions
from dataplane.base.field_errors import member_types


class NumberOrNone(click.ParamType[Any]):
    """A finite number, or `none` for null."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if _is_none(value) else FINITE.convert(value, param, ctx)


class Duration(click.ParamType[Any]):
    """A time such as 7d, in seconds, or `none` for null."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or _is_none(value):
            return value
        return seconds(param.opts[0] if param is not None else self.name, value)


def field_options(
    put: type[msgspec.Struct], field_names: Iterable[str], flags: Mapping[str, str], required: Set[str]
) -> Callable[[F], F]:
    """Add an option for each of these fields, with the field's description as its help: `--floor` for `floor_bytes`,
    `--admission/--no-admission` for a bool. `none` stands for null. `flags` are those that do not follow from the name
    of their field."""
    hints, about = get_type_hints(put, include_extras=True), descriptions(put)
    options = [
        _option(
            name,
            hints[name],
            flags.get(name, flag(name)),
            about.get(name) or _of_type(hints[name]),
            required=name in required,
        )
        for name in field_names
    ]
    return together(*options)


def given_fields(put: type[msgspec.Struct], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the request for the options that are given; options that are no fields are left out."""
    hints = get_type_hints(put, include_extras=True)
    values = {
        name: selector(value) if name == "selector" else list(value) or None if isinstance(value, tuple) else value
        for name, value in options.items()
        if name in hints
    }
    return {
        name: None if _is_none(value) and type(None) in member_types(hints[name]) else value
        for name, value in values.items()
        if value is not None
    }


def put_fields(put: type[msgspec.Struct], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an existing record that a PUT takes. A server of an older release lacks new fields."""
    return {name: record[name] for name in put.__struct_fields__ if name in record}


def required(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields. Raises UsageError if there are none."""
    if not fields:
        raise click.UsageError("expected at least one option to set")
    return fields


def flag(name: str) -> str:
    """Return the option of a field: `--pin-budget` for `pin_budget_bytes` and `max_pin_budget_bytes`."""
    return "--" + name.removeprefix("max_").removesuffix("_bytes").removesuffix("_s").replace("_", "-")


def _option(name: str, hint: Any, flag: str, about: str, *, required: bool) -> Callable[[F], F]:
    if name == "selector":
        return selector_option
    types = set(member_types(hint))
    lists = [kind for kind in types if get_origin(kind) is list]
    choices = [
        value
        for kind in types | {item for kind in lists for item in get_args(kind)}
        if get_origin(kind) is Literal
        for value in get_args(kind)
    ]
    about = about.replace("null", f"`{NONE}`")
    if bool in types:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=about)
    kind: Any = str
    metavar = None
    if choices:
        kind = click.Choice(choices)
    elif name.endswith("ttl_s"):
        kind, about = Duration(), f"{about} Such as 90s, 30m, 12h or 7d; `{NONE}` for no end."
    elif str not in types:
        metavar = "SECONDS" if name.endswith("_s") and "_per_" not in name else None
        kind = NumberOrNone() if type(None) in types else FINITE if float in types else int
    return click.option(flag, name, type=kind, metavar=metavar, multiple=bool(lists), required=required, help=about)


def _of_type(hint: Any) -> str:
    """Return the description that a type has in every struct; empty if it has none."""
    return next((note.description for note in getattr(hint, "__metadata__", ()) if note.description), "")


def _is_none(value: Any) -> bool:
    return isinstance(value, str) and value.lower() == NONE
