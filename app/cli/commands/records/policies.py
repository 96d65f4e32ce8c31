"""`larder policies …`."""

from collections.abc import Callable
from typing import Any

import click

from app.cli.support import show
from app.cli.support.client import (
    call,
    find,
    held_state,
    json_option,
    print_json,
    url_option,
    wait_option,
)
from app.cli.support.fields import field_options, given_fields, kept_fields, required
from app.cli.support.lists import listed, title
from app.cli.support.resources import Resource, add_delete, add_get
from app.cli.support.selectors import reach
from app.cli.support.terminal import say
from app.schemas.records.policies import PolicyPut
from dataplane.protocol.control import POLICY_IN_FORCE

_rules = field_options(PolicyPut, [name for name in PolicyPut.__struct_fields__ if name != "managed_by"])
_POLICIES = Resource("/api/v1/policies", "policy", default=POLICY_IN_FORCE)


@click.group()
def policies() -> None:
    """Manage eviction policies. `default` applies to every node that no policy with a selector matches."""


add_get(policies, _POLICIES, "Show a policy as JSON.")
add_delete(
    policies,
    _POLICIES,
    "Delete a policy. Its nodes use another matching policy, or their defaults.",
    verb="unset",
    waits=True,
)


@policies.command("list")
@url_option
@json_option
def list_policies(url: str | None, as_json: bool) -> None:
    """Show all policies, and the policy in force on each node."""
    answer = listed(url, _POLICIES.path)
    if as_json:
        print_json(answer)
        return
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "name": lambda p: p["name"],
        "nodes": lambda p: reach(p["selector"], "all others"),
        "priority ": lambda p: str(p["priority"]),
        **_RULES,
        "state": show.applied,
        "note": lambda p: p["note"],
    }
    show.listing(title("Policies", answer), answer["items"], columns)
    columns = {
        "node": lambda p: p["node"],
        **_RULES,
        "gate": lambda p: "closed" if p["gate_closed"] else "open",
        "victims idle ": lambda p: "-" if p["victim_idle_s"] is None else f"{p['victim_idle_s']:.0f} s",
        "admitted ": lambda p: str(p["admitted_blocks"]),
        "declined ": lambda p: str(p["declined_blocks"]),
    }
    say()
    in_force = [{"node": node, **policy} for node, policy in sorted(answer["in_force"].items())]
    show.listing("In force", in_force, columns)


@policies.command("set")
@_POLICIES.argument
@_rules
@url_option
@wait_option
@json_option
def set_policy(name: str, url: str | None, wait: str | None, as_json: bool, **options: Any) -> None:
    """Set a policy. Omitted options keep the values of the record; a new record gets the defaults."""
    changed = required(given_fields(PolicyPut, options))
    held: dict[str, Any] | None = find(url, _POLICIES.of(name))
    kept = kept_fields(PolicyPut, held or {})
    answer = call(url, "PUT", _POLICIES.of(name), {**kept, **changed}, {"wait": wait}, held_state(held))
    if as_json:
        print_json(answer)
    else:
        say(f"{name}: {', '.join(said(answer) for said in _RULES.values())}; {show.applied(answer)}")


@policies.command("check")
@_POLICIES.argument
@_rules
@url_option
@json_option
def check_policy(name: str, url: str | None, as_json: bool, **options: Any) -> None:
    """Show what every node would answer to a policy, without setting it. Omitted options are treated as in `set`."""
    changed = required(given_fields(PolicyPut, options))
    held = find(url, _POLICIES.of(name))
    kept = kept_fields(PolicyPut, held or {})
    answer = call(url, "POST", "/api/v1/actions/dry-run", {"policies": {name: {**kept, **changed}}})
    if as_json:
        print_json(answer)
    else:
        for node in answer["items"]:
            faults = "; ".join(f"{fault['path']}: {fault['message']}" for fault in node["faults"])
            say(f"{node['node']}: {'accepted' if node['accepted'] else faults or node['error']}")
    if not answer["accepted"]:
        raise click.ClickException("not every node would take it")


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
