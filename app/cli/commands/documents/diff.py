"""`larder diff`."""

import click

from app.cli.support import exit_codes
from app.cli.support.api.client import url_option
from app.cli.support.printing.terminal import say
from app.cli.support.resources.documents import counted, document_options, is_drift, print_changes, read_files, send
from app.cli.support.resources.options import Output, output_option


@click.command()
@document_options
@url_option
@output_option
def diff(
    files: tuple[str, ...], prune: bool, managed_by: str, take_over: bool, url: str | None, output: Output
) -> None:
    """Show what `larder apply` would change. The exit code is 3 if there are changes."""
    answer = send(url, files, read_files(files), dry_run=True, prune=prune, managed_by=managed_by, take_over=take_over)
    if not output.data(answer, [record["name"] for record in answer["records"] if record["action"] != "unchanged"]):
        print_changes(answer)
        say(counted(answer))
    if is_drift(answer):
        raise click.exceptions.Exit(exit_codes.DIFFERS)
