"""`larder pins …`: set, extend and delete pins, and show how they take effect."""

from collections.abc import Callable, Mapping
from typing import IO, Any

import click

from app.cli.support.api.client import call, every, state_headers, url_option, wait_option
from app.cli.support.api.names import names
from app.cli.support.keys import F, key_fields, key_options, seconds, text_fields, text_options
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say
from app.cli.support.resources.fields import field_options, given_fields
from app.cli.support.resources.options import (
    NONE,
    Noun,
    Output,
    output_option,
    owner_option,
    paged,
    reach,
    watch_option,
)
from app.cli.support.resources.verbs import Resource, add_delete, add_describe, add_edit, add_get, add_set
from app.schemas.records.pins import STORED, PinPut
from dataplane.protocol.control.records import TIERS

_SOURCE = (
    *("model", "tenant", "prefix", "tokens", "tokens_file", "keys_file", "chunk_tokens"),
    *("text", "text_file", "messages", "generation_prompt"),
)
_OPTIONS = [name for name in (*STORED, "refresh_on_hit") if name != "managed_by"]
_ONE_SOURCE = (
    "expected exactly one of --tokens, --tokens-file, --keys-file, --prefix, --text, --text-file and --messages"
)


def _state(pin: Mapping[str, Any]) -> str:
    """Return the state of a pin, for a column."""
    if pin.get("holds_nothing"):
        return "holds nothing"
    if count := pin.get("only_in_tiers"):
        reason = {"budget": "no room in the pin budget", "failed": "load failed", "detached": "no engine attached"}
        return f"{count:,} only in tiers: {reason.get(pin['not_loaded'], 'loading')}"
    if tiers := pin.get("unlisted_tiers"):
        return f"unknown until {' and '.join(tiers)} {'is' if len(tiers) == 1 else 'are'} listed"
    state = show.applied(dict(pin))
    return "degraded: beyond the pin budget" if state == "applied" and pin.get("degraded") else state


_COLUMNS = (
    Column("name", lambda p: p["name"]),
    Column("tenant", lambda p: p["tenant"]),
    Column("model", lambda p: p["model"], drop=1),
    Column("strength", lambda p: p["strength"], drop=4),
    Column("resident", lambda p: f"{p['resident']}/{p['resolved']}", right=True),
    Column("degraded", lambda p: str(p["degraded"] or "-"), drop=6, right=True),
    Column("tier", show.tier, drop=3),
    Column("bytes", lambda p: show.size(p["bytes"]), drop=5, right=True),
    Column("in tiers", show.pin_tiers, drop=5),
    Column("ends", lambda p: show.ends(p["expires_at"]) + (" after a hit" if p["refresh_on_hit"] else ""), drop=2),
    Column("state", _state),
    Column("nodes", lambda p: reach(p["selector"]), drop=7),
    Column("owner", lambda p: p["managed_by"] or "-", drop=9),
    Column("note", lambda p: p["note"], drop=8, text=True),
)
_PINS = Resource("/api/v1/pins", "pin", _COLUMNS, editable=[*_OPTIONS, "ttl_s", "expires_at"])


@click.group(cls=Noun)
def pins() -> None:
    """Manage pins: prefixes that are kept in the cache."""


@pins.command("list")
@click.option("--tenant", help="Only this tenant; `_default` for the empty salt.")
@click.option("--model", help="Only this model.")
@click.option("--tier", type=click.Choice(TIERS), help="Only this tier.")
@owner_option
@paged
@url_option
@output_option
@watch_option
def list_pins(
    url: str | None,
    tenant: str | None,
    model: str | None,
    tier: str | None,
    managed_by: str | None,
    output: Output,
    **page: Any,
) -> None:
    """List all pins."""
    filters = {"tenant": tenant, "model": model, "tier": tier, "managed_by": managed_by}
    answer = every(url, _PINS.path, filters, **page)
    output.listing("Pins", answer, _COLUMNS, "name")


add_get(pins, _PINS, "Show one pin.")


