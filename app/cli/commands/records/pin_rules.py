"""Options, checks and output of the commands on pins that no field of the record gives: prefixes and expiry."""

from collections.abc import Iterator, Mapping
from typing import Any

import click
import msgspec

from app.cli.support.api.client import call, url_option, wait_option
from app.cli.support.keys import key_fields, key_options, seconds, text_fields, text_options, together
from app.cli.support.printing import show
from app.cli.support.printing.terminal import say
from app.cli.support.resources.fields import given_fields
from app.cli.support.resources.options import Output, output_option
from app.cli.support.resources.verbs import Resource
from app.schemas.records.pins import STORED, PinSource

_KEYS = ("tokens", "tokens_file", "keys_file", "chunk_tokens")
_TEXTS = ("text", "text_file", "messages", "generation_prompt")
_ONE_SOURCE = (
    "expected exactly one of --tokens, --tokens-file, --keys-file, --prefix, --text, --text-file and --messages"
)


options = together(
    click.option("--replace", is_flag=True, help="Give omitted options their defaults."),
    click.option("--model", help="Model name; the pin applies to every space of it. Implied by --prefix."),
    click.option("--tenant", help="Tenant; default `_default`. Implied by --prefix."),
    click.option("--prefix", metavar="LABEL", help="Label of a hot prefix in 'larder prefixes'."),
    key_options,
    text_options,
)
"""Adds the options that describe the prefix."""


def fields(put: type[msgspec.Struct], options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the request, with those of the prefix if one is given. Raises UsageError."""
    sources = [name for name in ("prefix", *_KEYS[:3], *_TEXTS[:3]) if options[name] is not None]
    if len(sources) > 1:
        raise click.UsageError(_ONE_SOURCE)
    settings = {name: value for name, value in options.items() if name not in PinSource.__struct_fields__}
    changed = given_fields(put, settings)
    if sources:
        named = {name: options[name] for name in ("model", "tenant", "prefix") if options[name] is not None}
        keys, texts = (options[name] for name in _KEYS), (options[name] for name in _TEXTS)
        return {**named, **key_fields(*keys), **text_fields(*texts), **changed}
    if options["replace"]:
        raise click.UsageError(_ONE_SOURCE)
    if any(options[name] not in (None, False) for name in ("model", "tenant", "chunk_tokens", "generation_prompt")):
        raise click.UsageError(
            f"--model, --tenant, --chunk-tokens and --generation-prompt are valid only with a prefix: {_ONE_SOURCE}"
        )
    return changed


def merged(
    changed: dict[str, Any], current: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return the values of the existing pin for fields that the options do not set; None if the prefix stays. Raises
    UsageError."""
    if not changed.keys() & {"prefix", "tokens", "keys", "text", "messages"}:
        if current is None:
            raise click.UsageError(f"there is no such pin yet: {_ONE_SOURCE}")
        permanent = changed.get("strength") == "permanent" and "ttl_s" not in changed
        return None, {**changed, "ttl_s": None} if permanent else changed
    if current is None or options["replace"]:
        return {}, changed
    identity = () if "prefix" in changed else ("model", "tenant")
    # An older server lacks new fields.
    unchanged = {name: current[name] for name in (*identity, *STORED) if name in current}
    if unchanged.get("tier") == "host":  # the default
        del unchanged["tier"]
    # The pin keeps its end, unless an option sets it.
    if changed.get("strength", current["strength"]) != "permanent" and "ttl_s" not in changed:
        if current["ttl_s"] is not None:
            unchanged |= {"ttl_s": current["ttl_s"], "refresh_on_hit": True}
        else:
            unchanged["expires_at"] = current["expires_at"]
    elif "refresh_on_hit" not in changed and changed.get("ttl_s") is not None:
        unchanged["refresh_on_hit"] = current["refresh_on_hit"]
    return {name: value for name, value in unchanged.items() if value}, changed


def saved(pin: Mapping[str, Any], _changed: dict[str, Any], kept_text: str) -> Iterator[str]:
    """Yield what a pin is, and what is wrong with it."""
    refreshed = " (extended at each hit)" if pin["refresh_on_hit"] else ""
    used = (pin["origin"] or {}).get("tokenizer")
    if used is not None:
        tokens = show.plural(pin["origin"]["tokens"], "token")
        yield f"{tokens} by the tokenizer {used['name']} ({used['digest'][:16]}…)"
    chunks = show.plural(pin["key_count"], "chunk")
    on_gpus = ", also on GPUs" if pin.get("tier") == "gpu" else ""
    yield (
        f"{pin['name']}: {chunks} of {pin['model']} for {pin['tenant']}, {pin['strength']}{on_gpus},"
        f" ends {show.ends(pin['expires_at'])}{refreshed}, {show.applied(pin)}{kept_text}"
    )
    yield pin["summary"]
    if note := _note(pin):
        yield f"note: {note}"
    is_reported = any(condition["reason"] == "HoldsNothing" for condition in pin["status"]["conditions"])
    if pin.get("tier") == "gpu" and not is_reported and (reason := show.ineffective(pin)):
        yield reason


def _note(pin: Mapping[str, Any]) -> str:
    """Return why a pin does not hold its blocks in memory, and what to expect; empty if it does."""
    if pin.get("holds_nothing"):
        blocks = pin["resolved"]
        if blocks == 1:
            return "its only block is not cached; it is kept as soon as an engine stores it"
        return f"none of its {blocks:,} blocks is cached; they are kept as soon as an engine stores them"
    if count := pin.get("only_in_tiers"):
        next_step = {
            "budget": "the pin budgets have no room for them",
            "failed": "the last load failed; it is tried again",
            "detached": "they are loaded once an engine of the model attaches",
        }.get(pin["not_loaded"], "they are being loaded")
        return f"{count:,} of {show.plural(pin['resolved'], 'block')} only in tiers, not in memory: {next_step}"
    if tiers := pin.get("unlisted_tiers"):
        first_listing = f"the listing of tier {tiers[0]} is complete"
        until = first_listing if len(tiers) == 1 else f"the listings of the tiers {', '.join(tiers)} are complete"
        return f"none of its blocks is in memory; whether tiers hold them is unknown until {until}"
    return ""


def state(pin: Mapping[str, Any]) -> str:
    """Return the state of a pin, for a column."""
    if pin.get("holds_nothing"):
        return "holds nothing"
    if count := pin.get("only_in_tiers"):
        reason = {"budget": "no room in the pin budget", "failed": "load failed", "detached": "no engine attached"}
        return f"{count:,} only in tiers: {reason.get(pin['not_loaded'], 'loading')}"
    if tiers := pin.get("unlisted_tiers"):
        return f"unknown until {' and '.join(tiers)} {'is' if len(tiers) == 1 else 'are'} listed"
    applied = show.applied(pin)
    return "degraded: beyond the pin budget" if applied == "applied" and pin.get("degraded") else applied


def add_extend(group: click.Group, resource: Resource) -> None:
    """Add `extend`."""

    @group.command("extend")
    @resource.argument()
    @click.option("--ttl", required=True, help="Minimum time until the pin expires.")
    @url_option
    @wait_option
    @output_option
    def extend_pin(name: str, ttl: str, url: str | None, wait: str | None, output: Output) -> None:
        """Extend a pin (--ttl from now)."""
        path = f"{resource.of(name)}:extend"
        answer = call(url, "POST", path, {"ttl_s": seconds("--ttl", ttl)}, {"wait": wait})
        if not output.data(answer, name):
            say(f"{name}: ends {show.ends(answer['expires_at'])}, {show.applied(answer)}")
