"""Commands that are the same for every type of record: `get` and `delete`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from app.cli.support.client import ANY_STATE, call, print_json, segment, url_option, wait_option
from app.cli.support.lists import unasked_option
from app.cli.support.terminal import say


@dataclass(frozen=True)
class Resource:
    """A type of record in the API."""

    path: str
    noun: str
    key: str = "name"
    """Argument that names a record."""
    default: str | None = None
    """Record that a command without a name is about."""

    def of(self, name: str) -> str:
        """Return the path of a record. Raises UsageError for an empty name."""
        return f"{self.path}/{segment(name, 'tenant' if self.key == 'tenant' else '')}"

    @property
    def argument(self) -> Callable[..., Any]:
        """Decorator that adds the argument `name`."""
        if self.default is not None:
            return click.argument("name", default=self.default)
        return click.argument("name", metavar=self.key.upper())


def add_get(group: click.Group, resource: Resource, about: str) -> None:
    """Add `get`, which prints a record as JSON."""

    @group.command("get", help=about)
    @resource.argument
    @url_option
    def get(name: str, url: str | None) -> None:
        print_json(call(url, "GET", resource.of(name)))


def add_delete(
    group: click.Group, resource: Resource, about: str, *, verb: str = "delete", waits: bool = False
) -> None:
    """Add `delete`. `waits` adds `--wait`, for records that nodes receive."""

    @resource.argument
    @unasked_option
    @url_option
    def delete(name: str, url: str | None, wait: str | None = None) -> None:
        call(url, "DELETE", resource.of(name), None, {"wait": wait}, ANY_STATE)
        say(f"{name}: {resource.noun} deleted")

    group.command(verb, help=about)(wait_option(delete) if waits else delete)
