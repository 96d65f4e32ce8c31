"""`larder tokens …`."""

import click

from app.cli.support import show
from app.cli.support.client import call, json_option, print_json, segment, url_option
from app.cli.support.keys import seconds
from app.cli.support.lists import listed, title, unasked_option
from app.cli.support.terminal import say


@click.group()
def tokens() -> None:
    """Manage API tokens."""


@tokens.command("list")
@url_option
@json_option
def list_tokens(url: str | None, as_json: bool) -> None:
    """Show all tokens, without their secrets."""
    answer = listed(url, "/api/v1/tokens")
    if as_json:
        print_json(answer)
        return
    rows = [
        [
            token["id"],
            token["name"],
            token["role"],
            "all" if token["tenants"] is None else ", ".join(token["tenants"]),
            "expired" if token["expired"] else show.ends(token["expires_at"]),
            "never"
            if token["last_used_at"] is None
            else f"{show.ago(token['last_used_at'])} from {token['last_used_from'] or '-'}",
            token["created_by"],
        ]
        for token in answer["items"]
    ]
    columns = ["id", "name", "role", "tenants", "ends", "used", "made by"]
    show.table(title("Tokens", answer), columns, rows)


@tokens.command("get")
@click.argument("token")
@url_option
def get_token(url: str | None, token: str) -> None:
    """Show a token as JSON, by id or name, without its secret."""
    found = [each for each in listed(url, "/api/v1/tokens")["items"] if token in (each["id"], each["name"])]
    if not found:
        raise click.ClickException(f"there is no token {token!r}")
    print_json(found[0])


@tokens.command("create")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["viewer", "operator", "admin"]),
    default="viewer",
    show_default=True,
    help="What it may do.",
)
@click.option(
    "--tenant", "tenants", multiple=True, help="Limit it to this tenant, as shown; may be repeated."
)
@click.option("--ttl", metavar="TIME", help="Ends after this time, such as 90d or 12h; default never.")
@url_option
@json_option
def create_token(
    name: str, role: str, tenants: tuple[str, ...], ttl: str | None, url: str | None, as_json: bool
) -> None:
    """Create a token and print its secret, which is shown only once. Standard output has the secret only, for
    `TOKEN=$(larder tokens …)`."""
    body = {
        "name": name,
        "role": role,
        "tenants": list(tenants) or None,
        "ttl_s": None if ttl is None else seconds("--ttl", ttl),
    }
    made = call(url, "POST", "/api/v1/tokens", body)
    if as_json:
        print_json(made)
        return
    say(f"{made['name']} ({made['role']}), id {made['id']}, ends {show.ends(made['expires_at'])}", err=True)
    say(made["token"])


@tokens.command("revoke")
@click.argument("token")
@unasked_option
@url_option
def revoke_token(url: str | None, token: str) -> None:
    """Revoke a token, by id or name, and end its sessions."""
    call(url, "DELETE", f"/api/v1/tokens/{segment(token)}")
    say(f"{token}: revoked")
