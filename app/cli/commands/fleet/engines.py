"""`larder engines …`."""

from typing import Any

import click

from app.cli.support import show
from app.cli.support.client import ApiError, call, json_option, print_json, segment, url_option
from app.cli.support.terminal import say


@click.group()
def engines() -> None:
    """Manage engines: processes that are attached to nodes."""


@engines.command("list")
@click.argument("node", required=False)
@url_option
@json_option
def list_engines(url: str | None, node: str | None, as_json: bool) -> None:
    """Show the engines of one node or of all nodes, by number of leased blocks."""
    if node is None:
        nodes = call(url, "GET", "/api/v1/nodes")["items"]
    else:
        nodes = [call(url, "GET", f"/api/v1/nodes/{segment(node, 'node')}")]
    told = [
        {"node": each["name"], **engine}
        for each in nodes
        if each["stats"]
        for engine in each["stats"]["engines"]
    ]
    told.sort(key=lambda engine: -engine["leased_blocks"])
    if as_json:
        print_json(told)
        return
    rows = [
        [
            engine["node"],
            str(engine["client"]),
            str(engine["pid"] or "-"),
            engine["group"],
            _state(engine),
            str(engine["leased_blocks"]),
            show.size(engine["reserved_bytes"]),
            show.size(engine["quarantined_bytes"]),
            ", ".join(map(str, engine["waits_for_pids"])) or "-",
        ]
        for engine in told
    ]
    columns = [
        "node",
        "client ",
        "pid ",
        "group",
        "state",
        "leased ",
        "writing ",
        "quarantined ",
        "waits for pids",
    ]
    show.table(f"Engines ({len(rows)})", columns, rows)


def _state(engine: dict[str, Any]) -> str:
    if engine.get("expelled"):  # a server of an older release does not report it
        return "expelled" if engine["expelled"] == "barred" else "expelled, readmitted"
    if engine["connected"]:
        return "attached"
    return "lost" if engine["alive"] else "gone"


@engines.command("expel")
@click.argument("node")
@click.argument("client", type=click.IntRange(1))
@click.option(
    "--kill", is_flag=True, help="End the process with SIGKILL: it can read and write nothing more."
)
@click.option("--force", is_flag=True, help="Expel it even while it holds blocks; see docs/operations.md.")
@click.option("--off", is_flag=True, help="Let the process attach again.")
@url_option
@json_option
def expel(url: str | None, node: str, client: int, kill: bool, force: bool, off: bool, as_json: bool) -> None:
    """Drop the leases of an engine's process, and stop it from attaching again.

    CLIENT is the number that `larder engines list` shows. The command applies to all attachments of the process.
    """
    if off and (kill or force):
        raise click.UsageError("expected --off without --kill and --force")
    path = f"/api/v1/nodes/{segment(node, 'node')}/engines/{client}/expel"
    try:
        answer = call(url, "POST", path, {"on": not off, "force": force, "kill": kill})
    except ApiError as refused:
        message = refused.message.replace("with force it", "with --force it").replace(
            "kill it instead", "use --kill"
        )
        raise click.ClickException(message) from None
    if as_json:
        print_json(answer)
        return
    process = f"process {answer['pid']}" if answer["pid"] else f"the process of engine {client}"
    if off:
        say(f"{node}: {process} may attach again")
        return
    held = show.plural(answer["leased_blocks"], "block")
    done = f"{process} was sent SIGKILL" if answer["killed"] else f"{process} is expelled"
    leases = (
        f"its leases on {held} no longer count" if answer["dropped"] else f"its leases on {held} end with it"
    )
    say(f"{node}: {done}; {leases}")
    pids = [pid for pid in answer["waits_for_pids"] if not (answer["killed"] and pid == answer["pid"])]
    if pids and (answer["quarantined_bytes"] or not answer["dropped"]):
        size = show.size(answer["quarantined_bytes"])
        what = (
            f"{size} that it was writing"
            if answer["dropped"]
            else f"its leases and {size} that it was writing"
        )
        say(f"{what} wait until these processes are gone: {', '.join(map(str, pids))}")
