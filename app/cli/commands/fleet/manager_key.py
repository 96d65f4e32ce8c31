"""`larder manager-key …`: the key with which a management plane authenticates to nodes. The commands work on the key
file, so run them on the machine of the management plane."""

from pathlib import Path

import click

from app.cli.support.api.client import call, url_option
from app.cli.support.printing.terminal import say
from app.cli.support.resources.options import Output, output_option
from app.push import keys
from app.settings import load


@click.group()
def manager_key() -> None:
    """Show and rotate the key with which this management plane authenticates to nodes."""


@manager_key.command("show")
@output_option
@url_option
def show_key(url: str | None, output: Output) -> None:
    """Show the current public key, the next one, and the nodes that do not know the next one yet."""
    path = _path()
    public, next_key = _current_public_key(path), _next_public_key(path)
    if output.format not in ("table", "wide"):
        missing = _nodes_without(url, next_key) if next_key else []
        output.data({"public_key": public, "next_public_key": next_key or None, "unknown_to": missing}, public)
        return
    say(f"{path}: {public}")
    if not next_key:
        say("there is no next key: 'larder manager-key next' creates one")
        return
    say(f"{keys.next_path(path)}: {next_key}")
    missing = _nodes_without(url, next_key)
    say(f"not known yet to: {', '.join(missing)}" if missing else "every node knows it")


@manager_key.command("next")
def make_next() -> None:
    """Create the next key. Nodes receive it within five minutes."""
    path = _path()
    _current_public_key(path)
    try:
        public = keys.make_next(path)
    except FileExistsError:
        raise click.ClickException(
            f"{keys.next_path(path)} is there already: 'larder manager-key show' says which nodes know it; remove it "
            "to create another"
        ) from None
    except OSError as error:
        raise click.ClickException(f"{keys.next_path(path)} cannot be made: {error.strerror}") from None
    say(f"{keys.next_path(path)}: {public}")
    say(
        "Copy it to the other managers, if there are any; 'larder manager-key switch' uses it when every node knows it",
        err=True,
    )


@manager_key.command("switch")
@click.option(
    "--force", is_flag=True, help="Switch even if nodes do not know the key; those must join again with a token."
)
@url_option
def switch(url: str | None, force: bool) -> None:
    """Use the key that 'next' created, from the next start on."""
    path = _path()
    next_key = _next_public_key(path)
    if not next_key:
        raise click.ClickException("there is no next key: 'larder manager-key next' creates one")
    if not force and (missing := _nodes_without(url, next_key)):
        raise click.ClickException(
            f"not known yet to: {', '.join(missing)}; wait until they have connected and received it, forget them, "
            "or use --force: they must then join again with a new token"
        )
    try:
        old = keys.switch(path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be replaced: {error.strerror}") from None
    say(f"{path}: {next_key}; start the management plane again now")
    say(
        f"The previous key is in {old}: remove it when all nodes are in sync. Older join tokens no longer work.",
        err=True,
    )


def _path() -> Path:
    settings = load()
    return keys.key_path(settings.state_dir, settings.app.curve_key_file)


def _current_public_key(path: Path) -> str:
    """Return the public key in use. Raises ClickException if there is none, most likely because this is another
    machine."""
    if not path.exists():
        raise click.ClickException(
            f"{path} does not exist: a management plane with a join socket makes it at its first start; run this "
            "where it runs, with its settings"
        )
    return _public_key(path)


def _next_public_key(path: Path) -> str:
    return _public_key(keys.next_path(path)) if keys.next_path(path).exists() else ""


def _public_key(path: Path) -> str:
    return keys.key_pair(path.parent, str(path)).public


def _nodes_without(url: str | None, next_key: str) -> list[str]:
    """Return the names of enrolled nodes that would refuse this management plane with the key `next_key`."""
    nodes = call(url, "GET", "/api/v1/nodes")["items"]
    return [node["name"] for node in nodes if node["public_key"] and next_key not in node["admitted_managers"]]
