"""`larder version`: show the versions of the client, the server and the nodes."""

from typing import Any

import click

from app import __version__
from app.cli.support.api.client import base_url, call, url_option
from app.cli.support.printing.terminal import Column, table
from app.cli.support.resources.options import Output, output_option

_COLUMNS = (
    Column("what", lambda each: each["what"]),
    Column("version", lambda each: each["version"]),
    Column("where", lambda each: each["where"], drop=1, text=True),
)


@click.command()
@click.option(
    "--client", "client_only", is_flag=True, help="Only the version of this command, without asking the server."
)
@url_option
@output_option
def version(client_only: bool, url: str | None, output: Output) -> None:
    """Show the versions of the client, the server and the nodes."""
    found: dict[str, Any] = {"client": __version__, "server": None, "nodes": {}}
    refused: click.ClickException | None = None
    if not client_only:
        try:
            found["server"] = call(url, "GET", "/healthz")["release"]
            nodes = call(url, "GET", "/api/v1/nodes")["items"]
            found["nodes"] = {node["name"]: node["release"] for node in nodes}
        except click.ClickException as error:  # without a server, show the version of the client
            refused = error
    rows = [{"what": "client", "version": __version__, "where": "this command"}]
    if found["server"] is not None:
        rows.append({"what": "server", "version": found["server"], "where": base_url(url)})
    rows += [{"what": "node", "version": each or "-", "where": name} for name, each in found["nodes"].items()]
    if not output.data(found, [row["version"] for row in rows]):
        table("", _COLUMNS, rows, wide=output.wide)
    if refused is not None:
        raise refused
