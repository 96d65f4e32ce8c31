"""`larder policies …`."""

from typing import Any

import click

from app.cli.support import show
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
from app.cli.support.keys import FINITE, F
from app.cli.support.lists import listed, title, unasked_option
from app.cli.support.selectors import reach, selector_option
from app.cli.support.selectors import selector as read_selector
from app.cli.support.terminal import say
from dataplane.protocol.control import ALGORITHMS, POLICY_IN_FORCE

_FIELDS = (
    "algorithm",
    "admission",
    "admission_idle_s",
    "high_watermark",
    "low_watermark",
    "note",
    "priority",
    "selector",
)
_KEPT = (*_FIELDS, "managed_by")
_name = click.argument("name", default=POLICY_IN_FORCE)


@click.group()
def policies() -> None:
    """Manage eviction policies. `default` applies to every node that no policy with a selector matches."""


@policies.command("list")
@url_option
@json_option
def list_policies(url: str | None, as_json: bool) -> None:
    """Show all policies, and the policy in force on each node."""
    answer = listed(url, "/api/v1/policies")
    if as_json:
        print_json(answer)
        return
    rows = [
        [
            p["name"],
            reach(p["selector"], "all others"),
            str(p["priority"]),
            *_described(p),
            show.applied(p),
            p["note"],
        ]
        for p in answer["items"]
    ]
    columns = ["name", "nodes", "priority ", "algorithm", "admission", "watermarks", "state", "note"]
    show.table(title("Policies", answer), columns, rows)
    rows = [
        [
            node,
            *_described(p),
            "closed" if p["gate_closed"] else "open",
            "-" if p["victim_idle_s"] is None else f"{p['victim_idle_s']:.0f} s",
            str(p["admitted_blocks"]),
            str(p["declined_blocks"]),
        ]
        for node, p in sorted(answer["in_force"].items())
    ]
    say()
    columns = [
        "node",
        "algorithm",
        "admission",
        "watermarks",
        "gate",
        "victims idle ",
        "admitted ",
        "declined ",
    ]
    show.table("In force", columns, rows)


@policies.command("get")
@_name
@url_option
def get_policy(name: str, url: str | None) -> None:
    """Show a policy as JSON."""
    print_json(call(url, "GET", _path(name)))


def _rules(command: F) -> F:
    """Add the options that define a policy."""
    for option in (
        selector_option,
        click.option("--priority", type=int, help="Of several that match a node, the highest is in force."),
        click.option("--note", help="Free-form note."),
        click.option("--low-watermark", type=FINITE, help="Down to this share of the pool."),
        click.option(
            "--high-watermark", type=FINITE, help="Evict ahead of need above this share of the pool."
        ),
        click.option(
            "--admission-idle", type=FINITE, metavar="SECONDS", help="Pressure: victims were idle for less."
        ),
        click.option(
            "--admission/--no-admission",
            default=None,
            help="Under pressure, admit only keys that were seen before.",
        ),
        click.option("--algorithm", type=click.Choice(ALGORITHMS), help="In which order blocks go."),
    ):
        command = option(command)
    return command


@policies.command("set")
@_name
@_rules
@url_option
@wait_option
@json_option
def set_policy(name: str, url: str | None, wait: str | None, as_json: bool, **options: Any) -> None:
    """Set a policy. Omitted options keep the values of the record; a new record gets the defaults."""
    changed = _changed(**options)
    held: dict[str, Any] | None = find(url, _path(name))
    kept = {} if held is None else {field: held[field] for field in _KEPT}
    answer = call(url, "PUT", _path(name), {**kept, **changed}, {"wait": wait}, held_state(held))
    if as_json:
        print_json(answer)
    else:
        say(f"{name}: {', '.join(_described(answer))}; {show.applied(answer)}")


@policies.command("check")
@_name
@_rules
@url_option
@json_option
def check_policy(name: str, url: str | None, as_json: bool, **options: Any) -> None:
    """Show what every node would answer to a policy, without setting it. Omitted options are treated as in `set`."""
    changed = _changed(**options)
    held = find(url, _path(name))
    kept = {} if held is None else {field: held[field] for field in _KEPT}
    answer = call(url, "POST", "/api/v1/actions/dry-run", {"policies": {name: {**kept, **changed}}})
    if as_json:
        print_json(answer)
    else:
        for node in answer["items"]:
            faults = "; ".join(f"{fault['path']}: {fault['message']}" for fault in node["faults"])
            say(f"{node['node']}: {'accepted' if node['accepted'] else faults or node['error']}")
    if not answer["accepted"]:
        raise click.ClickException("not every node would take it")


@policies.command("unset")
@_name
@unasked_option
@url_option
@wait_option
def unset_policy(name: str, url: str | None, wait: str | None) -> None:
    """Delete a policy. Its nodes use another matching policy, or their defaults."""
    call(url, "DELETE", _path(name), None, {"wait": wait}, ANY_STATE)
    say(f"{name}: policy deleted")


def _path(name: str) -> str:
    return f"/api/v1/policies/{segment(name)}"


def _changed(admission_idle: float | None, selector: tuple[str, ...], **given: Any) -> dict[str, Any]:
    """Return the fields that the options set. Raises UsageError if there are none."""
    asked = {**given, "admission_idle_s": admission_idle, "selector": read_selector(selector)}
    changed = {field: asked[field] for field in _FIELDS if asked[field] is not None}
    if not changed:
        raise click.UsageError("expected at least one option that says what to set")
    return changed


def _described(policy: dict[str, Any]) -> list[str]:
    """Return the algorithm, the admission rule and the watermarks as text."""
    idle = f"second touch below {policy['admission_idle_s']:g} s idle"
    high, low = policy["high_watermark"], policy["low_watermark"]
    marks = "at need" if high >= 1 else f"{100 * high:g} % to {100 * low:g} %"
    return [str(policy["algorithm"]), idle if policy["admission"] else "admits everything", marks]
