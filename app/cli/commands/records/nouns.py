"""The records that `larder` manages: quotas, policies, ceilings, rates, tokenizers, pins and tiers. Each type is a row.

Options, help and `edit` follow from the fields of a type; a row adds columns, and functions for what no field says.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import click
import msgspec

from app.cli.commands.machine.tiers import check, repair, usage
from app.cli.commands.records import pin_rules, tier_rules
from app.cli.support.keys import together
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say, table
from app.cli.support.resources.fields import flag, given_fields
from app.cli.support.resources.options import NONE, Output, owner_option, reach
from app.cli.support.resources.records import Fields, Record, RecordNoun, add_check, record_commands
from app.schemas.records.ceilings import CeilingPut
from app.schemas.records.pins import PinPut, PinSource
from app.schemas.records.policies import PolicyPut
from app.schemas.records.prefill_rates import RatePut
from app.schemas.records.quotas import QuotaPut
from app.schemas.records.tiers import TierPut
from app.schemas.records.tokenizers import TokenizerPut
from dataplane.protocol.control.records import POLICY_IN_FORCE, TIERS

_NAME = Column("name", lambda record: record["name"])
_TENANT = Column("tenant", lambda record: record["tenant"])
_MODEL = Column("model", lambda record: record["model"], drop=1)
_STATE = Column("state", show.applied)


def _note(drop: int) -> Column:
    return Column("note", lambda record: record["note"], drop=drop, text=True)


def _nodes(drop: int, everywhere: str = "all") -> Column:
    return Column("nodes", lambda record: reach(record["selector"], everywhere), drop=drop)


def _owner(drop: int) -> Column:
    return Column("owner", lambda record: record["managed_by"] or "-", drop=drop)


def _size(name: str, field: str, drop: int = 0) -> Column:
    return Column(name, lambda record: show.size(record[field]), drop=drop, right=True)


# Quotas


def _quota_fields(put: type[msgspec.Struct], options: Fields) -> Fields:
    """Return the given fields, with the shares in tiers as they are given. Raises UsageError."""
    if (limit := options["limit_"]) is not None:
        if options["limit_bytes"] is not None:
            raise click.UsageError("expected the limit once, as LIMIT or as --limit")
        options["limit_bytes"] = limit
    shares: dict[str, dict[str, str | None]] = {}
    for option, field in (("tier_limits", "limit_bytes"), ("tier_floors", "floor_bytes")):
        words = f"--{option.removesuffix('s').replace('_', '-')}"
        for text in options[option]:
            name, equals, size = text.rpartition("=")
            if not equals or not name or not size:
                raise click.UsageError(f"{words}: expected TIER=SIZE, such as disk=100GiB, got {text!r}")
            if field in shares.setdefault(name, {}):
                raise click.UsageError(f"{words}: expected the tier {name!r} once")
            shares[name][field] = None if size.lower() == NONE else size
    return {**given_fields(put, options), **({"tiers": shares} if shares else {})}


def _merged_quota(changed: Fields, current: Record | None, _options: Fields) -> tuple[Fields, Fields]:
    """Add the shares in tiers that stay; a share without a limit and a floor is left out."""
    record = dict(current or {"limit_bytes": None})
    if shares := changed.get("tiers"):
        before = record.get("tiers") or {}
        merged = {name: {**before.get(name, {}), **shares.get(name, {})} for name in (*before, *shares)}
        stated = {
            name: {field: value for field, value in share.items() if value not in (None, 0, "0")}
            for name, share in merged.items()
        }
        changed = {**changed, "tiers": {name: share for name, share in stated.items() if share}}
    return record, changed


def _saved_quota(quota: Record, changed: Fields, kept_text: str) -> Iterator[str]:
    tiers = f", {show.tier_shares(quota['tiers'])}" if "tiers" in changed else ""
    yield (
        f"{quota['tenant']}: limit {show.size(quota['limit_bytes'])},"
        f" floor {show.floor(quota['floor_bytes'], quota['effective_floor_bytes'])},"
        f" weight {quota['weight']:g}, {quota['on_exceed']}, {quota['mode']}{tiers}; {show.applied(quota)}{kept_text}"
    )
    _, _, remark = quota["status"]["conditions"][0]["message"].partition("; ")  # tiers that no node reports
    if remark and "tiers" in changed:
        yield f"Warning: {remark}"


_quota_options = together(
    click.argument("limit_", metavar="[LIMIT]", required=False),
    click.option(
        "--tier-limit", "tier_limits", metavar="TIER=SIZE", multiple=True,
        help="Most bytes that the tenant may hold in this tier of each node; `none` for no limit. May be repeated.",
    ),
    click.option(
        "--tier-floor", "tier_floors", metavar="TIER=SIZE", multiple=True,
        help="Bytes of this tier that no other tenant's blocks may take; `0` for none. May be repeated.",
    ),
)  # fmt: skip


quotas = record_commands(
    RecordNoun(
        path="/api/v1/quotas",
        noun="quota",
        key="tenant",
        put=QuotaPut,
        special=("tiers",),
        columns=(
            _TENANT,
            _size("used", "used_bytes"),
            Column("limit", lambda q: show.size(q["limit_bytes"]) + (" (over)" if q["over_limit"] else ""), right=True),
            Column("floor", lambda q: show.floor(q["floor_bytes"], q["effective_floor_bytes"]), right=True),
            Column("weight", lambda q: f"{q['weight']:g}", drop=3, right=True),
            _size("pins", "pin_budget_bytes", drop=4),
            Column("rate", lambda q: show.rate(q["store_rate_bytes"]), drop=5, right=True),
            Column("exceed", lambda q: q["on_exceed"], drop=6),
            Column("tiers", lambda q: show.tier_shares(q.get("tiers") or {}), drop=7),
            Column("mode", lambda q: q["mode"], drop=2),
            Column("refused", show.refused, drop=1, right=True),
            _STATE,
            _nodes(8),
            _owner(10),
            _note(9),
        ),
        help={"quotas": "Manage quotas: the shares of tenants in the pool. The empty salt is the tenant `_default`."},
        filters=(owner_option,),
        options=_quota_options,
        waits=True,
        dry_runs=True,
        changes=_quota_fields,
        merged=_merged_quota,
        saved=_saved_quota,
    )
)


# Policies


def _admission(policy: Record) -> str:
    idle = f"second touch below {policy['admission_idle_s']:g} s idle"
    return idle if policy["admission"] else "admits everything"


def _watermarks(policy: Record) -> str:
    high, low = policy["high_watermark"], policy["low_watermark"]
    return "at need" if high >= 1 else f"{100 * high:g} % to {100 * low:g} %"


_RULES = (
    Column("algorithm", lambda policy: str(policy["algorithm"])),
    Column("admission", _admission),
    Column("watermarks", _watermarks),
)
_IN_FORCE = (
    Column("node", lambda p: p["node"]),
    *_RULES,
    Column("gate", lambda p: "closed" if p["gate_closed"] else "open"),
    Column(
        "victims idle", lambda p: "-" if p["victim_idle_s"] is None else f"{p['victim_idle_s']:.0f} s", drop=3,
        right=True,
    ),
    Column("admitted", lambda p: str(p["admitted_blocks"]), drop=2, right=True),
    Column("declined", lambda p: str(p["declined_blocks"]), drop=1, right=True),
)  # fmt: skip


def _print_in_force(answer: Record, output: Output) -> None:
    say()
    in_force = [{"node": node, **policy} for node, policy in sorted(answer["in_force"].items())]
    table("In force", _IN_FORCE, in_force, wide=output.wide)


def _saved_policy(policy: Record, _changed: Fields, _kept: str) -> Iterator[str]:
    yield f"{policy['name']}: {', '.join(rule.cell(policy) for rule in _RULES)}; {show.applied(policy)}"


policies = record_commands(
    RecordNoun(
        path="/api/v1/policies",
        noun="policy",
        default=POLICY_IN_FORCE,
        put=PolicyPut,
        columns=(
            _NAME,
            _nodes(0, "all others"),
            Column("priority", lambda p: str(p["priority"]), drop=2, right=True),
            *_RULES,
            _STATE,
            _note(1),
        ),
        help={
            "policies": "Manage eviction policies. `default` applies to every node that no policy with a selector "
            "matches.",
            "list": "List all policies, and the policy in force on each node.",
            "delete": "Delete a policy. Its nodes use another matching policy, or their defaults.",
        },
        waits=True,
        dry_runs=True,
        listed=_print_in_force,
        saved=_saved_policy,
    )
)
add_check(policies, "Show how every node would respond to a policy, without setting it. Omitted options are treated as "
          "in `set`.")  # fmt: skip


# Ceilings

_MAXIMA = [name for name in CeilingPut.__struct_fields__ if name.startswith("max_")]


def _merged_ceiling(changed: Fields, current: Record | None, _options: Fields) -> tuple[Fields, Fields]:
    """Add `no_bound`: a maximum that is set to null has no bound, and one that gets a value has one."""
    opened = {name for name in _MAXIMA if name in changed and changed[name] is None}
    unchanged = {name for name in (current or {}).get("no_bound", ()) if name not in changed}
    return dict(current or {}), {**changed, "no_bound": sorted(opened | unchanged)}


def _bound(name: str, field: str, format_value: Callable[[Any], str], drop: int = 0) -> Column:
    def cell(ceiling: Record) -> str:
        if ceiling[field] is not None:
            return format_value(ceiling[field])
        return "no bound" if field in ceiling["no_bound"] else "as it is"

    return Column(name, cell, drop=drop, right=True)


def _saved_ceiling(ceiling: Record, _changed: Fields, _kept: str) -> Iterator[str]:
    """Describe the maxima of a ceiling that are null."""
    words = {name: flag(name)[2:].replace("-", " ") for name in _MAXIMA if ceiling[name] is None}
    no_bound = [word for name, word in words.items() if name in ceiling["no_bound"]]
    as_it_is = [word for name, word in words.items() if name not in ceiling["no_bound"]]
    parts = [f"no bound for {', '.join(no_bound)}"] if no_bound else []
    parts += [f"{', '.join(as_it_is)} may not be raised"] if as_it_is else []
    yield "; ".join([f"{ceiling['tenant']}: ceiling set", *parts])


ceilings = record_commands(
    RecordNoun(
        path="/api/v1/ceilings",
        noun="ceiling",
        key="tenant",
        put=CeilingPut,
        special=("no_bound",),
        flags={"strengths": "--strength"},
        columns=(
            _TENANT,
            _bound("limit", "max_limit_bytes", show.size),
            _bound("floor", "max_floor_bytes", show.size),
            _bound("weight", "max_weight", "{:g}".format, drop=2),
            _bound("pins", "max_pin_budget_bytes", show.size),
            _bound("rate", "max_store_rate_bytes", show.rate, drop=4),
            _bound("ttl", "max_ttl_s", show.span, drop=3),
            Column(
                "strengths",
                lambda c: "soft, guaranteed" if c["strengths"] is None else ", ".join(c["strengths"]) or "none",
                drop=5,
            ),
            _note(1),
        ),
        help={
            "ceilings": "Manage ceilings: bounds on changes to quotas and pins by callers that are limited to a "
            "tenant.",
            "list": "List all ceilings. `as it is` means that the tenant's operators may lower the value but not raise "
            "it.",
            "set": "Set a tenant's ceiling; `none` sets no bound. Omitted options keep the values of the record. A "
            "value that was never set may be lowered in the quota, but not raised.",
            "delete": "Delete a tenant's ceiling. Callers that are limited to the tenant may then not change its "
            "quota.",
        },
        merged=_merged_ceiling,
        saved=_saved_ceiling,
    )
)


# Rates

rates = record_commands(
    RecordNoun(
        path="/api/v1/rates",
        noun="rate",
        put=RatePut,
        flags={"prefill_tokens_per_s": "--tokens-per-s"},
        replaces=True,
        columns=(
            _NAME,
            Column("model", lambda r: r["model"]),
            Column("space", lambda r: r["space"] or "all", drop=2),
            Column("tokens/s", lambda r: f"{r['prefill_tokens_per_s']:,g}", right=True),
            _note(1),
        ),
        help={"rates": "Manage prefill rates of engines, from which the saved prefill time is estimated."},
        saved=lambda r, *_: [f"rate {r['name']}: {r['prefill_tokens_per_s']:,g} tokens/s of {r['model']}"],
    )
)


# Tokenizers

_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens of a tokenizer_config.json, by the names that templates use."""


