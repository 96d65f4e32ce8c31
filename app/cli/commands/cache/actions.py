"""`larder lookup`, `locate`, `invalidate`, `demote`, `clear`, `verify`, `move` and `compress`: actions on cached
blocks."""

import sys
import time
from typing import IO, Any

import click

from app.cli.support.api.client import call, segment
from app.cli.support.api.short import whole
from app.cli.support.exit_codes import check_nodes
from app.cli.support.keys import key_fields, key_options, seconds, text_fields, text_options, together
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, agrees, say, table
from app.cli.support.resources.options import Output, check_combined, request_options

VERIFY_WAIT = "20s"
_SOURCES = ("tokens", "keys", "text", "messages")


def _tiers(item: dict[str, Any]) -> str:
    return ", ".join(f"{count} {tier}" for tier, count in item["hit_tokens"].items()) or "0"


def _checked(name: str, field: str) -> Column:
    return Column(name, lambda item: str(item["verification"].get(field, "-")), right=True)


_NODE = Column("node", lambda item: item["node"])
_LOOKUPS = (
    _NODE,
    Column("hit tokens", _tiers, right=True),
    Column("hit chunks", lambda item: f"{sum(item['hit_chunks'].values())}/{item['chunks']}", right=True),
    Column("resident", lambda item: str(sum(item["resident_chunks"].values())), right=True),
    Column("spaces", lambda item: str(len(item["spaces"])), right=True),
)
_PLACES = (
    _NODE,
    Column("hit tokens", _tiers, right=True),
    Column("engine socket", lambda item: item["engine_socket"], text=True),
    Column("control", lambda item: item["control_url"], text=True),
)
_VERIFICATIONS = (
    _NODE,
    _checked("blocks", "blocks"),
    _checked("checked", "checked"),
    _checked("corrupt", "corrupt"),
    _checked("no checksum", "without_checksum"),
    _checked("gone", "gone"),
    _checked("unread", "unread"),
)

node_option = click.option("--node", "nodes", metavar="NAME", multiple=True, help="Only this node; may be repeated.")
_scope_options = together(
    click.option("--tenant", help="Only this tenant; `_default` for the empty salt."),
    click.option("--model", help="Only this model."),
    click.option("--space", help="Only this space: its 32 hex digits, or the first 8 or more."),
    key_options,
    text_options,
    node_option,
    request_options,
)
_lookup_options = together(
    click.option("--model", required=True, help="Model name, as engines attach with it."),
    click.option("--tenant", help="Tenant as shown; default `_default`."),
    key_options,
    text_options,
    node_option,
    request_options,
)
_yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command()
@_lookup_options
def lookup(**options: Any) -> None:
    """Show how many tokens of a prefix each node would serve now, by tier."""
    url, output = options.pop("url"), options.pop("output")
    answer = call(url, "POST", "/api/v1/actions/lookup", _scope(**options))
    if not output.data(answer, [item["node"] for item in answer["items"]]):
        items = [{**item, "chunks": answer["chunks"]} for item in answer["items"] if not item["error"]]
        table(_title(answer), _LOOKUPS, items, wide=output.wide)
    check_nodes(answer["items"])


@click.command()
@_lookup_options
def locate(**options: Any) -> None:
    """Show which nodes hold the start of a prefix, best first, and where engines reach them."""
    url, output = options.pop("url"), options.pop("output")
    answer = call(url, "POST", "/api/v1/actions/locate", _scope(**options))
    if not output.data(answer, [item["node"] for item in answer["items"]]):
        table(_title(answer), _PLACES, answer["items"], wide=output.wide)
        if not answer["items"] and not answer["failed_nodes"]:
            say("no node holds the start of this prefix for this tenant and model")
    check_nodes(answer["failed_nodes"])


@click.command()
@_scope_options
@_yes_option
def invalidate(**options: Any) -> None:
    """Make the blocks that match all options unreadable at once. A prefix (tokens or text with --tenant and --model, or
    --keys-file) includes all blocks after it. Permanent pins keep their blocks."""
    _act("invalidate", **options)


