"""`larder login`, `larder logout`, `larder whoami`."""

import getpass
import os
import re
import sys
from pathlib import Path
from typing import Any

import click

from app.cli import stored_tokens
from app.cli.client import Refused, as_token, base_url, call, json_option, print_json, url_option
from app.cli.terminal import say
from dataplane.protocol.secret_file import OpenToOthers, read_secret
from dataplane.protocol.settings import SETUP_VARIABLE

ASK = "-"
"""In the place of a token: it is asked for."""


@click.command()
@click.option(
    "--setup",
    metavar="[TOKEN]",
    is_flag=False,
    flag_value=ASK,
    help="Make the first token, an admin's, with the one-time setup token: of LARDER_SETUP_TOKEN, else asked for, or "
    "read from standard input. As an argument it could be seen by others on this machine.",
)
@click.option(
    "--setup-file",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="The same, with the token in a file.",
)
@click.option("--name", help="With --setup: the new token's name; default your user name.")
@url_option
def login(setup: str | None, setup_file: str | None, name: str | None, url: str | None) -> None:
    """Keep a token for a Larder, so that all commands use it. It is asked for, or read from standard input."""
    base = base_url(url)
    if name is not None and setup is None and setup_file is None:
        raise click.UsageError("--name goes with --setup")
    if setup is not None and setup_file is not None:
        raise click.UsageError("expected at most one of --setup and --setup-file")
    setup = _setup_token(base, setup, setup_file)
    if setup is not None:
        body = {"name": name or _user(), "role": "admin"}
        token = _first(base, setup, body)
        say("made the first token, an admin's; it is shown this once:")
        say(token)
    else:
        token = _asked(base, "Token")
    who = call(base, "GET", "/api/v1/whoami", headers=as_token(token))
    file = stored_tokens.put(base, token)
    say(f"logged in at {base} as {_described(who)}; kept in {file}")


@click.command()
@url_option
def logout(url: str | None) -> None:
    """Forget the token that is kept for a Larder. It stays valid: 'larder tokens revoke' ends it."""
    base = base_url(url)
    say(f"logged out at {base}" if stored_tokens.drop(base) else f"no token was kept for {base}")


@click.command()
@url_option
@json_option
def whoami(url: str | None, as_json: bool) -> None:
    """Show who Larder takes you for."""
    who = call(url, "GET", "/api/v1/whoami")
    if as_json:
        print_json(who)
        return
    say(_described(who))


def _setup_token(base: str, given: str | None, file: str | None) -> str | None:
    """None when none is asked for. Raises ClickException."""
    if file is not None:
        try:
            return read_secret(Path(file)).decode("ascii").strip()
        except OSError as error:
            raise click.ClickException(f"--setup-file: {file} cannot be read: {error.strerror}") from None
        except (OpenToOthers, UnicodeDecodeError) as error:
            raise click.ClickException(f"--setup-file: {error}") from None
    if given == ASK:
        return os.environ.get(SETUP_VARIABLE, "").strip() or _asked(base, "Setup token")
    if given is not None:
        say(
            "warning: a token on the command line can be seen by others on this machine and stays in the shell's "
            "history; 'larder login --setup' asks for it",
            err=True,
        )
    return given


def _first(base: str, setup: str, body: dict[str, Any]) -> str:
    """A token that is made with the setup token. Raises ClickException."""
    try:
        token: str = call(base, "POST", "/api/v1/tokens", body, headers=as_token(setup))["token"]
    except Refused as refused:
        if refused.status == 401:
            raise click.ClickException(
                f"--setup: {base} does not take this setup token. The first start of that Larder wrote it to the log, "
                "as auth.setup_token, and no later start does; it is used up once there is a token, and then "
                "'larder login' takes one. When it is lost, start once with app.admin_token_file: that token is an "
                "admin's"
            ) from None
        raise
    return token


def _described(who: dict[str, Any]) -> str:
    tenants = "" if who["tenants"] is None else f" of the tenants {', '.join(who['tenants'])}"
    return f"{who['actor']} ({who['role']}{tenants})"


def _asked(base: str, what: str) -> str:
    if sys.stdin.isatty():
        text: str = click.prompt(f"{what} for {base}", hide_input=True)
    else:
        text = sys.stdin.readline()
    if not text.strip():
        raise click.ClickException(f"expected a {what.lower()} on standard input, got nothing")
    return text.strip()


def _user() -> str:
    """A name that a token can have."""
    try:
        name = re.sub(r"[^A-Za-z0-9._-]", "-", getpass.getuser())[:64]
    except (KeyError, OSError):  # a uid without a name
        name = ""
    return name if name and name not in ("local", "admin", "larder", "setup") else "first-admin"
