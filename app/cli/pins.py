"""`larder pins …`."""

from typing import IO, Any

import click

from app.cli import show
from app.cli.client import call, json_option, print_json, segment, url_option, wait_option
from app.cli.keys import key_fields, key_options, seconds


@click.group()
def pins() -> None:
    """Prefixes that must stay."""


@pins.command("list")
@url_option
@json_option
def list_pins(url: str | None, as_json: bool) -> None:
    """Show all pins."""
    answer = call(url, "GET", "/api/v1/pins")
    if as_json:
        print_json(answer)
        return
    rows = [
        [
            p["name"],
            p["tenant"],
            p["model"],
            p["strength"],
            f"{p['resident']}/{p['resolved']}",
            str(p["degraded"] or "-"),
            show.size(p["bytes"]),
            show.ends(p["expires_at"]) + (" after a hit" if p["refresh_on_hit"] else ""),
            show.applied(p),
        ]
        for p in answer["items"]
    ]
    columns = ["name", "tenant", "model", "strength", "resident ", "degraded ", "bytes ", "ends", "state"]
    show.table(f"Pins ({answer['total']})", columns, rows)


@pins.command("get")
@click.argument("name")
@url_option
def get_pin(url: str | None, name: str) -> None:
    """Show one pin as JSON."""
    print_json(call(url, "GET", f"/api/v1/pins/{segment(name)}"))


@pins.command("set")
@click.argument("name")
@click.option("--model", help="Model name; the pin holds in every space of it. A prefix brings its own.")
@click.option("--tenant", help="Tenant as shown; default `_default`. A prefix brings its own.")
@click.option("--prefix", metavar="LABEL", help="A hot prefix, as 'larder prefixes' lists it.")
@key_options
@click.option(
    "--strength",
    type=click.Choice(["soft", "guaranteed", "permanent"]),
    default="guaranteed",
    show_default=True,
    help="How firmly it holds.",
)
@click.option("--ttl", help="Ends after this time, such as 90s, 30m, 12h, 7d.")
@click.option("--refresh-on-hit", is_flag=True, help="Every hit moves the end to --ttl from then.")
@click.option("--note", default="", help="For people.")
@url_option
@wait_option
@json_option
def set_pin(
    name: str,
    model: str | None,
    tenant: str | None,
    prefix: str | None,
    tokens: str | None,
    tokens_file: IO[str] | None,
    keys_file: IO[str] | None,
    chunk_tokens: int | None,
    strength: str,
    ttl: str | None,
    refresh_on_hit: bool,
    note: str,
    url: str | None,
    wait: str | None,
    as_json: bool,
) -> None:
    """Pin the prefix that the given tokens, keys or label name."""
    if sum(source is not None for source in (tokens, tokens_file, keys_file, prefix)) != 1:
        raise click.UsageError("expected exactly one of --tokens, --tokens-file, --keys-file and --prefix")
    asked = {"model": model, "tenant": tenant, "prefix": prefix}
    body: dict[str, Any] = {field: value for field, value in asked.items() if value is not None}
    body |= {"strength": strength, "refresh_on_hit": refresh_on_hit, "note": note}
    body |= key_fields(tokens, tokens_file, keys_file, chunk_tokens)
    if ttl is not None:
        body["ttl_s"] = seconds("--ttl", ttl)
    answer = call(url, "PUT", f"/api/v1/pins/{segment(name)}", body, {"wait": wait})
    if as_json:
        print_json(answer)
        return
    refreshed = " (each hit moves that)" if answer["refresh_on_hit"] else ""
    click.echo(
        f"{name}: {answer['key_count']} chunks of {answer['model']} for {answer['tenant']}, {answer['strength']},"
        f" ends {show.ends(answer['expires_at'])}{refreshed}, {show.applied(answer)}"
    )


@pins.command("delete")
@click.argument("name")
@url_option
@wait_option
def delete_pin(url: str | None, name: str, wait: str | None) -> None:
    """Forget a pin."""
    call(url, "DELETE", f"/api/v1/pins/{segment(name)}", None, {"wait": wait})
    click.echo(f"{name}: pin deleted")
