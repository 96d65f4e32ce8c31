"""`larder pins …`."""

from collections.abc import Callable, Mapping
from typing import IO, Any

import click

from app.cli.support import caches, show
from app.cli.support.client import (
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
from app.cli.support.keys import F, key_fields, key_options, seconds, text_fields, text_options
from app.cli.support.lists import listed, owner_option, paged, title, unasked_option
from app.cli.support.selectors import NONE, reach, selector_option
from app.cli.support.selectors import selector as read_selector
from app.cli.support.terminal import say

TIERS = ("host", "gpu")
_SOURCE = (
    *("model", "tenant", "prefix", "tokens", "tokens_file", "keys_file", "chunk_tokens"),
    *("text", "text_file", "messages", "generation_prompt"),
)
_ONE_SOURCE = (
    "expected exactly one of --tokens, --tokens-file, --keys-file, --prefix, --text, --text-file and "
    "--messages"
)


@click.group()
def pins() -> None:
    """Manage pins: prefixes that are kept in the cache."""


@pins.command("list")
@click.option("--tenant", help="Only of this tenant, as shown.")
@click.option("--model", help="Only of this model.")
@click.option("--tier", type=click.Choice(TIERS), help="Only of this tier.")
@owner_option
@paged
@url_option
@json_option
def list_pins(
    url: str | None,
    tenant: str | None,
    model: str | None,
    tier: str | None,
    managed_by: str | None,
    as_json: bool,
    **page: Any,
) -> None:
    """Show all pins."""
    filters = {"tenant": tenant, "model": model, "tier": tier, "managed_by": managed_by}
    answer = listed(url, "/api/v1/pins", filters, **page)
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
            show.tier(p),
            show.size(p["bytes"]),
            show.ends(p["expires_at"]) + (" after a hit" if p["refresh_on_hit"] else ""),
            show.applied(p),
            reach(p["selector"]),
            p["managed_by"] or "-",
            p["note"],
        ]
        for p in answer["items"]
    ]
    columns = ["name", "tenant", "model", "strength", "resident ", "degraded ", "tier"]
    columns += ["bytes ", "ends", "state", "nodes", "owner", "note"]
    show.table(title("Pins", answer), columns, rows)


@pins.command("get")
@click.argument("name")
@url_option
def get_pin(url: str | None, name: str) -> None:
    """Show one pin as JSON."""
    print_json(call(url, "GET", f"/api/v1/pins/{segment(name)}"))


def _pin_options(command: F) -> F:
    """Add the options that `set` and `put` have in common."""
    for option in (
        json_option,
        wait_option,
        url_option,
        click.option("--note", help="Free-form note."),
        selector_option,
        click.option(
            "--refresh-on-hit/--no-refresh-on-hit",
            "refresh_on_hit",
            default=None,
            help="Every hit moves the end to --ttl from then.",
        ),
        click.option("--ttl", help="Ends after this time, such as 90s, 30m, 12h, 7d; `none`: never."),
        click.option(
            "--strength",
            type=click.Choice(["soft", "guaranteed", "permanent"]),
            help="How firmly it holds; a new one: guaranteed.",
        ),
        click.option(
            "--tier",
            type=click.Choice(TIERS),
            help="`gpu`: besides in the pool, also in the memory of GPUs; a new one: host.",
        ),
        text_options,
        key_options,
        click.option("--prefix", metavar="LABEL", help="A hot prefix, as 'larder prefixes' lists it."),
        click.option("--tenant", help="Tenant as shown; default `_default`. A prefix brings its own."),
        click.option(
            "--model", help="Model name; the pin holds in every space of it. A prefix brings its own."
        ),
        click.argument("name"),
    ):
        command = option(command)
    return command


@pins.command("set")
@_pin_options
def set_pin(name: str, url: str | None, wait: str | None, as_json: bool, **options: Any) -> None:
    """Pin the prefix that the given tokens, keys, label, text or messages describe. For an existing pin, omitted
    options keep their values, and an omitted prefix keeps the pinned one."""
    source, intent = _source(**{field: options[field] for field in _SOURCE}), _intent(options)
    path = f"/api/v1/pins/{segment(name)}"
    held = find(url, path)
    if source:
        kept = {} if held is None else _kept(held, source, intent)
        answer = call(url, "PUT", path, {**kept, **source, **intent}, {"wait": wait}, held_state(held))
    elif held is None:
        raise click.UsageError(f"there is no pin {name!r} yet: {_ONE_SOURCE}")
    elif any(options[field] is not None for field in ("model", "tenant")):
        raise click.UsageError(f"--model and --tenant go with a prefix: {_ONE_SOURCE}")
    elif not intent:
        raise click.UsageError("expected at least one option that says what to set")
    else:
        kept = {}
        if intent.get("strength") == "permanent" and "ttl_s" not in intent:
            intent |= {"ttl_s": None}
        answer = call(url, "PATCH", path, intent, {"wait": wait}, held_state(held))
    _say(name, answer, as_json, _words(kept) if held else "")


@pins.command("put")
@_pin_options
def put_pin(name: str, url: str | None, wait: str | None, as_json: bool, **options: Any) -> None:
    """Set a pin like `set`, but replace an existing pin: omitted options get their defaults."""
    source = _source(**{field: options[field] for field in _SOURCE})
    if not source:
        raise click.UsageError(_ONE_SOURCE)
    path = f"/api/v1/pins/{segment(name)}"
    body = {**source, **_intent(options)}
    _say(name, call(url, "PUT", path, body, {"wait": wait}, held_state(find(url, path))), as_json, "")