@click.command()
@_scope_options
@_yes_option
def demote(**options: Any) -> None:
    """Make the blocks that match all options the first eviction victims until they are used again."""
    _act("demote", **options)


@click.command()
@click.option("--permanent", is_flag=True, help="Drop the blocks of permanent pins too.")
@node_option
@_yes_option
@request_options
def clear(permanent: bool, nodes: tuple[str, ...], yes: bool, url: str | None, output: Output) -> None:
    """Drop all cached blocks. Permanent pins keep their blocks unless --permanent is given."""
    body = {"confirm": True, "permanent": permanent, **aimed(nodes)}
    if not yes:
        scope = "everything, including blocks under permanent pins," if permanent else "everything"
        _confirm(f"drop {scope} on {_where(nodes)}{_about(url, 'clear', body)}?")
    _print_result("clear", call(url, "POST", "/api/v1/actions/clear", body), output)


@click.command()
@_scope_options
def verify(url: str | None, output: Output, **options: Any) -> None:
    """Compare the blocks that match all options, or all blocks, with their checksums. Corrupt blocks become misses. The
    command waits for the end."""
    _whole_space(url, options)
    answer = call(url, "POST", "/api/v1/actions/verify", _scope(**options), {"wait": VERIFY_WAIT})
    items = [_ended(url, item, "verify", "verification", "checked") for item in answer["items"]]
    if not output.data({**answer, "items": items}, [item["node"] for item in items]):
        table("Verified", _VERIFICATIONS, [item for item in items if not item["error"]], wide=output.wide)
    check_nodes(items)


@click.command()
@_scope_options
@click.option("--to", "tier", metavar="TIER", help="Tier, or `memory`. Required without --cancel.")
@click.option(
    "--from", "source", default="memory", show_default=True, metavar="TIER", help="Tier to copy from, or `memory`."
)
@click.option(
    "--release", is_flag=True, help="Remove the blocks from memory, or from the tier of --from, once --to holds them."
)
@click.option(
    "--deadline", default="5m", show_default=True, metavar="TIME", help="Time after which the rest stays where it is."
)
@click.option("--dry-run", is_flag=True, help="Only count the blocks.")
@click.option(
    "--cancel",
    type=click.IntRange(0),
    metavar="NUMBER",
    help="Cancel the move with this number on the node of --node instead. What has been moved stays moved.",
)
@_yes_option
def move(
    tier: str | None,
    source: str,
    release: bool,
    deadline: str,
    dry_run: bool,
    cancel: int | None,
    yes: bool,
    url: str | None,
    output: Output,
    **options: Any,
) -> None:
    """Copy the blocks that match all options to a tier, from memory or another tier (`--from`), or load them into
    memory (`--to memory`). A prefix includes all blocks after it. The command shows the number of the move, for
    `--cancel`, and waits for the end."""
    if cancel is not None:
        check_combined("--cancel", "cancel", "nodes", "yes")
        _cancel_move(cancel, options["nodes"], url, output)
        return
    if tier is None:
        raise click.UsageError("expected --to TIER, or --cancel NUMBER")
    _whole_space(url, options)
    nodes = options["nodes"]
    body = {
        **_scope(**options),
        "tier": tier,
        "source": source,
        "release": release,
        "deadline_s": seconds("--deadline", deadline),
    }
    _check_narrow(body)
    if not yes and not dry_run:
        route = f"to {tier}" if source == "memory" else f"from {source} to {tier}"
        _confirm(f"move all blocks of {_about_scope(body)} {route} on {_where(nodes)}{_about(url, 'move', body)}?")
    _run_move("move", "moved", url, {**body, "dry_run": dry_run}, output)


