"""`larder lookup`, `locate`, `invalidate`, `demote`, `clear` and `verify`: actions on cached blocks."""

import sys
import time
from typing import IO, Any

import click

from app.cli.support import show
from app.cli.support.client import call, segment, url_option
from app.cli.support.keys import F, key_fields, key_options, text_fields, text_options
from app.cli.support.output import Output, output_option
from app.cli.support.short import whole
from app.cli.support.terminal import agrees, say

VERIFY_WAIT = "20s"
_SOURCES = ("tokens", "keys", "text", "messages")

node_option = click.option(
    "--node", "nodes", metavar="NAME", multiple=True, help="Act on this node only; may be repeated."
)


def _source_options(command: F) -> F:
    return key_options(text_options(command))


def _scope_options(command: F) -> F:
    for option in (
        output_option,
        url_option,
        node_option,
        _source_options,
        click.option("--space", help="One space: its 32 hex digits, or the first 8 or more."),
        click.option("--model", help="All spaces of a model."),
        click.option("--tenant", help="Tenant as shown; `_default` for the empty salt."),
    ):
        command = option(command)
    return command


def _lookup_options(command: F) -> F:
    for option in (
        output_option,
        url_option,
        node_option,
        _source_options,
        click.option("--tenant", help="Tenant as shown; default `_default`."),
        click.option("--model", required=True, help="Model name, as engines attach with it."),
    ):
        command = option(command)
    return command


_yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


@click.command()
@_lookup_options
def lookup(**options: Any) -> None:
    """Show how many tokens of a prefix each node would serve now, by tier."""
    url, output = options.pop("url"), options.pop("output")
    answer = call(url, "POST", "/api/v1/actions/lookup", _asked(**options))
    if output.data(answer, [item["node"] for item in answer["items"]]):
        return
    rows = [
        [
            item["node"],
            _tiers(item["hit_tokens"]),
            f"{sum(item['hit_chunks'].values())}/{answer['chunks']}",
            str(sum(item["resident_chunks"].values())),
            str(len(item["spaces"])),
            item["error"] or "",
        ]
        for item in answer["items"]
    ]
    columns = ["node", "hit tokens ", "hit chunks ", "resident ", "spaces ", "error"]
    show.table(_title(answer), columns, rows, wide=output.wide)


@click.command()
@_lookup_options
def locate(**options: Any) -> None:
    """Show which nodes hold the start of a prefix, best first, and where engines reach them."""
    url, output = options.pop("url"), options.pop("output")
    answer = call(url, "POST", "/api/v1/actions/locate", _asked(**options))
    if output.data(answer, [item["node"] for item in answer["items"]]):
        return
    rows = [
        [place["node"], _tiers(place["hit_tokens"]), place["engine_socket"], place["control_url"]]
        for place in answer["items"]
    ]
    show.table(
        _title(answer),
        ["node", "hit tokens ", "engine socket", "control"],
        rows,
        text=["engine socket"],
        wide=output.wide,
    )
    if not answer["items"]:
        say("no node holds the start of this prefix for this tenant and model")
    for silent in answer["silent"]:
        say(f"{silent['node']}: {silent['error']}")


@click.command()
@_scope_options
@_yes_option
def invalidate(**options: Any) -> None:
    """Make the blocks that match all given options unreadable at once. A prefix (tokens or text with --tenant and
    --model, or --keys-file) includes everything stored after it. Permanent pins keep their blocks."""
    _act("invalidate", **options)


@click.command()
@_scope_options
@_yes_option
def demote(**options: Any) -> None:
    """Make the blocks that match all given options the first eviction victims until they are used again."""
    _act("demote", **options)


@click.command()
@click.option("--permanent", is_flag=True, help="Drop the blocks of permanent pins too.")
@node_option
@_yes_option
@url_option
@output_option
def clear(permanent: bool, nodes: tuple[str, ...], yes: bool, url: str | None, output: Output) -> None:
    """Drop all cached blocks. Permanent pins keep their blocks unless --permanent is given."""
    body = {"confirm": True, "permanent": permanent, **_aimed(nodes)}
    if not yes:
        what = "everything, also under permanent pins," if permanent else "everything"
        _ask(f"drop {what} on {_where(nodes)}{_about(url, 'clear', body)}?")
    _told("clear", call(url, "POST", "/api/v1/actions/clear", body), output)