def _has_template(item: Record) -> str:
    if not item["digest"]:  # not shown to callers that are limited to tenants
        return ""
    return "no" if item["chat_template"] is None else "yes"


def _tokenizer_fields(put: type[msgspec.Struct], options: Fields) -> Fields:
    """Return the given fields, with the contents of the files. Raises UsageError."""
    file, template = options.pop("file"), options.pop("template")
    fields = given_fields(put, options)
    try:
        fields["tokenizer"] = file.read()
        return fields if template is None else {**fields, **_template(template.read(), template.name)}
    except UnicodeDecodeError as error:
        raise click.UsageError(f"expected text in UTF-8: {error}") from None


def _template(text: str, path: str) -> Fields:
    """Return the fields of the request for a chat template. Raises UsageError."""
    if not path.endswith(".json"):
        return {"chat_template": text}
    try:
        config = json.loads(text)
        template = config.get("chat_template")
    except (ValueError, AttributeError, RecursionError):
        raise click.UsageError(f"--chat-template: {path} is no tokenizer_config.json") from None
    if isinstance(template, list):  # several, by name
        named = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = named.get("default")
    if not isinstance(template, str):
        raise click.UsageError(f"--chat-template: {path} has no chat_template")
    tokens = {name: _content(config.get(name)) for name in _TOKENS}
    return {
        "chat_template": template,
        "special_tokens": {name: token for name, token in tokens.items() if token is not None},
    }