def _cancel_move(number: int, nodes: tuple[str, ...], url: str | None, output: Output) -> None:
    """Cancel a move, wait for its end, and print the result."""
    if len(nodes) != 1:
        raise click.UsageError("--cancel: expected one --node")
    path = f"/api/v1/actions/move/{segment(nodes[0])}/{number}"
    item = _ended(url, call(url, "DELETE", path, None, {"wait": VERIFY_WAIT}), "move", "move", "moved_blocks")
    if output.data(item, item["node"]):
        return
    state = item["move"]
    say(f"{item['node']}: {_moved(state, 'moved')}")
    if not state["cancelled"]:
        say(f"move {number} had ended before")


@click.command()
@click.argument("tier")
@_scope_options
@click.option(
    "--deadline", default="5m", show_default=True, metavar="TIME", help="Time after which the rest stays as it is."
)
@click.option("--dry-run", is_flag=True, help="Only count the blocks.")
@_yes_option
def compress(
    tier: str, deadline: str, dry_run: bool, yes: bool, url: str | None, output: Output, **options: Any
) -> None:
    """Encode the blocks of TIER that match all options, or all of them, again with the `compress` of its record. The
    command waits for the end."""
    _whole_space(url, options)
    nodes = options["nodes"]
    body = {**_scope(**options), "tier": tier, "deadline_s": seconds("--deadline", deadline)}
    if not yes and not dry_run:
        scope = _about_scope(body)
        blocks = f"all blocks of {scope} in {tier}" if scope else f"all blocks in {tier}"
        _confirm(f"encode {blocks} again on {_where(nodes)}{_about(url, 'compress', body)}?")
    _run_move("compress", "encoded", url, {**body, "dry_run": dry_run}, output)


def _run_move(verb: str, done: str, url: str | None, body: dict[str, Any], output: Output) -> None:
    """Start an action that nodes carry out as a move, wait for its end, and print the results."""
    answer = call(url, "POST", f"/api/v1/actions/{verb}", body, {"wait": VERIFY_WAIT})
    items = [_ended(url, item, "move", "move", "moved_blocks") for item in answer["items"]]
    if not output.data({**answer, "items": items}, [item["node"] for item in items]):
        for item in items:
            say(item["error"] or f"{item['node']}: {_moved(item['move'], done)}")
    if any(item["error"] for item in items):
        raise click.ClickException(f"not every node {done} its blocks; the errors above say why")


def _moved(state: dict[str, Any], done: str) -> str:
    """Return the result of a move on one node as text."""
    words = ["cancelled"] if state.get("cancelled") else []  # an older server does not say it
    words.append(_matched(state))
    if not state["dry_run"]:
        words.append(f"{state['moved_blocks']:,} {done} ({show.size(state['moved_bytes'])})")
        words += [f"{state['present_blocks']:,} already there"] if state["present_blocks"] else []
        words += [f"{state['released_blocks']:,} released"] if state["released_blocks"] else []
        words += [f"{count:,} refused ({reason})" for reason, count in state["refused"].items()]
    return ", ".join(words)


def _ended(url: str | None, item: dict[str, Any], verb: str, field: str, counted: str) -> dict[str, Any]:
    """Wait for the end of a node's verification or move, and return it."""
    while item[field] is not None and item[field]["ended_at"] is None:
        state = item[field]
        progress = f"{state[counted]} of {state['blocks']} blocks"
        say(f"{item['node']}: {progress}, {field} {state['number']}", err=True)
        time.sleep(1.0)
        item = call(url, "GET", f"/api/v1/actions/{verb}/{segment(item['node'])}/{state['number']}")
    return item


def _confirm(question: str) -> None:
    """Ask for confirmation. Raises Abort if the user declines, UsageError without a terminal."""
    try:
        agreed = agrees(question)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("not confirmed: without a terminal, pass --yes") from None
    if not agreed:
        raise click.Abort


