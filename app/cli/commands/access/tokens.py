"""`larder tokens …`: create, list and revoke tokens of the API."""

from typing import Any

import click

from app.cli.support.api.client import call, url_option
from app.cli.support.keys import seconds
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say
from app.cli.support.resources.options import Noun, Output, request_options, unasked_option
from app.cli.support.resources.verbs import Resource, add_describe, add_get, add_list


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
_TOKENS = Resource("/api/v1/tokens", "token", _COLUMNS, "id", "TOKEN")
tokens = Noun("tokens", help="Manage API tokens.")
add_list(tokens, _TOKENS, "List all tokens, without their secrets.", pages=True)
add_get(tokens, _TOKENS, "Show a token, by id or name, without its secret.")
add_describe(tokens, _TOKENS, "Show a token in full, by id or name. Includes events that concern it.", called="name")


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
@request_options
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
@_TOKENS.argument()
@unasked_option
@url_option
def revoke_token(url: str | None, name: str) -> None:
    """Revoke a token, by id or name, and end its sessions."""
    call(url, "DELETE", _TOKENS.of(name))
    say(f"{name}: revoked")
