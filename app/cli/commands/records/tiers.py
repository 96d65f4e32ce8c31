"""`larder tiers …`: manage tiers, and check, repair or measure directories of disk tiers."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from app.cli.commands.machine.tiers import check, repair, usage
from app.cli.support.api.client import ANY_STATE, call, every, state_headers, url_option, wait_option
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say, table
from app.cli.support.resources.fields import field_options, given_fields, put_fields, required
from app.cli.support.resources.options import (
    Noun,
    Output,
    output_option,
    owner_option,
    paged,
    reach,
    unasked_option,
    watch_option,
)
from app.cli.support.resources.verbs import Resource, add_describe, add_edit, add_set, show_dry_run
from app.schemas.records.tiers import TierPut

_FIELDS = [name for name in TierPut.__struct_fields__ if name != "managed_by"]
_COLUMNS = (
    Column("name", lambda tier: tier["name"]),
    Column("type", lambda tier: tier["type"]),
    Column("nodes", lambda tier: reach(tier["selector"]), drop=5),
    Column("budget", lambda tier: show.size(tier["budget_bytes"]), right=True),
    Column("stored", lambda tier: show.size(tier["stored_bytes"]), right=True),
    Column("blocks", lambda tier: f"{tier['blocks']:,}", drop=4, right=True),
    Column("unspilled", lambda tier: _unspilled(tier), drop=8, right=True),
    Column("spill", lambda tier: tier["spill"], drop=3),
    Column("order", lambda tier: str(tier["order"]), drop=6, right=True),
    Column("deadline", lambda tier: show.span(tier["load_deadline_s"]), drop=8, right=True),
    Column("in flight", lambda tier: show.size(tier["max_bytes_in_flight"]), drop=9, right=True),
    Column("compress", lambda tier: tier.get("compress", "none"), drop=10),
    Column("ratio", lambda tier: show.ratio(tier), drop=11, right=True),
    Column("state", show.applied),
    Column("owner", lambda tier: tier["managed_by"] or "-", drop=7),
    Column("note", lambda tier: tier["note"], drop=2, text=True),
)
_FROM_SETTINGS = (
    Column("name", lambda each: each["name"]),
    Column("type", lambda each: each["type"]),
    Column("node", lambda each: each["node"]),
    Column("budget", lambda each: show.size(each["budget_bytes"]), right=True),
    Column("stored", lambda each: show.size(each["stored_bytes"]), right=True),
    Column("blocks", lambda each: f"{each['blocks']:,}", drop=1, right=True),
    Column("unspilled", lambda each: show.unspilled(each), drop=2, right=True),
    Column("tier", lambda each: show.tier_state(each), text=True),
)
_ON_NODES = (
    Column("node", lambda each: each["node"]),
    Column("state", lambda each: each["state"]),
    Column("generation", lambda each: each["generation"], drop=2, right=True),
    Column("stored", lambda each: each["stored"], right=True),
    Column("blocks", lambda each: each["blocks"], drop=1, right=True),
    Column("unspilled", lambda each: each["unspilled"], drop=4, right=True),
    Column("encodings", lambda each: each["encodings"], drop=3),
    Column("tier", lambda each: each["tier"], text=True),
)
_TIERS = Resource("/api/v1/tiers", "tier", _COLUMNS, editable=_FIELDS)


@click.group(cls=Noun)
def tiers() -> None:
    """Manage tiers, stores behind the memory of nodes. `check`, `repair` and `usage` open directories that no node
    uses."""


@tiers.command("list")
@click.option("--type", "kind", metavar="TYPE", help="Only tiers of this type.")
@owner_option
@paged
@url_option
@output_option
@watch_option
def list_tiers(url: str | None, kind: str | None, managed_by: str | None, output: Output, **page: Any) -> None:
    """List all tiers: those of records, and those of the settings of nodes."""
    answer = every(url, _TIERS.path, {"type": kind, "managed_by": managed_by}, **page)
    if output.listing("Tiers", answer, _COLUMNS, "name"):
        for line in dict.fromkeys(line for tier in answer["items"] for line in _remarks(tier)):
            say(line)
        if settings := list(_from_settings(answer)):
            say()
            table(f"Tiers of settings ({len(settings)})", _FROM_SETTINGS, settings, wide=output.wide)


def _from_settings(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the tiers of the settings of nodes, one for each node."""
    for tier in answer.get("from_settings", ()):  # an older server does not report them
        for node, stats in sorted(tier["stats"].items()):
            yield {"node": node, **stats}


def _unspilled(tier: Mapping[str, Any]) -> str:
    """Return the bytes that are still to be copied to a tier, on all nodes."""
    nbytes = tier.get("unspilled_bytes", 0)  # an older server does not report it
    return show.size(nbytes) if nbytes else "-"


@tiers.command("get")
@_TIERS.argument
@output_option
@url_option
def get_tier(name: str, url: str | None, output: Output) -> None:
    """Show one tier, and its state on each node."""
    tier = call(url, "GET", _TIERS.of(name))
    output.record(tier, _COLUMNS, name)
    if output.format in ("table", "wide"):
        say()
        table("Nodes", _ON_NODES, list(_on_nodes(tier)), wide=output.wide)
        for line in (*_remarks(tier), *(() if output.wide else _not_served(tier))):
            say(line)


