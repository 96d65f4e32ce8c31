"""`larder pin …`."""

import json
import re
from typing import IO, Any

import click

from app.cli import show
from app.cli.client import call, json_option, print_json, segment, url_option, wait_option

_TTL = re.compile(r"(\d+(?:\.\d+)?)(s|m|h|d)?", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


@click.group()
def pin() -> None:
    """Prefixes that must stay."""


@pin.command("list")
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
            f"{p['resident']}/{p['resolved']}",
            show.size(p["bytes"]),
            show.ends(p["expires_at"]),
            show.applied(p),
        ]
        for p in answer["items"]
    ]
    columns = ["name", "tenant", "model", "resident ", "bytes ", "ends", "state"]
    show.table(f"Pins ({answer['total']})", columns, rows)


@pin.command("get")
@click.argument("name")
@url_option
def get_pin(url: str | None, name: str) -> None:
    """Show one pin as JSON."""
    print_json(call(url, "GET", f"/api/v1/pins/{segment(name)}"))


@pin.command("set")
@click.argument("name")
@click.option("--model", required=True, help="Model name; the pin holds in every space of it.")
@click.option("--tenant", default="_default", show_default=True, help="Tenant as shown.")
@click.option("--tokens", help="Token ids, separated by commas or spaces.")
@click.option(
    "--tokens-file", type=click.File(), help="File of token ids: a JSON list, or numbers; - for stdin."
)
@click.option("--keys-file", type=click.File(), help="File of keys, 64 hex digits each; - for stdin.")
@click.option("--chunk-tokens", type=int, help="Tokens in a chunk, as the engines have it; default 256.")
@click.option("--ttl", help="Ends after this time, such as 90s, 30m, 12h, 7d.")
@click.option("--note", default="", help="For people.")
@url_option
@wait_option
@json_option
def set_pin(
    name: str,
    model: str,
    tenant: str,
    tokens: str | None,
    tokens_file: IO[str] | None,
    keys_file: IO[str] | None,
    chunk_tokens: int | None,
    ttl: str | None,
    note: str,
    url: str | None,
    wait: str | None,
    as_json: bool,
) -> None:
    """Pin the prefix that the given tokens (or keys) name."""
    if sum(source is not None for source in (tokens, tokens_file, keys_file)) != 1:
        raise click.UsageError("expected exactly one of --tokens, --tokens-file and --keys-file")
    body: dict[str, Any] = {"model": model, "tenant": tenant, "note": note}
    if keys_file is not None:
        body["keys"] = keys_file.read().replace(",", " ").split()
    else:
        body["tokens"] = _numbers(tokens if tokens_file is None else tokens_file.read())
    if chunk_tokens is not None:
        body["chunk_tokens"] = chunk_tokens
    if ttl is not None:
        body["ttl_s"] = _seconds(ttl)
    answer = call(url, "PUT", f"/api/v1/pins/{segment(name)}", body, {"wait": wait})
    if as_json:
        print_json(answer)
    else:
        click.echo(
            f"{name}: {answer['key_count']} chunks of {answer['model']} for {answer['tenant']},"
            f" ends {show.ends(answer['expires_at'])}, {show.applied(answer)}"
        )


@pin.command("delete")
@click.argument("name")
@url_option
@wait_option
def delete_pin(url: str | None, name: str, wait: str | None) -> None:
    """Forget a pin."""
    call(url, "DELETE", f"/api/v1/pins/{segment(name)}", None, {"wait": wait})
    click.echo(f"{name}: pin deleted")


def _numbers(text: str | None) -> list[Any]:
    text = (text or "").strip()
    try:
        if text.startswith("["):
            numbers = json.loads(text)
            return numbers if isinstance(numbers, list) else []
        return [int(word) for word in text.replace(",", " ").split()]
    except ValueError as error:
        raise click.UsageError(f"expected token ids as numbers or as a JSON list: {error}") from None


def _seconds(text: str) -> float:
    match = _TTL.fullmatch(text)
    if match is None:
        raise click.UsageError(f"--ttl: expected a time such as 90s, 30m, 12h or 7d, got {text!r}")
    return float(match[1]) * _UNITS[match[2] or ""]
