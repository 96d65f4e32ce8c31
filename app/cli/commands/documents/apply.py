"""`larder diff` and `larder apply`: compare records with documents, and change them to match."""

import sys
from typing import Any

import click

from app.cli.support import exit_codes
from app.cli.support.api.client import url_option, wait_option
from app.cli.support.printing import show
from app.cli.support.printing.terminal import say
from app.cli.support.resources.documents import counted, document_options, is_drift, print_changes, read_files, send
from app.cli.support.resources.options import Output, output_option, request_options


@click.command()
@document_options
@request_options
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


@click.command()
@document_options
@click.option("--dry-run", is_flag=True, help="Show the changes without making them.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@url_option
@wait_option
@output_option
def apply(
    files: tuple[str, ...],
    prune: bool,
    managed_by: str,
    take_over: bool,
    dry_run: bool,
    yes: bool,
    url: str | None,
    wait: str | None,
    output: Output,
) -> None:
    """Change records to match the files, all of them or none. Asks first on a terminal, and before it deletes
    records. With --dry-run, the exit code is 3 if there are changes."""
    options: dict[str, Any] = {"prune": prune, "managed_by": managed_by, "take_over": take_over}
    texts = read_files(files)
    may_ask = sys.stdin.isatty() and "-" not in files
    if not dry_run and not yes and (may_ask or prune):
        plan = send(url, files, texts, dry_run=True, **options)
        if is_drift(plan):
            _confirm(plan, may_ask)
        options["expect"] = plan["generations"]
    answer = send(url, files, texts, None if dry_run else wait, dry_run=dry_run, **options)
    if not output.data(answer, [record["name"] for record in answer["records"] if record["action"] != "unchanged"]):
        print_changes(answer)
        say(f"{counted(answer)}{_state(answer)}")
    if dry_run and is_drift(answer):
        raise click.exceptions.Exit(exit_codes.DIFFERS)


def _confirm(plan: dict[str, Any], may_ask: bool) -> None:
    """Ask for confirmation. Raises Abort if the user declines, UsageError if records would be deleted and there is no
    terminal."""
    if not may_ask and not plan["deleted"]:
        return
    print_changes(plan)
    say(counted(plan), err=not may_ask)
    if not may_ask:
        raise click.UsageError(
            f"{show.plural(plan['deleted'], 'record')} would be deleted, and this was not confirmed: "
            "without a terminal, --yes is needed"
        )
    click.confirm("apply?", abort=True)


def _state(answer: dict[str, Any]) -> str:
    """Return whether nodes have applied the changes, as the end of a sentence."""
    if answer["dry_run"] or not is_drift(answer):
        return ""
    changed = {record["type"] for record in answer["records"] if record["action"] not in ("unchanged", "ended")}
    behind = sorted({node for kind in changed for node in answer["status"][kind]["behind"]})
    if all(answer["status"][kind]["applied"] for kind in changed):
        return "; applied"
    return f"; waiting ({', '.join(behind)})" if behind else "; waiting"