def _content(token: Any) -> str | None:
    """Return the text of a special token, which is a string or an object with the text."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _saved_tokenizer(tokenizer: Record, _changed: Fields, _kept: str) -> Iterator[str]:
    template = "with a chat template" if tokenizer["chat_template"] is not None else "without a chat template"
    digest = tokenizer["digest"][:16]
    yield f"{tokenizer['name']}: tokenizer of {tokenizer['model']}, SHA-256 {digest}…, {template}"


_tokenizer_options = together(
    click.option("--file", type=click.File(encoding="utf-8"), required=True, help="The tokenizer.json."),
    click.option(
        "--chat-template", "template", type=click.File(encoding="utf-8"),
        help="A Jinja template, or a tokenizer_config.json, which also has the special tokens.",
    ),
    click.option(
        "--no-special-tokens", "add_special_tokens", flag_value=False, type=bool, default=None,
        help="Add no special tokens around a text.",
    ),
)  # fmt: skip


tokenizers = record_commands(
    RecordNoun(
        path="/api/v1/tokenizers",
        noun="tokenizer",
        put=TokenizerPut,
        special=("tokenizer", "chat_template", "special_tokens", "add_special_tokens"),
        replaces=True,
        columns=(
            _NAME,
            Column("model", lambda t: t["model"]),
            Column("digest", lambda t: t["digest"][:16], drop=2),
            Column("chat template", _has_template, drop=1),
            Column("changed", lambda t: show.ago(t["updated_at"])),
            _note(3),
        ),
        help={
            "tokenizers": "Manage tokenizers of models, which allow pins and look-ups by text and messages.",
            "get": "Show one tokenizer, without its file.",
            "set": "Register or replace the tokenizer of a model.",
            "create": "Register a tokenizer under a name that no tokenizer has.",
            "delete": "Delete a tokenizer. Pins that were made with it stay.",
        },
        options=_tokenizer_options,
        changes=_tokenizer_fields,
        saved=_saved_tokenizer,
    )
)


# Pins

_PINS = RecordNoun(
    path="/api/v1/pins",
    noun="pin",
    put=PinPut,
    without=("managed_by", *PinSource.__struct_fields__),
    special=("expires_at",),
    columns=(
        _NAME,
        _TENANT,
        _MODEL,
        Column("strength", lambda p: p["strength"], drop=4),
        Column("resident", lambda p: f"{p['resident']}/{p['resolved']}", right=True),
        Column("degraded", lambda p: str(p["degraded"] or "-"), drop=6, right=True),
        Column("tier", show.tier, drop=3),
        _size("bytes", "bytes", drop=5),
        Column("in tiers", show.pin_tiers, drop=5),
        Column("ends", lambda p: show.ends(p["expires_at"]) + (" after a hit" if p["refresh_on_hit"] else ""), drop=2),
        Column("state", pin_rules.state),
        _nodes(7),
        _owner(9),
        _note(8),
    ),
    help={
        "pins": "Manage pins: prefixes that are kept in the cache.",
        "set": "Pin the prefix that the given tokens, keys, label, text or messages describe. For an existing pin, "
        "omitted options keep their values, and an omitted prefix keeps the pinned one.",
        "create": "Pin a prefix under a name that no pin has.",
    },
    filters=(
        click.option("--tenant", help="Only this tenant; `_default` for the empty salt."),
        click.option("--model", help="Only this model."),
        click.option("--tier", type=click.Choice(TIERS), help="Only this tier."),
        owner_option,
    ),
    options=pin_rules.options,
    waits=True,
    changes=pin_rules.fields,
    merged=pin_rules.merged,
    saved=pin_rules.saved,
)
pins = record_commands(_PINS)
pin_rules.add_extend(pins, _PINS)


# Tiers

tiers = record_commands(
    RecordNoun(
        path="/api/v1/tiers",
        noun="tier",
        put=TierPut,
        special=("parameters",),
        columns=(
            _NAME,
            Column("type", lambda tier: tier["type"]),
            _nodes(5),
            _size("budget", "budget_bytes"),
            _size("stored", "stored_bytes"),
            Column("blocks", lambda tier: f"{tier['blocks']:,}", drop=4, right=True),
            Column("unspilled", tier_rules.unspilled, drop=8, right=True),
            Column("spill", lambda tier: tier["spill"], drop=3),
            Column("order", lambda tier: str(tier["order"]), drop=6, right=True),
            Column("deadline", lambda tier: show.span(tier["load_deadline_s"]), drop=8, right=True),
            _size("in flight", "max_bytes_in_flight", drop=9),
            Column("compress", lambda tier: tier.get("compress", "none"), drop=10),
            Column("ratio", show.ratio, drop=11, right=True),
            _STATE,
            _owner(7),
            _note(2),
        ),
        help={
            "tiers": "Manage tiers, stores behind the memory of nodes. `check`, `repair` and `usage` open directories "
            "that no node uses.",
            "list": "List all tiers: those of records, and those of the settings of nodes.",
            "get": "Show one tier, and its state on each node.",
            "delete": "Delete a tier. Its nodes close it and no longer load its blocks, which stay on disks and "
            "servers. To keep the blocks in use, drain the tier before: `larder tiers set NAME --spill drain`.",
        },
        filters=(click.option("--type", metavar="TYPE", help="Only tiers of this type."), owner_option),
        options=click.option(
            "--parameters",
            metavar="YAML",
            help="Parameters of the type, as a map in YAML or JSON; secrets as references env:NAME or file:/path.",
        ),
        waits=True,
        dry_runs=True,
        changes=tier_rules.fields,
        saved=tier_rules.saved,
        fault=tier_rules.fault,
        listed=tier_rules.print_listed,
        shown=tier_rules.print_nodes,
        lost=tier_rules.lost,
    )
)
for offline in (check, repair, usage):
    tiers.add_command(offline)
