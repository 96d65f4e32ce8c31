"""`larder diff`."""

from typing import Any

import click

from app.cli.support.client import json_option, print_json, url_option
from app.cli.support.documents import counted, document_options, is_drift, print_changes, read_files, send
from app.cli.support.terminal import say

DRIFT = 2


class _Misuse(click.UsageError):
    exit_code = 1


class _Diff(click.Command):
    """A command that exits with 1 for wrong usage, because 2 is the exit code for a difference."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise _Misuse(error.format_message(), error.ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _Misuse(error.format_message(), error.ctx) from None


@click.command(cls=_Diff)
@document_options
@url_option
@json_option
def diff(
    files: tuple[str, ...], prune: bool, managed_by: str, take_over: bool, url: str | None, as_json: bool
) -> None:
    """Show what `larder apply` would change. The exit code is 0 for no change, 2 for changes, 1 for an error."""
    answer = send(
        url, files, read_files(files), dry_run=True, prune=prune, managed_by=managed_by, take_over=take_over
    )
    if as_json:
        print_json(answer)
    else:
        print_changes(answer)
        say(counted(answer))
    if is_drift(answer):
        raise click.exceptions.Exit(DRIFT)