def _pin_options(command: F) -> F:
    """Add the options of `set`."""
    for option in (
        output_option,
        wait_option,
        url_option,
        click.option("--ttl", help="Time until the pin expires, such as 90s, 30m, 12h, 7d; `none`: never."),
        field_options(PinPut, _OPTIONS),
        text_options,
        key_options,
        click.option("--prefix", metavar="LABEL", help="Label of a hot prefix in 'larder prefixes'."),
        click.option("--tenant", help="Tenant; default `_default`. Implied by --prefix."),
        click.option("--model", help="Model name; the pin applies to every space of it. Implied by --prefix."),
        click.option("--replace", is_flag=True, help="Give omitted options their defaults."),
        click.argument("name", shell_complete=names(("/api/v1/pins", "name"))),
    ):
        command = option(command)
    return command


@_pin_options
def set_pin(name: str, replace: bool, url: str | None, wait: str | None, output: Output, **options: Any) -> None:
    source, intent = _source(**{field: options[field] for field in _SOURCE}), _intent(options)
    path = _PINS.of(name)
    if replace and not source:
        raise click.UsageError(_ONE_SOURCE)
    current = _PINS.current(url, name)
    if source:
        unchanged = {} if current is None or replace else _unchanged(current, source, intent)
        answer = call(url, "PUT", path, {**unchanged, **source, **intent}, {"wait": wait}, state_headers(current))
    elif current is None:
        raise click.UsageError(f"there is no pin {name!r} yet: {_ONE_SOURCE}")
    elif any(options[field] is not None for field in ("model", "tenant")):
        raise click.UsageError(f"--model and --tenant are valid only with a prefix: {_ONE_SOURCE}")
    elif not intent:
        raise click.UsageError("expected at least one option to set")
    else:
        unchanged = {}
        if intent.get("strength") == "permanent" and "ttl_s" not in intent:
            intent |= {"ttl_s": None}
        answer = call(url, "PATCH", path, intent, {"wait": wait}, state_headers(current))
    _print_pin(name, answer, output, _kept_text(unchanged) if current else "")


add_set(
    pins,
    set_pin,
    about="Pin the prefix that the given tokens, keys, label, text or messages describe. For an existing pin, omitted "
    "options keep their values, and an omitted prefix keeps the pinned one.",
    create="Pin a prefix under a name that no pin has.",
)
add_edit(pins, _PINS, waits=True)
add_delete(pins, _PINS, "Delete a pin.", waits=True)
add_describe(pins, _PINS)


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
            raise click.UsageError(
                f"--chunk-tokens and --generation-prompt are valid only with a prefix: {_ONE_SOURCE}"
            )
        return {}
    fields = {"model": model, "tenant": tenant, "prefix": prefix}
    body: dict[str, Any] = {field: value for field, value in fields.items() if value is not None}
    body |= key_fields(tokens, tokens_file, keys_file, chunk_tokens)
    return body | text_fields(text, text_file, messages, generation_prompt)