def _scope(
    *,
    nodes: tuple[str, ...],
    tokens: str | None,
    tokens_file: IO[str] | None,
    keys_file: IO[str] | None,
    chunk_tokens: int | None,
    text: str | None,
    text_file: IO[str] | None,
    messages: IO[str] | None,
    generation_prompt: bool,
    **named: str | None,
) -> dict[str, Any]:
    """Return the body of the request. Raises UsageError."""
    sources = (tokens, tokens_file, keys_file, text, text_file, messages)
    if sum(source is not None for source in sources) > 1:
        raise click.UsageError(
            "expected at most one of --tokens, --tokens-file, --keys-file, --text, --text-file and --messages"
        )
    body: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    body |= key_fields(tokens, tokens_file, keys_file, chunk_tokens)
    body |= text_fields(text, text_file, messages, generation_prompt)
    return body | aimed(nodes)


def aimed(nodes: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields of a request that select nodes."""
    if len(nodes) == 1:
        return {"node": nodes[0]}
    return {"nodes": list(nodes)} if nodes else {}


def _matched(node: dict[str, Any]) -> str:
    """Return the number and the size of the matching blocks as text."""
    if node["blocks"] is None:
        return "unknown number of blocks"
    return f"{node['blocks']:,} block{'' if node['blocks'] == 1 else 's'} ({show.size(node['bytes'])})"


def _about(url: str | None, verb: str, body: dict[str, Any]) -> str:
    """Return the number of blocks that the action would affect now, for the confirmation prompt. Nodes that do not
    report this number are counted separately."""
    answer = call(url, "POST", f"/api/v1/actions/{verb}", {**body, "dry_run": True})
    sweeps = [node.get("move", node) for node in answer["items"]]
    counted = [node for node in sweeps if node is not None and node["blocks"] is not None]
    if not counted:
        return ""
    silent = len(answer["items"]) - len(counted)
    unreported = f", and those of {silent} node{'' if silent == 1 else 's'} that did not report them" if silent else ""
    return f": {_matched(answer)} now{unreported}"


def _where(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes) if nodes else "every connected node"


def _act(verb: str, yes: bool, url: str | None, output: Output, nodes: tuple[str, ...], **options: Any) -> None:
    _whole_space(url, options)
    body = _scope(nodes=nodes, **options)
    _check_narrow(body)
    if not yes:
        _confirm(f"{verb} all blocks of {_about_scope(body)} on {_where(nodes)}{_about(url, verb, body)}?")
    _print_result(verb, call(url, "POST", f"/api/v1/actions/{verb}", body), output)


def _check_narrow(body: dict[str, Any]) -> None:
    """Raise UsageError if no field narrows the scope of a request."""
    if not any(name in body for name in ("tenant", "model", "space", *_SOURCES)):
        raise click.UsageError("expected at least one of --tenant, --model, --space and a prefix")


def _about_scope(body: dict[str, Any]) -> str:
    """Return the scope of a request as text."""
    words = [f"{name} {body[name]}" for name in ("tenant", "model", "space") if name in body]
    words += [f"a prefix of {len(body[name])} {name}" for name in _SOURCES if name in body and name != "text"]
    words += ["a text"] if "text" in body else []
    return ", ".join(words)


def _whole_space(url: str | None, options: dict[str, Any]) -> None:
    if options["space"] is not None:
        options["space"] = whole(url, "space", options["space"])


def _print_result(verb: str, answer: dict[str, Any], output: Output) -> None:
    if not output.data(answer, [node["node"] for node in answer["items"]]):
        for node in answer["items"]:
            say(node["error"] or f"{node['node']}: {_matched(node)}, sweep {node['sweep']}")
        if not answer["blocks"] and all(node["blocks"] == 0 for node in answer["items"]):
            say(f"0 blocks match: there is nothing to {verb}")
    if any(node["error"] for node in answer["items"]):
        raise click.ClickException(f"not every node responded: run {verb} again later")


def _title(answer: dict[str, Any]) -> str:
    used = answer["tokenizer"]
    by = "" if used is None else f", by the tokenizer {used['name']}"
    return f"{show.plural(answer['chunks'], 'chunk')} of {show.plural(answer['chunk_tokens'], 'token')}{by}"
