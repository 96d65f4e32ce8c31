"""`larder restart`: replace the processes and keep the cache."""

import time
from typing import Any

import click

from app.cli.support.api.client import call
from app.cli.support.printing.terminal import say
from app.cli.support.resources.options import Output, request_options
from dataplane.base.units import format_size

POLL_S = 0.1
ANSWERS_S = 300.0
"""Seconds to wait for the answer: a new data plane may hang, and one with the old settings must then start."""
RESTART_S = 120.0
"""Seconds to wait for the answer of the new management plane."""


@click.command()
@click.option("--fresh", is_flag=True, help="Release the cache: the new data plane starts with an empty one.")
@click.option("--dry-run", is_flag=True, help="Only show whether the new processes would keep the cache.")
@request_options
def restart(fresh: bool, dry_run: bool, url: str | None, output: Output) -> None:
    """Replace the processes of a running Larder with the code and the settings that are on disk now.

    Engines keep reading, and every block stays cached. If the new data plane cannot take over the memory, the command
    reports what would be lost and stops nothing.
    """
    request = {"fresh": fresh, "dry_run": dry_run}
    answer = call(url, "POST", "/api/v1/actions/restart", request, timeout_s=ANSWERS_S)
    quiet = output.format not in ("table", "wide")
    if not quiet:
        _print_data_plane(answer, dry_run=dry_run)
    if not dry_run:
        began = time.monotonic()
        answer["restarted"] = _wait_for_restart(url, answer["instance"])
        if not quiet:
            say(
                f"management plane: release {answer['restarted']['release']} answers, after "
                f"{time.monotonic() - began:.1f} s"
            )
    output.data(answer)


def _print_data_plane(answer: dict[str, Any], *, dry_run: bool) -> None:
    cached = f"{answer['blocks']:,} blocks ({format_size(answer['bytes'])})"
    if not answer.get("starts_data_plane", True):
        say("data plane: not restarted; it is a service of its own, and keeps its cache")
        return
    if dry_run:
        say(f"{cached} would be kept" if answer["kept"] else f"{cached} would be lost: {answer['reason']}")
        return
    became = f"{cached} kept" if answer["kept"] else f"{cached} released: {answer['reason']}"
    say(
        f"data plane: {became}; process {answer['data_plane_pid']} served {answer['seconds']:.2f} s after the stop of "
        "the previous one"
    )


def _wait_for_restart(url: str | None, before: str) -> dict[str, Any]:
    """Wait for the new process and return its health. Raises ClickException."""
    deadline = time.monotonic() + RESTART_S
    last = "it was not asked"
    while time.monotonic() < deadline:
        try:
            health: dict[str, Any] = call(url, "GET", "/healthz")
        except click.ClickException as error:
            last = str(error)
        else:
            if health.get("instance", before) != before:
                return health
            last = "the previous process still answers"
        time.sleep(POLL_S)
    raise click.ClickException(f"the new management plane did not answer within {RESTART_S:g} s: {last}")
