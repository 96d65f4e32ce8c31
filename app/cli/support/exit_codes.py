"""Exit codes of the commands. `larder --help` lists them."""

from collections.abc import Iterable, Mapping
from typing import Any

import click

OK = 0
FAILED = 1
USAGE = 2
DIFFERS = 3
NOT_FOUND = 4
FORBIDDEN = 5
UNREACHABLE = 6

MEANINGS = {
    OK: "The command succeeded.",
    FAILED: "The command failed, or a node did not answer; one sentence says why.",
    USAGE: "The command line or a setting is wrong.",
    DIFFERS: "diff, apply --dry-run: there are differences; audit verify: an entry was changed.",
    NOT_FOUND: "The record, node or other resource does not exist.",
    FORBIDDEN: "The token is missing or invalid, or lacks the permission.",
    UNREACHABLE: "The server or its database does not respond.",
}

_BY_STATUS = {401: FORBIDDEN, 403: FORBIDDEN, 404: NOT_FOUND, 502: UNREACHABLE, 503: UNREACHABLE, 504: UNREACHABLE}


class NothingFound(click.ClickException):
    exit_code = NOT_FOUND


class Unreachable(click.ClickException):
    exit_code = UNREACHABLE


class NodesFailed(click.ClickException):
    """Some or all nodes did not answer, or refused. What the others answered has been printed."""


def of_status(status: int) -> int:
    """Return the exit code for an HTTP status that is an error."""
    return _BY_STATUS.get(status, FAILED)


def check_nodes(nodes: Iterable[Mapping[str, Any]], message: str = "not every node answered") -> None:
    """Raise NodesFailed with a message and the errors of nodes, each of which names its node, if one has an `error`."""
    if errors := "; ".join(node["error"] for node in nodes if node["error"]):
        raise NodesFailed(f"{message}: {errors}")


def failure(error: Exception, message: str) -> click.ClickException:
    """Return an error with the message: a wrong setting has the code of wrong usage, because another attempt would fail
    in the same way."""
    from dataplane.base.settings import SettingsError

    failed = click.ClickException(message)
    if isinstance(error, SettingsError):
        failed.exit_code = USAGE  # type: ignore[misc]  # click declares it for the class
    return failed


def worded(error: click.ClickException, message: str) -> click.ClickException:
    """Return an error with the exit code of `error` and another message."""
    reworded = click.ClickException(message)
    reworded.exit_code = error.exit_code  # type: ignore[misc]  # click declares it for the class
    return reworded