@click.command()
@_scope_options
def verify(url: str | None, output: Output, **options: Any) -> None:
    """Compare the blocks that match all given options with their checksums; all blocks without options. Corrupt blocks
    become misses. The command waits for the end."""
    _whole_space(url, options)
    answer = call(url, "POST", "/api/v1/actions/verify", _asked(**options), {"wait": VERIFY_WAIT})
    items = [_ended(url, item) for item in answer["items"]]
    if not output.data({**answer, "items": items}, [item["node"] for item in items]):
        rows = [
            [
                item["node"],
                *(
                    str((item["verification"] or {}).get(field, "-"))
                    for field in ("blocks", "checked", "corrupt", "without_checksum", "gone", "unread")
                ),
                item["error"] or "",
            ]
            for item in items
        ]
        columns = ["node", "blocks ", "checked ", "corrupt ", "no checksum ", "gone ", "unread ", "error"]
        show.table("Verified", columns, rows, wide=output.wide)
    if any(item["error"] for item in items):
        raise click.ClickException("not every node did it: verify again when they can")


def _ended(url: str | None, item: dict[str, Any]) -> dict[str, Any]:
    """Wait for the end of a node's verification, and return it."""
    while item["verification"] is not None and item["verification"]["ended_at"] is None:
        state = item["verification"]
        say(f"{item['node']}: {state['checked']} of {state['blocks']} blocks checked", err=True)
        time.sleep(1.0)
        item = call(url, "GET", f"/api/v1/actions/verify/{segment(item['node'])}/{state['number']}")
    return item


def _ask(question: str) -> None:
    """Ask for confirmation. Raises Abort if the user declines, UsageError without a terminal."""
    try:
        agreed = agrees(question)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("nobody said yes: without a terminal, --yes is needed") from None
    if not agreed:
        raise click.Abort


def _asked(
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
    return body | _aimed(nodes)


def _aimed(nodes: tuple[str, ...]) -> dict[str, Any]:
    if len(nodes) == 1:
        return {"node": nodes[0]}
    return {"nodes": list(nodes)} if nodes else {}


def _matched(node: dict[str, Any]) -> str:
    """Return the number and the size of the matching blocks as text."""
    if node["blocks"] is None:
        return "blocks not told"
    return f"{node['blocks']:,} block{'' if node['blocks'] == 1 else 's'} ({show.size(node['bytes'])})"


def _about(url: str | None, verb: str, body: dict[str, Any]) -> str:
    """Return the number of blocks that the action would affect now, for the confirmation prompt. Nodes that do not
    report it are counted separately."""
    answer = call(url, "POST", f"/api/v1/actions/{verb}", {**body, "dry_run": True})
    told = [node for node in answer["items"] if node["blocks"] is not None]
    if not told:
        return ""
    silent = len(answer["items"]) - len(told)
    more = f", and what {silent} node{'' if silent == 1 else 's'} did not tell" if silent else ""
    return f": {_matched(answer)} now{more}"


def _where(nodes: tuple[str, ...]) -> str:
    return ", ".join(nodes) if nodes else "every connected node"


def _act(
    verb: str, yes: bool, url: str | None, output: Output, nodes: tuple[str, ...], **options: Any
) -> None:
    _whole_space(url, options)
    body = _asked(nodes=nodes, **options)
    named = [f"{name} {body[name]}" for name in ("tenant", "model", "space") if name in body]
    given = [name for name in _SOURCES if name in body]
    if not named and not given:
        raise click.UsageError("expected at least one of --tenant, --model, --space and a prefix")
    if not yes:
        words = [*named, *(f"a prefix of {len(body[name])} {name}" for name in given if name != "text")]
        words += ["a text"] if "text" in given else []
        _ask(f"{verb} all blocks of {', '.join(words)} on {_where(nodes)}{_about(url, verb, body)}?")
    _told(verb, call(url, "POST", f"/api/v1/actions/{verb}", body), output)


def _whole_space(url: str | None, options: dict[str, Any]) -> None:
    if options["space"] is not None:
        options["space"] = whole(url, "space", options["space"])


def _told(verb: str, answer: dict[str, Any], output: Output) -> None:
    if not output.data(answer, [node["node"] for node in answer["items"]]):
        for node in answer["items"]:
            say(f"{node['node']}: {node['error'] or _matched(node) + ', sweep ' + str(node['sweep'])}")
        if not answer["blocks"] and all(node["blocks"] == 0 for node in answer["items"]):
            say(f"0 blocks match: there is nothing to {verb}")
    if any(node["error"] for node in answer["items"]):
        raise click.ClickException(f"not every node did it: {verb} again when they can")


def _title(answer: dict[str, Any]) -> str:
    used = answer["tokenizer"]
    by = "" if used is None else f", by the tokenizer {used['name']}"
    return f"{show.plural(answer['chunks'], 'chunk')} of {show.plural(answer['chunk_tokens'], 'token')}{by}"


def _tiers(tokens: dict[str, int]) -> str:
    return ", ".join(f"{count} {tier}" for tier, count in tokens.items()) or "0"
