"""`larder pins …`."""

from typing import IO, Any

import click

from app.cli import show
from app.cli.client import (
    ANY_STATE,
    call,
    find,
    held_state,
    json_option,
    print_json,
    segment,
    url_option,
    wait_option,
)
from app.cli.keys import key_fields, key_options, seconds, text_fields, text_options


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
@text_options
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
    text: str | None,
    text_file: IO[str] | None,
    messages: IO[str] | None,
    generation_prompt: bool,
    strength: str,
    ttl: str | None,
    refresh_on_hit: bool,
    note: str,
    url: str | None,
    wait: str | None,
    as_json: bool,
) -> None:
    """Pin the prefix that the given tokens, keys, label, text or messages name."""
    sources = (tokens, tokens_file, keys_file, prefix, text, text_file, messages)
    if sum(source is not None for source in sources) != 1:
        raise click.UsageError(
            "expected exactly one of --tokens, --tokens-file, --keys-file, --prefix, --text, --text-file and --messages"
        )
    asked = {"model": model, "tenant": tenant, "prefix": prefix}
    body: dict[str, Any] = {field: value for field, value in asked.items() if value is not None}
    body |= {"strength": strength, "refresh_on_hit": refresh_on_hit, "note": note}
    body |= key_fields(tokens, tokens_file, keys_file, chunk_tokens)
    body |= text_fields(text, text_file, messages, generation_prompt)
    if ttl is not None:
        body["ttl_s"] = seconds("--ttl", ttl)
    path = f"/api/v1/pins/{segment(name)}"
    answer = call(url, "PUT", path, body, {"wait": wait}, held_state(find(url, path)))
    if as_json:
        print_json(answer)
        return
    refreshed = " (each hit moves that)" if answer["refresh_on_hit"] else ""
    used = (answer["origin"] or {}).get("tokenizer")
    if used is not None:
        click.echo(
            f"{answer['origin']['tokens']} tokens by the tokenizer {used['name']} ({used['digest'][:16]}…)"
        )
    click.echo(
        f"{name}: {answer['key_count']} chunks of {answer['model']} for {answer['tenant']}, {answer['strength']},"
        f" ends {show.ends(answer['expires_at'])}{refreshed}, {show.applied(answer)}"
    )
    click.echo(answer["summary"])


pins.add_command(set_pin, "put")


@pins.command("extend")
@click.argument("name")
@click.option("--ttl", required=True, help="It ends no sooner than after this time, such as 30m, 12h, 7d.")
@url_option
@wait_option
@json_option
def extend_pin(name: str, ttl: str, url: str | None, wait: str | None, as_json: bool) -> None:
    """Let a pin end later, counted from now."""
    path = f"/api/v1/pins/{segment(name)}:extend"
    answer = call(url, "POST", path, {"ttl_s": seconds("--ttl", ttl)}, {"wait": wait})
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{name}: ends {show.ends(answer['expires_at'])}, {show.applied(answer)}")


@pins.command("delete")
@click.argument("name")
@url_option
@wait_option
def delete_pin(url: str | None, name: str, wait: str | None) -> None:
    """Forget a pin."""
    call(url, "DELETE", f"/api/v1/pins/{segment(name)}", None, {"wait": wait}, ANY_STATE)
    click.echo(f"{name}: pin deleted")
