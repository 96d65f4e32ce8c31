"""`larder policies …`: manage eviction policies, and show how nodes would respond to one."""

from collections.abc import Callable
from typing import Any

import click

from app.cli.support.api.client import call, every, find, state_headers, url_option, wait_option
from app.cli.support.printing import show
from app.cli.support.printing.terminal import Column, say, table
from app.cli.support.resources.fields import field_options, given_fields, put_fields, required
from app.cli.support.resources.options import Noun, Output, output_option, reach, watch_option
from app.cli.support.resources.verbs import Resource, add_delete, add_describe, add_edit, add_get, add_set, show_dry_run
from app.schemas.records.policies import PolicyPut
from dataplane.protocol.control.records import POLICY_IN_FORCE

_FIELDS = [name for name in PolicyPut.__struct_fields__ if name != "managed_by"]
_rules = field_options(PolicyPut, _FIELDS)


def _admission(policy: dict[str, Any]) -> str:
    idle = f"second touch below {policy['admission_idle_s']:g} s idle"
    return idle if policy["admission"] else "admits everything"


def _watermarks(policy: dict[str, Any]) -> str:
    high, low = policy["high_watermark"], policy["low_watermark"]
    return "at need" if high >= 1 else f"{100 * high:g} % to {100 * low:g} %"


_RULES: dict[str, Callable[[dict[str, Any]], str]] = {
    "algorithm": lambda policy: str(policy["algorithm"]),
    "admission": _admission,
    "watermarks": _watermarks,
}
"""The rules of a policy as text, by column."""

_RULE_COLUMNS = tuple(Column(name, cell) for name, cell in _RULES.items())
_COLUMNS = (
    Column("name", lambda p: p["name"]),
    Column("nodes", lambda p: reach(p["selector"], "all others")),
    Column("priority", lambda p: str(p["priority"]), drop=2, right=True),
    *_RULE_COLUMNS,
    Column("state", show.applied),
    Column("note", lambda p: p["note"], drop=1, text=True),
)
_IN_FORCE = (
    Column("node", lambda p: p["node"]),
    *_RULE_COLUMNS,
    Column("gate", lambda p: "closed" if p["gate_closed"] else "open"),
    Column(
        "victims idle",
        lambda p: "-" if p["victim_idle_s"] is None else f"{p['victim_idle_s']:.0f} s",
        drop=3,
        right=True,
    ),
    Column("admitted", lambda p: str(p["admitted_blocks"]), drop=2, right=True),
    Column("declined", lambda p: str(p["declined_blocks"]), drop=1, right=True),
)
_POLICIES = Resource("/api/v1/policies", "policy", _COLUMNS, default=POLICY_IN_FORCE, editable=_FIELDS)


@click.group(cls=Noun)
def policies() -> None:
    """Manage eviction policies. `default` applies to every node that no policy with a selector matches."""


@policies.command("list")
@url_option
@output_option
@watch_option
def list_policies(url: str | None, output: Output) -> None:
    """List all policies, and the policy in force on each node."""
    answer = every(url, _POLICIES.path)
    if output.listing("Policies", answer, _COLUMNS, "name"):
        say()
        in_force = [{"node": node, **policy} for node, policy in sorted(answer["in_force"].items())]
        table("In force", _IN_FORCE, in_force, wide=output.wide)


add_get(policies, _POLICIES, "Show one policy.")


@_POLICIES.argument
@_rules
@url_option
@wait_option
@output_option
def set_policy(name: str, url: str | None, wait: str | None, output: Output, **options: Any) -> None:
    changed = required(given_fields(PolicyPut, options))
    current = _POLICIES.current(url, name)
    unchanged = put_fields(PolicyPut, current or {})
    answer = call(url, "PUT", _POLICIES.of(name), {**unchanged, **changed}, {"wait": wait}, state_headers(current))
    if not output.data(answer, name):
        say(f"{name}: {', '.join(rule(answer) for rule in _RULES.values())}; {show.applied(answer)}")


add_set(
    policies,
    set_policy,
    about="Set a policy. Omitted options keep the values of the record; a new record gets the defaults.",
    create="Create a policy.",
)
add_edit(policies, _POLICIES, waits=True)
add_delete(
    policies, _POLICIES, "Delete a policy. Its nodes use another matching policy, or their defaults.", waits=True
)
add_describe(policies, _POLICIES)


@policies.command("check")
@_POLICIES.argument
@_rules
@url_option
@output_option
def check_policy(name: str, url: str | None, output: Output, **options: Any) -> None:
    """Show how every node would respond to a policy, without setting it. Omitted options are treated as in `set`."""
    changed = required(given_fields(PolicyPut, options))
    current = find(url, _POLICIES.of(name))
    body = {**put_fields(PolicyPut, current or {}), **changed}
    answer = call(url, "POST", "/api/v1/actions/dry-run", {"policies": {name: body}})
    show_dry_run(answer, "policy", body.get("selector"), output)
