"""Commands that are the same for every type of record: `get`, `describe`, `edit` and `delete`; answers to dry runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from app.cli.support.api.client import ANY_STATE, call, every, find, segment, state_headers, url_option, wait_option
from app.cli.support.api.names import names
from app.cli.support.printing.terminal import Column, say
from app.cli.support.resources.options import Output, output_option, reach, unasked_option, watch_option
from dataplane.base.units import format_size


@dataclass(frozen=True)
class Resource:
    """A type of record in the API."""

    path: str
    noun: str
    columns: Sequence[Column] = ()
    key: str = "name"
    """Argument that names a record."""
    default: str | None = None
    """Record that a command without a name is about."""
    editable: Sequence[str] = field(default_factory=tuple)
    """Fields that `edit` shows."""

    def of(self, name: str) -> str:
        """Return the path of a record. Raises UsageError for an empty name."""
        return f"{self.path}/{segment(name, 'tenant' if self.key == 'tenant' else '')}"

    @property
    def argument(self) -> Callable[..., Any]:
        """Decorator that adds the argument `name`."""
        known = names((self.path, self.key))
        if self.default is not None:
            return click.argument("name", default=self.default, shell_complete=known)
        return click.argument("name", metavar=self.key.upper(), shell_complete=known)

    def current(self, url: str | None, name: str) -> dict[str, Any] | None:
        """Return the record, or None if it does not exist. Raises ClickException if it exists and the command is
        `create`."""
        record: dict[str, Any] | None = find(url, self.of(name))
        if record is not None and click.get_current_context().info_name == "create":
            raise click.ClickException(f"the {self.noun} {name!r} exists; 'set' changes it")
        return record


def add_list(group: click.Group, resource: Resource, about: str) -> None:
    """Add `list`, which prints all records."""

    @group.command("list", help=about)
    @url_option
    @output_option
    @watch_option
    def list_records(url: str | None, output: Output) -> None:
        output.listing(f"{resource.noun}s".capitalize(), every(url, resource.path), resource.columns, resource.key)


def add_get(group: click.Group, resource: Resource, about: str) -> None:
    """Add `get`, which prints a record."""

    @group.command("get", help=about)
    @resource.argument
    @output_option
    @url_option
    def get(name: str, url: str | None, output: Any) -> None:
        output.record(call(url, "GET", resource.of(name)), resource.columns, name)


def add_describe(group: click.Group, resource: Resource) -> None:
    """Add `describe`, which prints a record with its conditions and the events that concern it."""

    @group.command(
        "describe", help=f"Show a {resource.noun} in full. Includes its conditions, and events that concern it."
    )
    @resource.argument
    @url_option
    def describe_record(name: str, url: str | None) -> None:
        from app.cli.support.resources.describe import describe

        record = call(url, "GET", resource.of(name))
        describe(url, resource.noun, record[resource.key], record)


def add_edit(group: click.Group, resource: Resource, *, method: str = "PATCH", waits: bool = False) -> None:
    """Add `edit`, which opens a record in an editor."""

    @resource.argument
    @url_option
    def edit(name: str, url: str | None, wait: str | None = None) -> None:
        from app.cli.support.resources.documents import as_written
        from app.cli.support.resources.editor import edited  # YAML takes a third of the time of a short command

        record = call(url, "GET", resource.of(name))
        before = {each: as_written(each, record[each]) for each in resource.editable if each in record}

        def apply(after: Mapping[str, Any]) -> None:
            changed = {each: value for each, value in after.items() if value != before.get(each)}
            # A field that was deleted from the text gets its default.
            removed = dict.fromkeys(before.keys() - after.keys()) if method == "PATCH" else {}
            body = {**changed, **removed} if method == "PATCH" else dict(after)
            call(url, method, resource.of(name), body, {"wait": wait}, state_headers(record))

        if edited(f"The {resource.noun} {name}.", before, apply):
            say(f"{name}: {resource.noun} changed")
        else:
            say(f"{name}: not changed")

    about = f"Edit a {resource.noun} as YAML in $EDITOR. Refused if the record changed meanwhile."
    group.command("edit", help=about)(wait_option(edit) if waits else edit)


def add_delete(group: click.Group, resource: Resource, about: str, *, waits: bool = False) -> None:
    """Add `delete`. `waits` adds `--wait`, for records that nodes receive."""

    @resource.argument
    @unasked_option
    @url_option
    def delete(name: str, url: str | None, wait: str | None = None) -> None:
        call(url, "DELETE", resource.of(name), None, {"wait": wait}, ANY_STATE)
        say(f"{name}: {resource.noun} deleted")

    group.command("delete", help=about)(wait_option(delete) if waits else delete)


def show_dry_run(answer: Mapping[str, Any], noun: str, labels: Mapping[str, str] | None, output: Output) -> None:
    """Print how each node would respond to a record with the selector `labels`. Raises ClickException if one would
    refuse it."""
    nodes = answer["items"]
    if not output.data(answer, [node["node"] for node in nodes]):
        for node in nodes:
            say(f"{node['node']}: {_response(node)}")
        if not any(_is_selected(node) for node in nodes):
            say(f"no node matches the selector {reach(labels)}: the {noun} would apply nowhere")
    if not answer["accepted"]:
        raise click.ClickException(f"not every node would accept the {noun}")


def _response(node: Mapping[str, Any]) -> str:
    faults = "; ".join(f"{fault['path']}: {fault['message']}" for fault in node["faults"])
    refusal = "" if node["accepted"] else faults or node["error"]
    if _is_selected(node):
        evicted = [
            f"{format_size(each['bytes'])} of {each['tenant']} from {each['tier'] or 'memory'}"
            for each in node.get("evictions", ())
        ]
        return refusal or f"accepted{', would evict ' if evicted else ''}{' and '.join(evicted)}"
    return f"not selected; {refusal}" if refusal else "not selected"


def _is_selected(node: Mapping[str, Any]) -> bool:
    selected: bool = node.get("selected", True)  # servers of older releases do not report it
    return selected


def add_set(group: click.Group, function: Callable[..., Any], *, about: str, create: str) -> None:
    """Add a function as `set`, and as `create`, which refuses an existing record."""
    command = group.command("set", help=about)(function)
    group.add_command(click.Command("create", callback=command.callback, params=command.params, help=create))
