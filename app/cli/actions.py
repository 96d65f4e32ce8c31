"""`larder invalidate` and `larder demote`."""

import sys
from typing import IO, Any

import click

from app.cli.client import call, json_option, print_json, url_option
from app.cli.keys import F, key_fields, key_options


def _scope_options(command: F) -> F:
    for option in (
        json_option,
        url_option,
        click.option("--yes", is_flag=True, help="Do not ask."),
        key_options,
        click.option("--space", help="One space, by its 32 hex digits."),
        click.option("--model", help="All spaces of a model."),
        click.option("--tenant", help="Tenant as shown; `_default` for the empty salt."),
    ):
        command = option(command)
    return command


@click.command()
@_scope_options
def invalidate(**options: Any) -> None:
    """Make blocks unreadable at once: those that match every option that is given. A prefix (--tokens with --tenant and
    --model, or --keys-file) takes everything stored behind it along. Permanent pins keep their blocks."""
    _act("invalidate", **options)


@click.command()
@_scope_options
def demote(**options: Any) -> None:
    """Make blocks the first victims until they are used again: those that match every option that is given."""
    _act("demote", **options)


def _ask(question: str) -> None:
    """Raises Abort after a no, and UsageError when nobody is there to answer."""
    try:
        agreed = click.confirm(question)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.UsageError("nobody said yes: without a terminal, --yes is needed") from None
    if not agreed:
        raise click.Abort


def _act(
    verb: str,
    tenant: str | None,
    model: str | None,
    space: str | None,
    tokens: str | None,
    tokens_file: IO[str] | None,
    keys_file: IO[str] | None,
    chunk_tokens: int | None,
    yes: bool,
    url: str | None,
    as_json: bool,
) -> None:
    if sum(source is not None for source in (tokens, tokens_file, keys_file)) > 1:
        raise click.UsageError("expected at most one of --tokens, --tokens-file and --keys-file")
    named = {"tenant": tenant, "model": model, "space": space}
    scope = {name: value for name, value in named.items() if value is not None}
    keys = key_fields(tokens, tokens_file, keys_file, chunk_tokens)
    if not scope and not {"tokens", "keys"} & keys.keys():
        raise click.UsageError("expected at least one of --tenant, --model, --space and a prefix")
    if not yes:
        words = [f"{name} {value}" for name, value in scope.items()]
        words += [f"a prefix of {len(keys[name])} {name}" for name in ("tokens", "keys") if name in keys]
        _ask(f"{verb} all blocks of {', '.join(words)} on every connected node?")
    answer = call(url, "POST", f"/api/v1/actions/{verb}", {**scope, **keys})
    if as_json:
        print_json(answer)
    else:
        for node in answer["items"]:
            click.echo(f"{node['node']}: {node['error'] or 'sweep ' + str(node['sweep'])}")
    if any(node["error"] for node in answer["items"]):
        raise click.ClickException(f"not every node did it: {verb} again when they can")