def _intent(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the request for the given options other than the prefix."""
    intent = given_fields(PinPut, {field: options[field] for field in _OPTIONS})
    ttl = options["ttl"]
    if ttl is not None:
        intent["ttl_s"] = None if ttl.lower() == NONE else seconds("--ttl", ttl)
    return intent


def _unchanged(current: Mapping[str, Any], source: Mapping[str, Any], intent: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the existing pin for fields that the options do not set."""
    identity = () if "prefix" in source else ("model", "tenant")
    # An older server lacks new fields.
    unchanged = {field: current[field] for field in (*identity, *STORED) if field in current}
    if unchanged.get("tier") == "host":  # the default
        del unchanged["tier"]
    # The pin keeps its end, unless an option sets it.
    if intent.get("strength", current["strength"]) != "permanent" and "ttl_s" not in intent:
        if current["ttl_s"] is not None:
            unchanged |= {"ttl_s": current["ttl_s"], "refresh_on_hit": True}
        else:
            unchanged["expires_at"] = current["expires_at"]
    elif "refresh_on_hit" not in intent and intent.get("ttl_s") is not None:
        unchanged["refresh_on_hit"] = current["refresh_on_hit"]
    return {field: value for field, value in unchanged.items() if field not in {**source, **intent} and value}


def _kept_text(unchanged: Mapping[str, Any]) -> str:
    """Describe the kept fields for the output."""
    texts: dict[str, Callable[[Any], str]] = {
        "expires_at": lambda at: f"ends {show.ends(at)}",
        "ttl_s": lambda ttl: f"ttl {ttl:g} s",
        "refresh_on_hit": lambda _: "refresh on hit",
        "selector": lambda labels: f"nodes {reach(labels)}",
    }
    words = [
        texts[field](value) if field in texts else f"{field.replace('_', ' ')} {value}"
        for field, value in unchanged.items()
    ]
    return f" (kept: {', '.join(words)})" if words else ""


def _print_pin(name: str, answer: dict[str, Any], output: Output, unchanged: str) -> None:
    if output.data(answer, name):
        return
    refreshed = " (extended at each hit)" if answer["refresh_on_hit"] else ""
    used = (answer["origin"] or {}).get("tokenizer")
    if used is not None:
        tokens = show.plural(answer["origin"]["tokens"], "token")
        say(f"{tokens} by the tokenizer {used['name']} ({used['digest'][:16]}…)")
    chunks = show.plural(answer["key_count"], "chunk")
    on_gpus = ", also on GPUs" if answer.get("tier") == "gpu" else ""
    say(
        f"{name}: {chunks} of {answer['model']} for {answer['tenant']}, {answer['strength']}{on_gpus},"
        f" ends {show.ends(answer['expires_at'])}{refreshed}, {show.applied(answer)}{unchanged}"
    )
    say(answer["summary"])
    if answer.get("holds_nothing"):
        say(f"note: {_holds_nothing(answer)}")
    elif answer.get("only_in_tiers"):
        say(f"note: {_only_in_tiers(answer)}")
    elif answer.get("unlisted_tiers"):
        say(f"note: {_unlisted(answer)}")
    if answer.get("tier") == "gpu" and not _is_reported(answer) and (reason := show.ineffective(answer)):
        say(reason)


def _holds_nothing(pin: Mapping[str, Any]) -> str:
    """Return why a pin holds nothing and what to expect."""
    blocks = pin["resolved"]
    if blocks == 1:
        return "its only block is not cached; it is kept as soon as an engine stores it"
    return f"none of its {blocks:,} blocks is cached; they are kept as soon as an engine stores them"


def _unlisted(pin: Mapping[str, Any]) -> str:
    """Return why it is not known whether a pin holds blocks."""
    tiers = pin["unlisted_tiers"]
    one = f"the listing of tier {tiers[0]} is complete"
    until = one if len(tiers) == 1 else f"the listings of the tiers {', '.join(tiers)} are complete"
    return f"none of its blocks is in memory; whether tiers hold them is unknown until {until}"


def _only_in_tiers(pin: Mapping[str, Any]) -> str:
    """Return how many blocks of a pin are not in memory yet, and what happens to them."""
    blocks = f"{pin['only_in_tiers']:,} of {show.plural(pin['resolved'], 'block')} only in tiers, not in memory"
    next_step = {
        "budget": "the pin budgets have no room for them",
        "failed": "the last load failed; it is tried again",
        "detached": "they are loaded once an engine of the model attaches",
    }
    return f"{blocks}: {next_step.get(pin['not_loaded'], 'they are being loaded')}"


def _is_reported(answer: Mapping[str, Any]) -> bool:
    """Return whether the pin has no effect because it holds nothing; a note already says so."""
    conditions = answer["status"]["conditions"]
    return any(each["reason"] == "HoldsNothing" for each in conditions)


@pins.command("extend")
@click.argument("name", shell_complete=names(("/api/v1/pins", "name")))
@click.option("--ttl", required=True, help="Minimum time until the pin expires.")
@url_option
@wait_option
@output_option
def extend_pin(name: str, ttl: str, url: str | None, wait: str | None, output: Output) -> None:
    """Extend a pin (--ttl from now)."""
    path = f"{_PINS.of(name)}:extend"
    answer = call(url, "POST", path, {"ttl_s": seconds("--ttl", ttl)}, {"wait": wait})
    if not output.data(answer, name):
        say(f"{name}: ends {show.ends(answer['expires_at'])}, {show.applied(answer)}")
