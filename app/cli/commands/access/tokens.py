"""`larder tokens …`: create, list and revoke tokens of the API."""

from typing import Any

import click

from app.cli.support.api.client import call, every, segment, url_option
from app.cli.support.exit_codes import NothingFound
from app.cli.support.keys import seconds
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say
from app.cli.support.resources.options import Noun, Output, output_option, unasked_option, watch_option


def _used(token: dict[str, Any]) -> str:
    if token["last_used_at"] is None:
        return "never"
    return f"{show.ago(token['last_used_at'])} from {token['last_used_from'] or '-'}"


_COLUMNS = (
    Column("id", lambda t: t["id"]),
    Column("name", lambda t: t["name"]),
    Column("role", lambda t: t["role"]),
    Column("tenants", lambda t: "all" if t["tenants"] is None else ", ".join(t["tenants"]), drop=1, text=True),
    Column("ends", lambda t: "expired" if t["expired"] else show.ends(t["expires_at"])),
    Column("used", _used, drop=2),
    Column("made by", lambda t: t["created_by"], drop=3),
)


@click.group(cls=Noun)
def tokens() -> None:
    """Manage API tokens."""


@tokens.command("list")
@url_option
@output_option
@watch_option
def list_tokens(url: str | None, output: Output) -> None:
    """List all tokens, without their secrets."""
    output.listing("Tokens", every(url, "/api/v1/tokens"), _COLUMNS, "id")


@tokens.command("get")
@click.argument("token")
@output_option
@url_option
def get_token(url: str | None, token: str, output: Output) -> None:
    """Show a token, by id or name, without its secret."""
    output.record(_token(url, token), _COLUMNS, token)


@tokens.command("describe")
@click.argument("token")
@url_option
def describe_token(url: str | None, token: str) -> None:
    """Show a token in full, by id or name. Includes events that concern it."""
    from app.cli.support.resources.describe import describe

    row = _token(url, token)
    describe(url, "token", row["name"], row)


def _token(url: str | None, token: str) -> dict[str, Any]:
    """Return a token by its id or name. Raises NothingFound."""
    matches: list[dict[str, Any]] = [
        row for row in every(url, "/api/v1/tokens")["items"] if token in (row["id"], row["name"])
    ]
    if not matches:
        raise NothingFound(f"there is no token {token!r}")
    return matches[0]


@tokens.command("create")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["viewer", "operator", "admin", "alerts"]),
    default="viewer",
    show_default=True,
    help="Role of the token.",
)
@click.option("--tenant", "tenants", multiple=True, help="Limit the token to this tenant; may be repeated.")
@click.option("--ttl", metavar="TIME", help="Time until the token expires, such as 90d or 12h; default never.")
@url_option
@output_option
def create_token(
    name: str, role: str, tenants: tuple[str, ...], ttl: str | None, url: str | None, output: Output
) -> None:
    """Create a token and print its secret, which is shown only once. Standard output has the secret only, for
    `TOKEN=$(larder tokens …)`."""
    body = {
        "name": name,
        "role": role,
        "tenants": list(tenants) or None,
        "ttl_s": None if ttl is None else seconds("--ttl", ttl),
    }
    created = call(url, "POST", "/api/v1/tokens", body)
    if output.data(created, created["id"]):
        return
    say(f"{created['name']} ({created['role']}), id {created['id']}, ends {show.ends(created['expires_at'])}", err=True)
    say(created["token"])


@tokens.command("revoke")
@click.argument("token")
@unasked_option
@url_option
def revoke_token(url: str | None, token: str) -> None:
    """Revoke a token, by id or name, and end its sessions."""
    call(url, "DELETE", f"/api/v1/tokens/{segment(token)}")
    say(f"{token}: revoked")
