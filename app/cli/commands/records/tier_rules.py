"""Options, checks and output of the commands on tiers that no field of the record gives."""

from collections.abc import Iterator, Mapping
from typing import Any

import click
import msgspec

from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say, table
from app.cli.support.resources.fields import given_fields
from app.cli.support.resources.options import Output

_FROM_SETTINGS = (
    Column("name", lambda tier: tier["name"]),
    Column("type", lambda tier: tier["type"]),
    Column("node", lambda tier: tier["node"]),
    Column("budget", lambda tier: show.size(tier["budget_bytes"]), right=True),
    Column("stored", lambda tier: show.size(tier["stored_bytes"]), right=True),
    Column("blocks", lambda tier: f"{tier['blocks']:,}", drop=1, right=True),
    Column("unspilled", show.unspilled, drop=2, right=True),
    Column("tier", show.tier_state, text=True),
)
_ON_NODES = (
    Column("node", lambda row: row["node"]),
    Column("state", lambda row: row["state"]),
    Column("generation", lambda row: row["generation"], drop=2, right=True),
    Column("stored", lambda row: row["stored"], right=True),
    Column("blocks", lambda row: row["blocks"], drop=1, right=True),
    Column("unspilled", lambda row: row["unspilled"], drop=4, right=True),
    Column("encodings", lambda row: row["encodings"], drop=3),
    Column("tier", lambda row: row["tier"], text=True),
)


def unspilled(tier: Mapping[str, Any]) -> str:
    """Return the bytes that are still to be copied to a tier, on all nodes."""
    nbytes = tier.get("unspilled_bytes", 0)  # an older server does not report it
    return show.size(nbytes) if nbytes else "-"


def fields(put: type[msgspec.Struct], options: dict[str, Any]) -> dict[str, Any]:
    """Return the given fields, with the parameters as a map. Raises UsageError."""
    text = options.pop("parameters")
    changed = given_fields(put, options)
    return changed if text is None else {**changed, "parameters": _parameters(text)}


def _parameters(text: str) -> dict[str, Any]:
    from app.services.documents.document_text import DocumentSyntaxError, read  # YAML takes time to import

    try:
        documents = read(text)
    except DocumentSyntaxError as error:
        raise click.UsageError(f"--parameters: {error}") from None
    if not documents:
        return {}
    if len(documents) > 1 or not isinstance(documents[0], dict):
        raise click.UsageError("--parameters: expected a map, such as 'directories: [/mnt/nvme0/larder]'")
    return documents[0]


def saved(tier: Mapping[str, Any], _changed: dict[str, Any], _kept: str) -> Iterator[str]:
    """Yield what a tier is, and what is wrong with it."""
    yield (
        f"{tier['name']}: {tier['type']}, budget {show.size(tier['budget_bytes'])}, spill {tier['spill']}, "
        f"order {tier['order']}; {show.applied(tier)}"
    )
    yield from _remarks(tier)
    yield from _not_served(tier)
    if _nodes_in(tier, "opening"):
        yield f"to see whether the nodes could open it: larder tiers get {tier['name']}"


def fault(tier: Mapping[str, Any]) -> str:
    """Return which nodes could not open a tier."""
    failed, name = _nodes_in(tier, "not opened"), tier["name"]
    if not failed:
        return ""
    return f"tier {name} is not open on {', '.join(failed)}, which tries again; see larder tiers get {name}"


def lost(tier: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a deletion of the record would lose."""
    blocks = f"{tier['blocks']:,} blocks ({show.size(tier['stored_bytes'])})"
    yield f"{tier['name']}: {blocks} that it holds could no longer be loaded"
    if tier["blocks"]:
        yield f"to keep them in use, drain it first: larder tiers set {tier['name']} --spill drain"


def print_listed(answer: Mapping[str, Any], output: Output) -> None:
    """Print what is wrong with the tiers, and the tiers of the settings of nodes, one for each node."""
    for line in dict.fromkeys(line for tier in answer["items"] for line in _remarks(tier)):
        say(line)
    settings = [
        {"node": node, **stats}
        for tier in answer.get("from_settings", ())  # an older server does not report them
        for node, stats in sorted(tier["stats"].items())
    ]
    if settings:
        say()
        table(f"Tiers of settings ({len(settings)})", _FROM_SETTINGS, settings, wide=output.wide)


def print_nodes(tier: Mapping[str, Any], output: Output) -> None:
    """Print the state of a tier on each node that it selects, or that has it open."""
    say()
    table("Nodes", _ON_NODES, list(_on_nodes(tier)), wide=output.wide)
    for line in (*_remarks(tier), *(() if output.wide else _not_served(tier))):
        say(line)


def _on_nodes(tier: Mapping[str, Any]) -> Iterator[dict[str, str]]:
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
            "tier": "not open" if tier_stats is None else show.tier_state(tier_stats),
        }


def _remarks(tier: Mapping[str, Any]) -> list[str]:
    """Return a line if the tier selects no node, and one for each fault of a node that refuses the current tiers."""
    no_node_message = show.selects_no_node(tier)
    return [
        *([f"  {tier['name']}: {no_node_message}"] if no_node_message else []),
        *(
            f"  {node} refused tiers: {refusal['path']}: {refusal['message']}"
            for node, refusals in sorted(tier["faults"].items())
            for refusal in refusals
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
