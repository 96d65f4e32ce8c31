"""`larder policies …`."""

from typing import Any

import click

from app.cli import show
from app.cli.client import call, find, json_option, print_json, url_option, wait_option
from dataplane.protocol.control import ALGORITHMS, POLICY_IN_FORCE

_PATH = f"/api/v1/policies/{POLICY_IN_FORCE}"
_FIELDS = ("algorithm", "admission", "admission_idle_s", "high_watermark", "low_watermark", "note")


@click.group()
def policies() -> None:
    """How victims are chosen. One record, `default`, is in force."""


@policies.command("list")
@url_option
@json_option
def list_policies(url: str | None, as_json: bool) -> None:
    """Show the policy, and what nodes have in force."""
    answer = call(url, "GET", "/api/v1/policies")
    if as_json:
        print_json(answer)
        return
    rows = [[*_described(p), show.applied(p), p["note"]] for p in answer["items"]]
    show.table("Policy", ["algorithm", "admission", "watermarks", "state", "note"], rows)
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
    click.echo()
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
@url_option
def get_policy(url: str | None) -> None:
    """Show the policy record as JSON."""
    print_json(call(url, "GET", _PATH))


@policies.command("set")
@click.option("--algorithm", type=click.Choice(ALGORITHMS), help="In which order blocks go.")
@click.option(
    "--admission/--no-admission", default=None, help="Under pressure, admit only keys that were seen before."
)
@click.option("--admission-idle", type=float, metavar="SECONDS", help="Pressure: victims were idle for less.")
@click.option("--high-watermark", type=float, help="Evict ahead of need above this share of the pool.")
@click.option("--low-watermark", type=float, help="Down to this share of the pool.")
@click.option("--note", help="For people.")
@url_option
@wait_option
@json_option
def set_policy(
    algorithm: str | None,
    admission: bool | None,
    admission_idle: float | None,
    high_watermark: float | None,
    low_watermark: float | None,
    note: str | None,
    url: str | None,
    wait: str | None,
    as_json: bool,
) -> None:
    """Set the policy. Options that are left out keep what the record has, or are the defaults of a new one."""
    values = (algorithm, admission, admission_idle, high_watermark, low_watermark, note)
    changed = {name: value for name, value in zip(_FIELDS, values, strict=True) if value is not None}
    if not changed:
        raise click.UsageError("expected at least one option that says what to set")
    held: dict[str, Any] = find(url, _PATH) or {}
    kept = {name: held[name] for name in _FIELDS if name in held}
    answer = call(url, "PUT", _PATH, {**kept, **changed}, {"wait": wait})
    if as_json:
        print_json(answer)
    else:
        click.echo(f"policy: {', '.join(_described(answer))}; {show.applied(answer)}")


@policies.command("unset")
@url_option
@wait_option
def unset_policy(url: str | None, wait: str | None) -> None:
    """Forget the policy record; nodes go back to their defaults."""
    call(url, "DELETE", _PATH, None, {"wait": wait})
    click.echo("policy: record deleted; nodes use their defaults")


def _described(policy: dict[str, Any]) -> list[str]:
    """Algorithm, admission, watermarks."""
    idle = f"second touch below {policy['admission_idle_s']:g} s idle"
    high, low = policy["high_watermark"], policy["low_watermark"]
    marks = "at need" if high >= 1 else f"{100 * high:g} % to {100 * low:g} %"
    return [str(policy["algorithm"]), idle if policy["admission"] else "admits everything", marks]
