"""Options of `set` commands, made from the fields of a record's PUT body."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import click
import msgspec

from app.cli.support.keys import FINITE, F
from app.cli.support.resources.options import NONE, selector, selector_option
from dataplane.base.field_errors import member_types


def field_options(put: type[msgspec.Struct], names: Iterable[str]) -> Callable[[F], F]:
    """Add an option for each of these fields, with the field's description as its help: `--floor` for `floor_bytes`,
    `--admission/--no-admission` for a bool. `none` stands for null."""
    hints = get_type_hints(put, include_extras=True)
    options = [_option(name, hints[name]) for name in names]

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def given_fields(put: type[msgspec.Struct], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the request for the options that are given."""
    hints = get_type_hints(put, include_extras=True)
    values = {name: selector(value) if name == "selector" else value for name, value in options.items()}
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


def _option(name: str, hint: Any) -> Callable[[F], F]:
    if name == "selector":
        return selector_option
    types = set(member_types(hint))
    choices = [value for kind in types if get_origin(kind) is Literal for value in get_args(kind)]
    about = next(_descriptions(hint)).replace("null", f"`{NONE}`")
    flag = "--" + name.removesuffix("_bytes").removesuffix("_s").replace("_", "-")
    if bool in types:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=about)
    kind: Any = str
    if choices:
        kind = click.Choice(choices)
    elif str not in types and type(None) not in types:
        kind = FINITE if float in types else int
    return click.option(flag, name, type=kind, metavar="SECONDS" if name.endswith("_s") else None, help=about)


def _descriptions(hint: Any) -> Iterator[str]:
    return (note.description for note in getattr(hint, "__metadata__", ()) if note.description)


def _is_none(value: Any) -> bool:
    return isinstance(value, str) and value.lower() == NONE
