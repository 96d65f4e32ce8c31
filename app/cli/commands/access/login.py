"""`larder login`, `larder logout` and `larder whoami`: store a token for a server, delete it, and show whose it is."""

import getpass
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from app.cli.support.api.client import ApiError, as_token, base_url, call, url_option
from app.cli.support.credentials import contexts, stored_tokens
from app.cli.support.credentials.contexts import Context
from app.cli.support.exit_codes import worded
from app.cli.support.printing.terminal import say
from app.cli.support.resources.options import Output, request_options
from dataplane.base.secret_file import SecretFileExposed, read_secret
from dataplane.base.settings import SETUP_VARIABLE

ASK = "-"
"""Placeholder for a token that the command must prompt for."""


@click.command()
@click.option(
    "--setup",
    metavar="[TOKEN]",
    is_flag=False,
    flag_value=ASK,
    help="Create the first token, with the role admin, by the one-time setup token: from LARDER_SETUP_TOKEN, a prompt, "
    "or standard input. Others on this machine see arguments.",
)
@click.option(
    "--setup-file", metavar="FILE", type=click.Path(dir_okay=False), help="The same, with the token in a file."
)
@click.option("--name", help="With --setup: the new token's name; default your user name.")
@url_option
def login(setup: str | None, setup_file: str | None, name: str | None, url: str | None) -> None:
    """Store a token for a Larder server, for all commands. Prompts for it, or reads it from standard input."""
    base = base_url(url)
    if name is not None and setup is None and setup_file is None:
        raise click.UsageError("--name goes with --setup")
    if setup is not None and setup_file is not None:
        raise click.UsageError("expected at most one of --setup and --setup-file")
    setup = _setup_token(base, setup, setup_file)
    if setup is not None:
        body = {"name": name or _user(), "role": "admin"}
        token = _first(url, base, setup, body)
        say("made the first token, an admin's; it is shown this once:")
        say(token)
    else:
        token = _prompted(base, "Token")
    identity = call(url, "GET", "/api/v1/whoami", headers=as_token(token))
    named = _context_of(base)
    if named:  # its token would win over a stored one
        _keep(named, Context(base, token))
        file = contexts.path()
    else:
        file = stored_tokens.put(base, token)
    say(f"logged in at {base} as {_described(identity)}; kept in {file}")


@click.command()
@url_option
def logout(url: str | None) -> None:
    """Delete the stored token of a Larder server. The token stays valid; 'larder tokens revoke' revokes it."""
    base = base_url(url)
    dropped = stored_tokens.drop(base)
    named = _context_of(base)
    if named and contexts.load().get(named).token:
        _keep(named, Context(base))
        dropped = True
    say(f"logged out at {base}" if dropped else f"no token was kept for {base}")


@click.command()
@request_options
def whoami(url: str | None, output: Output) -> None:
    """Show the current identity."""
    identity = call(url, "GET", "/api/v1/whoami")
    if not output.data(identity, identity["actor"]):
        say(_described(identity))


def _context_of(base: str) -> str:
    """Return the name of the context that `--context` names, or of the current one if it is of this server; else an
    empty text."""
    current = contexts.current()
    return contexts.chosen() or (contexts.load().current if current is not None and current.url == base else "")


def _keep(name: str, context: Context) -> None:
    stored = contexts.load()
    contexts.save(replace(stored, contexts={**stored.contexts, name: context}))


def _setup_token(base: str, setup: str | None, file: str | None) -> str | None:
    """Return the setup token; None if the options do not ask for one. Raises ClickException."""
    if file is not None:
        try:
            return read_secret(Path(file)).decode("ascii").strip()
        except OSError as error:
            raise click.ClickException(f"--setup-file: {file} cannot be read: {error.strerror}") from None
        except (SecretFileExposed, UnicodeDecodeError) as error:
            raise click.ClickException(f"--setup-file: {error}") from None
    if setup == ASK:
        return os.environ.get(SETUP_VARIABLE, "").strip() or _prompted(base, "Setup token")
    if setup is not None:
        say(
            "warning: a token on the command line can be seen by others on this machine and stays in the shell's "
            "history; 'larder login --setup' asks for it",
            err=True,
        )
    return setup


def _first(url: str | None, base: str, setup: str, body: dict[str, Any]) -> str:
    """Create the first token with the setup token, and return its secret. Raises ClickException."""
    try:
        token: str = call(url, "POST", "/api/v1/tokens", body, headers=as_token(setup))["token"]
    except ApiError as refused:
        if refused.status == 401:
            raise worded(
                refused,
                f"--setup: {base} does not take this setup token. The first start of that Larder that required a "
                "token wrote it to the log, as auth.setup_token, and no later start does; it is used up once there is "
                "a token, and then 'larder login' takes one. When it is lost, start once with app.admin_token_file: "
                "that token is an admin's. A Larder that requires no token yet has no setup token: 'larder tokens "
                "create' makes the first there",
            ) from None
        raise
    return token


def _described(identity: dict[str, Any]) -> str:
    tenants = "" if identity["tenants"] is None else f" of the tenants {', '.join(identity['tenants'])}"
    return f"{identity['actor']} ({identity['role']}{tenants})"


def _prompted(base: str, noun: str) -> str:
    if sys.stdin.isatty():
        text: str = click.prompt(f"{noun} for {base}", hide_input=True)
    else:
        text = sys.stdin.readline()
    if not text.strip():
        raise click.ClickException(f"expected a {noun.lower()} on standard input, got nothing")
    return text.strip()


def _user() -> str:
    """Return a valid token name, derived from the user name."""
    try:
        name = re.sub(r"[^A-Za-z0-9._-]", "-", getpass.getuser())[:64]
    except (KeyError, OSError):  # a uid without a name
        name = ""
    return name if name and name not in ("local", "admin", "larder", "setup") else "first-admin"
