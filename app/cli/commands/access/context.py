"""`larder context …`: name servers, and choose the one that commands address."""

import sys
from dataclasses import replace

import click

from app.cli.support.api.client import checked_url
from app.cli.support.credentials import contexts
from app.cli.support.credentials.contexts import Context
from app.cli.support.exit_codes import NothingFound
from app.cli.support.printing.terminal import Column, say, table
from app.cli.support.resources.options import Noun, Output, output_option

_COLUMNS = (
    Column("current", lambda c: "*" if c["current"] else ""),
    Column("name", lambda c: c["name"]),
    Column("url", lambda c: c["url"]),
    Column("token", lambda c: "yes" if c["has_token"] else "no"),
)


@click.group(cls=Noun)
def context() -> None:
    """Manage contexts: Larder servers by name, each with its URL and token.

    The server is that of --url or --context, else of LARDER_URL, the current context, or the settings on this machine.
    The token is that of --context, else of LARDER_TOKEN, the current context, or 'larder login'.
    """


@context.command("list")
@output_option
def list_contexts(output: Output) -> None:
    """List the contexts, without their tokens."""
    stored = contexts.load()
    items = [
        {"name": name, "url": entry.url, "has_token": bool(entry.token), "current": name == stored.current}
        for name, entry in sorted(stored.contexts.items())
    ]
    if not output.data(items, [str(item["name"]) for item in items]):
        table(f"Contexts ({len(items)})", _COLUMNS, items, wide=output.wide)


@context.command("add")
@click.argument("name")
@click.option("--url", required=True, help="URL of the API, such as http://127.0.0.1:8470.")
@click.option("--token-stdin", is_flag=True, help="Read the token from standard input; prompts on a terminal.")
def add(name: str, url: str, token_stdin: bool) -> None:
    """Add a context, or replace one. The first one becomes the current context."""
    if not name.strip() or not name.isprintable():
        raise click.UsageError("expected a name of printable characters")
    token = ""
    if token_stdin:
        token = click.prompt("Token", hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()
        token = token.strip()
        if not token:
            raise click.UsageError("expected a token on standard input, got nothing")
    stored = contexts.load()
    added = {**stored.contexts, name: Context(checked_url(url), token)}
    contexts.save(replace(stored, current=stored.current or name, contexts=added))
    say(f"{name}: context added" + (", in use" if not stored.current else ""))


@context.command("use")
@click.argument("name")
def use(name: str) -> None:
    """Make a context the current one."""
    stored = contexts.load()
    selected = stored.get(name)
    contexts.save(replace(stored, current=name))
    say(f"{name}: in use ({selected.url})")


@context.command("delete")
@click.argument("name")
def delete(name: str) -> None:
    """Delete a context and its token. The token stays valid; 'larder tokens revoke' revokes it."""
    stored = contexts.load()
    if name not in stored.contexts:
        raise NothingFound(f"there is no context {name!r}")
    remaining = {key: value for key, value in stored.contexts.items() if key != name}
    contexts.save(replace(stored, current="" if stored.current == name else stored.current, contexts=remaining))
    say(f"{name}: context deleted")
