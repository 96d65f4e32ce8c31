"""Completion of names that the server knows: records, tenants and nodes."""

from collections.abc import Callable
from typing import Any

import click

from app.cli.support.api.client import call
from dataplane.base.settings import SettingsError

WAIT_S = 0.5
"""Longest wait for the server, because a shell waits for the completion."""
MAX_NAMES = 200

_FAILURES = (click.ClickException, click.exceptions.Exit, SettingsError, KeyError, TypeError, ValueError, OSError)

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def names(*sources: tuple[str, str]) -> Complete:
    """Return a completion of the values of a field of list routes: `names(("/api/v1/pins", "name"))`. A source that is
    away, or that the caller may not read, has no names."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        values: list[str] = []
        for path, field in sources:
            try:
                answer: Any = call(ctx.params.get("url"), "GET", path, timeout_s=WAIT_S)
                values += [str(item[field]) for item in answer["items"]]
            except _FAILURES:
                continue
        return [name for name in values if name.startswith(incomplete) and name.isprintable()][:MAX_NAMES]

    return complete


NODES = names(("/api/v1/nodes", "name"))
TENANTS = names(("/api/v1/tenants", "tenant"))
TENANTS_AND_NODES = names(("/api/v1/tenants", "tenant"), ("/api/v1/nodes", "name"))
