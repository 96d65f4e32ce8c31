"""`larder version`: show the versions of the client, the server and the nodes."""

from typing import Any

import click

from app import __version__
from app.cli.support.api.client import base_url, call
from app.cli.support.printing.terminal import Column, table
from app.cli.support.resources.options import Output, request_options

_COLUMNS = (
    Column("what", lambda row: row["what"]),
    Column("version", lambda row: row["version"]),
    Column("where", lambda row: row["where"], drop=1, text=True),
)


@click.command()
@click.option(
    "--client", "client_only", is_flag=True, help="Only the version of this command, without asking the server."
)
@request_options
def version(client_only: bool, url: str | None, output: Output) -> None:
    """Show the versions of the client, the server and the nodes."""
    versions: dict[str, Any] = {"client": __version__, "server": None, "nodes": {}}
    refused: click.ClickException | None = None
    if not client_only:
        try:
            versions["server"] = call(url, "GET", "/healthz")["release"]
            nodes = call(url, "GET", "/api/v1/nodes")["items"]
            versions["nodes"] = {node["name"]: node["release"] for node in nodes}
        except click.ClickException as error:  # without a server, show the version of the client
            refused = error
    rows = [{"what": "client", "version": __version__, "where": "this command"}]
    if versions["server"] is not None:
        rows.append({"what": "server", "version": versions["server"], "where": base_url(url)})
    rows += [{"what": "node", "version": release or "-", "where": name} for name, release in versions["nodes"].items()]
    if not output.data(versions, [row["version"] for row in rows]):
        table("", _COLUMNS, rows, wide=output.wide)
    if refused is not None:
        raise refused
