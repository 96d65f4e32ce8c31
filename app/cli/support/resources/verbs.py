"""Resources of the API, the commands `list`, `get` and `describe` about one, and answers to dry runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from app.cli.support.api.client import call, every, find, segment, url_option
from app.cli.support.api.names import Complete, names
from app.cli.support.exit_codes import check_nodes
from app.cli.support.keys import together
from app.cli.support.printing.terminal import Column, say
from app.cli.support.resources.options import Output, output_option, reach, request_options, watch_option
from dataplane.base.units import format_size


@dataclass(frozen=True)
class Resource:
    """A type of record in the API."""

    path: str
    noun: str
    columns: Sequence[Column] = ()
    key: str = "name"
    """Field that names a record."""
    metavar: str = ""
    """Argument that names a record, if it is not the key in capitals."""
    default: str | None = None
    """Record that a command without a name is about."""

    @property
    def plural(self) -> str:
        return self.path.rpartition("/")[2]

    def of(self, name: str) -> str:
        """Return the path of a record. Raises UsageError for an empty name."""
        return f"{self.path}/{segment(name, 'tenant' if self.key == 'tenant' else self.metavar.lower())}"

    def one_or_all(self, url: str | None, name: str | None) -> list[dict[str, Any]]:
        """Return one record, or all of them if none is named. Raises ClickException."""
        if name is None:
            return list(call(url, "GET", self.path)["items"])
        return [call(url, "GET", self.of(name))]

    def argument(self, complete: Complete | None = None) -> Callable[..., Any]:
        """Return a decorator that adds the argument `name`, which a shell completes with the names of records."""
        completion = complete or names((self.path, self.key))
        if self.default is not None:
            return click.argument("name", default=self.default, shell_complete=completion)
        return click.argument("name", metavar=self.metavar or self.key.upper(), shell_complete=completion)

    def current(self, url: str | None, name: str) -> dict[str, Any] | None:
        """Return the record, or None if it does not exist. Raises ClickException if it exists and the command is
        `create`."""
        record: dict[str, Any] | None = find(url, self.of(name))
        if record is not None and click.get_current_context().info_name == "create":
            raise click.ClickException(f"the {self.noun} {name!r} exists; 'set' changes it")
        return record


def nothing(*_: Any) -> None:
    """Print nothing."""


def add_list(
    group: click.Group,
    resource: Resource,
    about: str,
    *options: Callable[[Any], Any],
    title: str = "",
    pages: bool = False,
    query: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    add_details: Callable[[Any, Output], None] = nothing,
) -> None:
    """Add `list`, which prints the records as a table; `add_details` prints what follows it. `options` are decorators
    that add options, `query` returns the parameters of the query for their values. `pages`: the API returns pages,
    which are read up to the `limit`."""

    def list_records(url: str | None, output: Output, **parameters: Any) -> None:
        parameters = query(parameters)
        if pages:
            page = {name: parameters.pop(name, None) for name in ("limit", "cursor", "sort")}
            answer = every(url, resource.path, parameters, **page)
        else:
            answer = call(url, "GET", resource.path, None, parameters)
        if output.listing(title or resource.plural.capitalize(), answer, resource.columns, resource.key):
            add_details(answer, output)
        check_nodes(answer.get("failed_nodes", ()))

    group.command("list", help=about)(together(*options, request_options, watch_option)(list_records))


def add_get(
    group: click.Group, resource: Resource, about: str, add_details: Callable[[Any, Output], None] = nothing
) -> None:
    """Add `get`, which prints a record; `add_details` prints what follows its row."""

    @group.command("get", help=about)
    @resource.argument()
    @output_option
    @url_option
    def get(name: str, url: str | None, output: Output) -> None:
        record = call(url, "GET", resource.of(name))
        output.record(record, resource.columns, name)
        if output.format in ("table", "wide"):
            add_details(record, output)


def add_describe(group: click.Group, resource: Resource, about: str = "", called: str = "") -> None:
    """Add `describe`, which prints a record with its conditions and the events that concern it. `called` is the field
    with the name that events have, if it is not the key."""
    about = about or f"Show a {resource.noun} in full. Includes its conditions, and events that concern it."

    @group.command("describe", help=about)
    @resource.argument()
    @url_option
    def describe_record(name: str, url: str | None) -> None:
        from app.cli.support.resources.describe import describe

        record = call(url, "GET", resource.of(name))
        describe(url, resource.noun, record[called or resource.key], record)


def show_dry_run(answer: Mapping[str, Any], noun: str, labels: Mapping[str, str] | None, output: Output) -> None:
    """Print how each node would respond to a record with the selector `labels`. Raises ClickException if one would
    refuse it."""
    nodes = answer["items"]
    if not output.data(answer, [node["node"] for node in nodes]):
        for node in nodes:
            say(node["error"] or f"{node['node']}: {_response(node)}")
        if not any(_is_selected(node) for node in nodes):
            say(f"no node matches the selector {reach(labels)}: the {noun} would apply nowhere")
    if not answer["accepted"]:
        raise click.ClickException(f"not every node would accept the {noun}")


def _response(node: Mapping[str, Any]) -> str:
    faults = "; ".join(f"{fault['path']}: {fault['message']}" for fault in node["faults"])
    refusal = "" if node["accepted"] else faults
    if _is_selected(node):
        evicted = [
            f"{format_size(eviction['bytes'])} of {eviction['tenant']} from {eviction['tier'] or 'memory'}"
            for eviction in node.get("evictions", ())
        ]
        return refusal or f"accepted{', would evict ' if evicted else ''}{' and '.join(evicted)}"
    return f"not selected; {refusal}" if refusal else "not selected"


def _is_selected(node: Mapping[str, Any]) -> bool:
    selected: bool = node.get("selected", True)  # servers of older releases do not report it
    return selected