def _source(
    *,
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
) -> dict[str, Any]:
    """Return the fields of the request that describe the prefix; empty if none is given. Raises UsageError."""
    sources = (tokens, tokens_file, keys_file, prefix, text, text_file, messages)
    given = sum(source is not None for source in sources)
    if given > 1:
        raise click.UsageError(_ONE_SOURCE)
    if not given:
        if chunk_tokens is not None or generation_prompt:
            raise click.UsageError(f"--chunk-tokens and --generation-prompt go with a prefix: {_ONE_SOURCE}")
        return {}
    asked = {"model": model, "tenant": tenant, "prefix": prefix}
    body: dict[str, Any] = {field: value for field, value in asked.items() if value is not None}
    body |= key_fields(tokens, tokens_file, keys_file, chunk_tokens)
    return body | text_fields(text, text_file, messages, generation_prompt)


def _intent(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the request for the given options other than the prefix."""
    asked = {
        "strength": options["strength"],
        "tier": options["tier"],
        "refresh_on_hit": options["refresh_on_hit"],
        "note": options["note"],
        "selector": read_selector(options["selector"]),
    }
    intent = {field: value for field, value in asked.items() if value is not None}
    ttl = options["ttl"]
    if ttl is not None:
        intent["ttl_s"] = None if ttl.lower() == NONE else seconds("--ttl", ttl)
    return intent


def _kept(held: Mapping[str, Any], source: Mapping[str, Any], intent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the existing pin for fields that the options do not set."""
    whose = () if "prefix" in source else ("model", "tenant")
    kept = {field: held[field] for field in (*whose, "strength", "note", "selector", "managed_by")}
    if held.get("tier", "host") != "host":  # a server of an older release does not report tiers
        kept["tier"] = held["tier"]
    if intent.get("strength", held["strength"]) != "permanent" and "ttl_s" not in intent:
        if held["ttl_s"] is not None:
            kept |= {"ttl_s": held["ttl_s"], "refresh_on_hit": True}
        else:
            kept["expires_at"] = held["expires_at"]
    elif "refresh_on_hit" not in intent and intent.get("ttl_s") is not None:
        kept["refresh_on_hit"] = held["refresh_on_hit"]
    return {field: value for field, value in kept.items() if field not in {**source, **intent} and value}


def _words(kept: Mapping[str, Any]) -> str:
    """Describe the kept fields for the output."""
    said: dict[str, Callable[[Any], str]] = {
        "expires_at": lambda at: f"ends {show.ends(at)}",
        "ttl_s": lambda ttl: f"ttl {ttl:g} s",
        "refresh_on_hit": lambda _: "refresh on hit",
        "selector": lambda labels: f"nodes {reach(labels)}",
    }
    words = [
        said[field](value) if field in said else f"{field.replace('_', ' ')} {value}"
        for field, value in kept.items()
    ]
    return f" (kept: {', '.join(words)})" if words else ""


def _say(name: str, answer: dict[str, Any], as_json: bool, kept: str) -> None:
    if as_json:
        print_json(answer)
        return
    refreshed = " (each hit moves that)" if answer["refresh_on_hit"] else ""
    used = (answer["origin"] or {}).get("tokenizer")
    if used is not None:
        tokens = show.plural(answer["origin"]["tokens"], "token")
        say(f"{tokens} by the tokenizer {used['name']} ({used['digest'][:16]}…)")
    chunks = show.plural(answer["key_count"], "chunk")
    on_gpus = ", also on GPUs" if answer.get("tier") == "gpu" else ""
    say(
        f"{name}: {chunks} of {answer['model']} for {answer['tenant']}, {answer['strength']}{on_gpus},"
        f" ends {show.ends(answer['expires_at'])}{refreshed}, {show.applied(answer)}{kept}"
    )
    say(answer["summary"])
    if answer.get("holds_nothing"):
        say(f"note: {caches.holds_nothing(answer)}")
    if answer.get("tier") == "gpu" and not _is_said(answer) and (why := show.ineffective(answer)):
        say(why)


def _is_said(answer: Mapping[str, Any]) -> bool:
    """Return whether the pin has no effect because it holds nothing; a note already says so."""
    conditions = answer["status"]["conditions"]
    return any(each["reason"] == "HoldsNothing" for each in conditions)


@pins.command("extend")
@click.argument("name")
@click.option("--ttl", required=True, help="It ends no sooner than after this time, such as 30m, 12h, 7d.")
@url_option
@wait_option
@json_option
def extend_pin(name: str, ttl: str, url: str | None, wait: str | None, as_json: bool) -> None:
    """Extend a pin, counted from now."""
    path = f"/api/v1/pins/{segment(name)}:extend"
    answer = call(url, "POST", path, {"ttl_s": seconds("--ttl", ttl)}, {"wait": wait})
    if as_json:
        print_json(answer)
    else:
        say(f"{name}: ends {show.ends(answer['expires_at'])}, {show.applied(answer)}")


@pins.command("delete")
@click.argument("name")
@unasked_option
@url_option
@wait_option
def delete_pin(url: str | None, name: str, wait: str | None) -> None:
    """Delete a pin."""
    call(url, "DELETE", f"/api/v1/pins/{segment(name)}", None, {"wait": wait}, ANY_STATE)
    say(f"{name}: pin deleted")
