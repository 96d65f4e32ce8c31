"""`larder engines …`: list engines, and drop one that hangs."""

from typing import Any

import click

from app.cli.commands.fleet.nodes import NODE_RESOURCE
from app.cli.support.api.client import ApiError, call
from app.cli.support.api.names import NODES
from app.cli.support.exit_codes import worded
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say, table
from app.cli.support.resources.options import Noun, Output, request_options, watch_option


def _state(engine: dict[str, Any]) -> str:
    if engine.get("expelled"):  # a server of an older release does not report it
        return "expelled" if engine["expelled"] == "barred" else "expelled, readmitted"
    if engine["connected"]:
        return "attached"
    return "lost" if engine["alive"] else "gone"


_COLUMNS = (
    Column("node", lambda e: e["node"]),
    Column("client", lambda e: str(e["client"]), right=True),
    Column("pid", lambda e: str(e["pid"] or "-"), right=True),
    Column("group", lambda e: e["group"], drop=1),
    Column("state", _state),
    # A server of an older release does not report what an engine has read and stored.
    Column("read", lambda e: show.size(e.get("read_bytes")), drop=3, right=True),
    Column("read tokens", lambda e: f"{e['read_tokens']:,}" if "read_tokens" in e else "-", right=True, wide=True),
    Column("stored", lambda e: show.size(e.get("stored_bytes")), drop=3, right=True),
    Column("leased", lambda e: str(e["leased_blocks"]), right=True),
    Column("writing", lambda e: show.size(e["reserved_bytes"]), drop=3, right=True),
    Column("quarantined", lambda e: show.size(e["quarantined_bytes"]), drop=2, right=True),
    Column("waits for pids", lambda e: ", ".join(map(str, e["waits_for_pids"])) or "-", drop=4),
)


@click.group(cls=Noun)
def engines() -> None:
    """Manage engines: processes that are attached to nodes."""


@engines.command("list")
@click.argument("node", required=False, shell_complete=NODES)
@request_options
@watch_option
def list_engines(url: str | None, node: str | None, output: Output) -> None:
    """List the engines of one node or of all nodes, by number of leased blocks."""
    nodes = NODE_RESOURCE.one_or_all(url, node)
    rows = [{"node": item["name"], **engine} for item in nodes if item["stats"] for engine in item["stats"]["engines"]]
    rows.sort(key=lambda engine: -engine["leased_blocks"])
    if not output.data(rows, [f"{engine['node']} {engine['client']}" for engine in rows]):
        table(f"Engines ({len(rows)})", _COLUMNS, rows, wide=output.wide)


@engines.command("expel")
@click.argument("node", shell_complete=NODES)
@click.argument("client", type=click.IntRange(1))
@click.option("--kill", is_flag=True, help="End the process with SIGKILL: it can read and write nothing more.")
@click.option("--force", is_flag=True, help="Expel it even while it holds blocks; see docs/operate/runbook.md.")
@click.option("--off", is_flag=True, help="Let the process attach again.")
@request_options
def expel(url: str | None, node: str, client: int, kill: bool, force: bool, off: bool, output: Output) -> None:
    """Drop the leases of an engine's process, and stop it from attaching again.

    CLIENT is the number that `larder engines list` shows. The command applies to all attachments of the process.
    """
    if off and (kill or force):
        raise click.UsageError("expected --off without --kill and --force")
    path = f"{NODE_RESOURCE.of(node)}/engines/{client}/expel"
    try:
        answer = call(url, "POST", path, {"on": not off, "force": force, "kill": kill})
    except ApiError as refused:
        message = refused.message.replace("with force it", "with --force it").replace("kill it instead", "use --kill")
        raise worded(refused, message) from None
    if output.data(answer, f"{node} {client}"):
        return
    process = f"process {answer['pid']}" if answer["pid"] else f"the process of engine {client}"
    if off:
        say(f"{node}: {process} may attach again")
        return
    leased = show.plural(answer["leased_blocks"], "block")
    done = f"{process} was sent SIGKILL" if answer["killed"] else f"{process} is expelled"
    leases = f"its leases on {leased} no longer count" if answer["dropped"] else f"its leases on {leased} end with it"
    say(f"{node}: {done}; {leases}")
    pids = [pid for pid in answer["waits_for_pids"] if not (answer["killed"] and pid == answer["pid"])]
    if pids and (answer["quarantined_bytes"] or not answer["dropped"]):
        size = show.size(answer["quarantined_bytes"])
        effect = f"{size} that it was writing" if answer["dropped"] else f"its leases and {size} that it was writing"
        say(f"{effect} wait until these processes are gone: {', '.join(map(str, pids))}")