def _on_nodes(tier: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Yield the cells of each node that the tier selects, or that has it open."""
    nodes, stats = tier["status"]["nodes"], tier["stats"]
    for node in sorted({*nodes, *stats}):
        at, tier_stats = nodes.get(node), stats.get(node)
        generation = None if at is None else at["observed_generation"]
        yield {
            "node": node,
            "state": "not selected" if at is None else at["state"],
            "generation": "-" if generation is None else str(generation),
            "stored": "-" if tier_stats is None else show.size(tier_stats["stored_bytes"]),
            "blocks": "-" if tier_stats is None else f"{tier_stats['blocks']:,}",
            "unspilled": "-" if tier_stats is None else show.unspilled(tier_stats),
            "encodings": "-" if tier_stats is None else show.encodings(tier_stats) or "-",
            "tier": _service(tier_stats),
        }


def _service(stats: Mapping[str, Any] | None) -> str:
    if stats is None:
        return "not open"
    return show.tier_state(stats)


def _remarks(tier: Mapping[str, Any]) -> list[str]:
    """Return a line if the tier selects no node, and one for each fault of a node that refuses the current tiers."""
    nowhere = show.selects_no_node(tier)
    return [
        *([f"  {tier['name']}: {nowhere}"] if nowhere else []),
        *(
            f"  {node} refused tiers: {fault['path']}: {fault['message']}"
            for node, faults in sorted(tier["faults"].items())
            for fault in faults
        ),
    ]


def _not_served(tier: Mapping[str, Any]) -> list[str]:
    """Return a line for each node on which the tier does not serve, with the whole reason: the table shortens it."""
    return [
        f"  {node}: {show.tier_state(stats)}"
        for node, stats in sorted(tier["stats"].items())
        if not stats["serves"] and stats["reason"]
    ]


def _nodes_in(tier: Mapping[str, Any], state: str) -> list[str]:
    """Return the nodes that have applied the record and whose tier is in this state."""
    return sorted(
        node
        for node, stats in tier["stats"].items()
        if stats.get("state") == state  # a node of an older release does not report it
        and tier["status"]["nodes"].get(node, {}).get("state") == "in_sync"
    )


def _parameters(text: str | None) -> dict[str, Any] | None:
    """Return the parameters of the option. Raises UsageError."""
    if text is None:
        return None
    from app.services.documents.document_text import DocumentSyntaxError, read  # YAML takes time to import

    try:
        found = read(text)
    except DocumentSyntaxError as error:
        raise click.UsageError(f"--parameters: {error}") from None
    if not found:
        return {}
    if len(found) > 1 or not isinstance(found[0], dict):
        raise click.UsageError("--parameters: expected a map, such as 'directories: [/mnt/nvme0/larder]'")
    return found[0]


@_TIERS.argument
@field_options(TierPut, [name for name in _FIELDS if name != "parameters"])
@click.option(
    "--parameters",
    metavar="YAML",
    help="Parameters of the type, as a map in YAML or JSON; secrets as references env:NAME or file:/path.",
)
@click.option("--dry-run", is_flag=True, help="Only show how every node would respond.")
@url_option
@wait_option
@output_option
def set_tier(
    name: str, parameters: str | None, dry_run: bool, url: str | None, wait: str | None, output: Output, **options: Any
) -> None:
    changed = required(given_fields(TierPut, {**options, "parameters": _parameters(parameters)}))
    current = _TIERS.current(url, name)
    body = {**put_fields(TierPut, current or {}), **changed}
    if dry_run:
        tried = call(url, "POST", "/api/v1/actions/dry-run", {"tiers": {name: body}})
        show_dry_run(tried, "tier", body.get("selector"), output)
        return
    answer = call(url, "PUT", _TIERS.of(name), body, {"wait": wait}, state_headers(current))
    if not output.data(answer, name):
        say(
            f"{name}: {answer['type']}, budget {show.size(answer['budget_bytes'])}, spill {answer['spill']}, "
            f"order {answer['order']}; {show.applied(answer)}"
        )
        for line in (*_remarks(answer), *_not_served(answer)):
            say(line)
        if _nodes_in(answer, "opening"):
            say(f"to see whether the nodes could open it: larder tiers get {name}")
    if failed := _nodes_in(answer, "not opened"):
        raise click.ClickException(
            f"tier {name} is not open on {', '.join(failed)}, which tries again; see larder tiers get {name}"
        )


add_set(
    tiers,
    set_tier,
    about="Set a tier. Omitted options keep the values of the record; a new record gets the defaults.",
    create="Create a tier.",
)
add_edit(tiers, _TIERS, waits=True)


@tiers.command("delete")
@_TIERS.argument
@click.option("--dry-run", is_flag=True, help="Only show how many blocks could no longer be loaded.")
@unasked_option
@url_option
@wait_option
@output_option
def delete_tier(name: str, dry_run: bool, url: str | None, wait: str | None, output: Output) -> None:
    """Delete a tier. Its nodes close it and no longer load its blocks, which stay on disks and servers.

    To keep the blocks in use, drain the tier before: `larder tiers set NAME --spill drain`."""
    if dry_run:
        tier = call(url, "GET", _TIERS.of(name))
        if not output.data(tier, name):
            cached = f"{tier['blocks']:,} blocks ({show.size(tier['stored_bytes'])})"
            say(f"{name}: {cached} that it holds could no longer be loaded")
            if tier["blocks"]:
                say(f"to keep them in use, drain it first: larder tiers set {name} --spill drain")
        return
    answer = call(url, "DELETE", _TIERS.of(name), None, {"wait": wait}, ANY_STATE)
    if not output.data(answer, name):
        say(f"{name}: tier deleted; {answer['message']}")


add_describe(tiers, _TIERS)
for offline in (check, repair, usage):
    tiers.add_command(offline)
