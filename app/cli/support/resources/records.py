"""The commands of a type of records: `list`, `get`, `set`, `create`, `edit`, `delete` and `describe`, from its row."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click
import msgspec

from app.cli.support.api.client import ANY_STATE, ApiError, call, state_headers, url_option, wait_option
from app.cli.support.api.names import TENANTS
from app.cli.support.exit_codes import worded
from app.cli.support.keys import F, together
from app.cli.support.printing import show
from app.cli.support.printing.terminal import say
from app.cli.support.resources.fields import field_options, given_fields, put_fields, required
from app.cli.support.resources.options import Noun, Output, output_option, paged, reach, unasked_option
from app.cli.support.resources.verbs import Resource, add_describe, add_get, add_list, nothing, show_dry_run

Record = Mapping[str, Any]
Fields = dict[str, Any]
TABLE = Output()


def no_lines(*_: Any) -> Iterable[str]:
    return ()


@dataclass(frozen=True, kw_only=True)
class RecordNoun(Resource):
    """A type of records on the command line. Options, help and `edit` follow from the fields of its PUT."""

    put: type[msgspec.Struct]
    help: Mapping[str, str]
    """Help of the noun (under its path's last word) and of the commands whose help is not that of all types."""
    without: Sequence[str] = ("managed_by",)
    """Fields that neither options nor `edit` set: only documents do, or `options` of the type."""
    special: Sequence[str] = ()
    """Fields that `edit` shows, and that `options` of the type set."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Options of fields whose name does not give the option."""
    filters: Sequence[Callable[[F], F]] = ()
    """Options of `list`, which are parameters of its query."""
    options: Callable[[F], F] = lambda command: command
    """Adds options of `set` that are no field of their own."""
    waits: bool = False
    """Nodes receive the records: changes wait for them."""
    dry_runs: bool = False
    """`set --dry-run` asks every node."""
    replaces: bool = False
    """`set` gives omitted options their defaults."""
    changes: Callable[[type[msgspec.Struct], Fields], Fields] = given_fields
    """Returns the fields that the options of a `set` give, given the body and the options. Raises UsageError."""
    merged: Callable[[Fields, Record | None, Fields], tuple[Record | None, Fields]] = lambda changed, current, _: (
        current or {},
        changed,
    )
    """Returns the fields of the record that stay as they are, None to send a PATCH without them, and the fields that
    change, given the fields that `changes` returned, the current record and the options. Raises UsageError."""
    saved: Callable[[Record, Fields, str], Iterable[str]] = no_lines
    """Returns the lines about a record after `set`, given the changed fields and a text about those that were kept."""
    fault: Callable[[Record], str] = lambda _record: ""
    """Returns why a `set` fails although the record was stored."""
    listed: Callable[[Record, Output], None] = nothing
    """Prints what follows the table of a list."""
    shown: Callable[[Record, Output], None] = nothing
    """Prints what follows the row of a record."""
    lost: Callable[[Record], Iterable[str]] | None = None
    """Returns the lines of `delete --dry-run`."""

    @property
    def editable(self) -> list[str]:
        return [name for name in self.put.__struct_fields__ if name not in self.without]


def record_commands(noun: RecordNoun) -> click.Group:
    """Return the group of a type's commands."""
    group = Noun(noun.plural, help=noun.help[noun.plural])
    about = noun.help.get("list", f"List all {noun.plural}.")
    add_list(group, noun, about, *noun.filters, paged, pages=True, add_details=noun.listed)
    add_get(group, noun, noun.help.get("get", f"Show one {noun.noun}."), noun.shown)
    _add_set(group, noun)
    _add_edit(group, noun)
    _add_delete(group, noun)
    add_describe(group, noun)
    return group


def _waiting(noun: RecordNoun, command: F) -> F:
    return wait_option(command) if noun.waits else command


def _add_set(group: click.Group, noun: RecordNoun) -> None:
    def set_record(
        name: str, url: str | None, output: Output, wait: str | None = None, dry_run: bool = False, **options: Any
    ) -> None:
        changed = required(noun.changes(noun.put, options))
        current = noun.current(url, name)
        record, changed = noun.merged(changed, None if noun.replaces else current, options)
        unchanged_fields = {
            field: value for field, value in put_fields(noun.put, record or {}).items() if field not in changed
        }
        body = {**unchanged_fields, **changed}
        if dry_run:
            tried = call(url, "POST", "/api/v1/actions/dry-run", {noun.plural: {name: body}})
            show_dry_run(tried, noun.noun, body.get("selector"), output)
            return
        method = "PATCH" if record is None else "PUT"
        try:
            answer = call(url, method, noun.of(name), body, {"wait": wait}, state_headers(current))
        except ApiError as refused:
            message = refused.message
            for of_field, option in noun.flags.items():
                message = message.replace(of_field, option)
            raise worded(refused, message) from None
        if not output.data(answer, name):
            unchanged = [value_text(of_field, value) for of_field, value in unchanged_fields.items() if value]
            for line in noun.saved(answer, changed, f" (kept: {', '.join(unchanged)})" if unchanged else ""):
                say(line)
        if fault := noun.fault(answer):
            raise click.ClickException(fault)

    dry_run_option = click.option("--dry-run", is_flag=True, help="Only show how every node would respond.")
    needed = frozenset(getattr(noun.put, "REQUIRED", ()) if noun.replaces else ())
    field_names = [name for name in noun.editable if name not in noun.special]
    add_options = together(
        noun.argument(TENANTS if noun.key == "tenant" else None),
        noun.options,
        field_options(noun.put, field_names, noun.flags, needed),
        *([dry_run_option] if noun.dry_runs else []),
        url_option,
        *([wait_option] if noun.waits else []),
        output_option,
    )
    omitted = "get their defaults" if noun.replaces else "keep the values of the record; a new record gets the defaults"
    set_command = group.command("set", help=noun.help.get("set", f"Set a {noun.noun}. Omitted options {omitted}."))(
        add_options(set_record)
    )
    about = noun.help.get("create", f"Create a {noun.noun}.")
    group.add_command(click.Command("create", callback=set_command.callback, params=set_command.params, help=about))


def value_text(name: str, value: Any) -> str:
    """Return a kept field as text: `floor 64 MiB`."""
    word = name.removesuffix("_bytes").removesuffix("_s").replace("_", " ")
    if name == "selector":
        return f"nodes {reach(value)}"
    if name == "tiers":
        return show.tier_shares(value)
    if name == "expires_at":
        return f"ends {show.ends(value)}"
    if value is True:
        return word
    if name.endswith("_bytes"):
        return f"{word} {show.size(value)}"
    return f"{word} {value:g}{' s' if name.endswith('_s') else ''}" if isinstance(value, float) else f"{word} {value}"


def _add_edit(group: click.Group, noun: RecordNoun) -> None:
    @noun.argument()
    @url_option
    def edit(name: str, url: str | None, wait: str | None = None) -> None:
        from app.cli.support.resources.documents import as_written
        from app.cli.support.resources.editor import edited  # YAML takes a third of the time of a short command

        record = call(url, "GET", noun.of(name))
        before = {field: as_written(field, record[field]) for field in noun.editable if field in record}

        def apply(after: Mapping[str, Any]) -> None:
            changed = {field: value for field, value in after.items() if value != before.get(field)}
            removed = dict.fromkeys(before.keys() - after.keys())  # a field deleted from the text gets its default
            call(url, "PATCH", noun.of(name), {**changed, **removed}, {"wait": wait}, state_headers(record))

        if edited(f"The {noun.noun} {name}.", before, apply):
            say(f"{name}: {noun.noun} changed")
        else:
            say(f"{name}: not changed")

    about = f"Edit a {noun.noun} as YAML in $EDITOR. Refused if the record changed meanwhile."
    group.command("edit", help=about)(_waiting(noun, edit))


def _add_delete(group: click.Group, noun: RecordNoun) -> None:
    @noun.argument()
    @unasked_option
    @url_option
    def delete(
        name: str, url: str | None, wait: str | None = None, dry_run: bool = False, output: Output = TABLE
    ) -> None:
        if dry_run and noun.lost is not None:
            record = call(url, "GET", noun.of(name))
            if not output.data(record, name):
                for line in noun.lost(record):
                    say(line)
            return
        answer = call(url, "DELETE", noun.of(name), None, {"wait": wait}, ANY_STATE)
        if answer is None:
            say(f"{name}: {noun.noun} deleted")
        elif not output.data(answer, name):
            say(f"{name}: {noun.noun} deleted; {answer['message']}")

    if noun.lost is not None:
        delete = output_option(click.option("--dry-run", is_flag=True, help="Only show what would be lost.")(delete))
    group.command("delete", help=noun.help.get("delete", f"Delete a {noun.noun}."))(_waiting(noun, delete))


def add_check(group: click.Group, about: str) -> None:
    """Add `check`, which is `set --dry-run`."""
    command = group.commands["set"]
    assert command.callback is not None
    parameters = [parameter for parameter in command.params if parameter.name not in ("dry_run", "wait")]
    callback = partial(command.callback, dry_run=True)
    group.add_command(click.Command("check", callback=callback, params=parameters, help=about))
