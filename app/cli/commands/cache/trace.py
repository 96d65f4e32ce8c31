"""`larder trace …`: save the requests that a node recorded to a file."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import click

from app.cli.support.api.client import call, segment, stream, url_option
from app.cli.support.keys import seconds
from app.cli.support.printing.terminal import say


@click.group()
def trace() -> None:
    """Save a node's recorded requests to a file, for 'larder replay'."""


@trace.command()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--since", default="1h", show_default=True, help="How far back, such as 90s, 30m or 1h.")
@click.option("--node", help="Node to record; required if there are several.")
@click.option("--force", is_flag=True, help="Replace an existing FILE.")
@url_option
def record(file: Path, since: str, node: str | None, force: bool, url: str | None) -> None:
    """Write a node's recorded requests to FILE. A failure leaves no partial file."""
    if file.exists() and not force:
        raise click.ClickException(f"{file} is there already; --force replaces it")
    since_s = seconds("--since", since)
    name = node or _only_node(url)
    try:
        descriptor, partial = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as out:
            requests = _copy(url, name, since_s, out.write)
            out.flush()
            os.fsync(out.fileno())
        if not requests:
            raise click.ClickException(f"{name} recorded no request in the last {since}; {file} was not written")
        os.replace(partial, file)
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}") from None
    finally:
        Path(partial).unlink(missing_ok=True)
    say(f"{file}: {requests} requests of {name}; 'larder replay {file}' replays them")


def _copy(url: str | None, node: str, since_s: float, write: Callable[[bytes], object]) -> int:
    """Write the whole trace, and return the number of lines."""
    lines = 0
    for part in stream(url, f"/api/v1/nodes/{segment(node, 'node')}/trace", {"since_s": f"{since_s:g}"}):
        write(part)
        lines += part.count(b"\n")
    return lines


def _only_node(url: str | None) -> str:
    connected = [node["name"] for node in call(url, "GET", "/api/v1/nodes")["items"] if node["state"] != "lost"]
    if len(connected) != 1:
        if not connected:
            raise click.ClickException("no node is connected")
        raise click.ClickException(f"there are {len(connected)} nodes: {', '.join(connected)}; --node says which")
    return str(connected[0])
