"""Format records as tables and text."""

import time
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from app.cli.support.table import Column
from app.cli.support.table import table as print_table
from app.cli.support.terminal import say
from dataplane.base.units import format_size

ID_JOURNAL_WARNS = 0.8
"""Share of the id journal's capacity above which a line warns."""


def size(value: int | None) -> str:
    return "-" if value is None else format_size(value)


def floor(floor_bytes: int, effective_bytes: int | None) -> str:
    """Return the floor, and the guaranteed part if that is less."""
    if effective_bytes is None or effective_bytes >= floor_bytes:
        return size(floor_bytes or None)
    return f"{size(floor_bytes)} ({size(effective_bytes)} in effect)"


def rate(bytes_per_s: int | None) -> str:
    return "-" if bytes_per_s is None else f"{format_size(bytes_per_s)}/s"


def percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.1f} %"


def span(seconds: float) -> str:
    """Return a duration as commands accept it: `7d`, `90m`, `45s`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:g}s"


def plural(number: int, one: str, many: str = "") -> str:
    """Return a count with its noun: `1 chunk`, `2,000 chunks`. `many` is the plural where an s does not make it."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def tier(pin: dict[str, Any]) -> str:
    """Return the tier of a pin: `host` (also if an older server does not report it), or `gpu` with the number of GPU
    copies."""
    tier = str(pin.get("tier", "host"))
    return f"gpu ({plural(pin['gpu_copies'], 'GPU copy', 'GPU copies')})" if tier == "gpu" else tier


def ends(expires_at: float | None) -> str:
    """Return the time until the end: `never`, `in 3 h`, `expired`."""
    if expires_at is None:
        return "never"
    left = expires_at - time.time()
    if left <= 0:
        return "expired"
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if left >= 2 * seconds:
            return f"in {left / seconds:.0f} {unit}"
    return f"in {left:.0f} s"


def ago(at: float) -> str:
    """Return the time since a moment: `5 s ago`."""
    passed = max(time.time() - at, 0)
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if passed >= 2 * seconds:
            return f"{passed / seconds:.0f} {unit} ago"
    return f"{passed:.0f} s ago"


def gpu_copy_pools(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the node's pools of GPU copies; empty if the node has not reported or the server is of an older
    release."""
    return [] if node["stats"] is None else list(node["stats"].get("gpu_copy_pools", ()))


def pool_state(pool: dict[str, Any]) -> str:
    """Return the most important state of a pool of GPU copies: its problem, or that not all copies fit."""
    if pool["problem"]:
        return str(pool["problem"])
    if pool["copying"] or pool["wanted"] <= pool["gpu_copies"]:
        return "-"
    return "full" if pool["used_bytes"] >= pool["capacity_bytes"] else "not all fit"


def _id_journal(node: dict[str, Any]) -> None:
    """Print a line if the node will soon refuse further tenants."""
    stats = node["stats"] or {}
    used, capacity = stats.get("id_journal_bytes", 0), stats.get("id_journal_capacity_bytes", 0)
    if capacity and used >= ID_JOURNAL_WARNS * capacity:
        say(
            f"  {node['name']} id journal: {100 * used / capacity:.0f} % full of tenants with blocks; "
            "further tenants are refused when it is full"
        )


def faults(nodes: Iterable[dict[str, Any]]) -> None:
    """Print a line for every refusal that still applies, for every GPU with a problem, and for an id journal that is
    nearly full."""
    for node in nodes:
        for pool in gpu_copy_pools(node):
            if pool["problem"]:
                say(f"  {node['name']} GPU copies on {pool['name']} ({pool['device']}): {pool['problem']}")
        _id_journal(node)
        for fault in node["faults"]:
            say(
                f"  {node['name']} refused {fault['type']}: {fault['path']}: {fault['message']} ({ago(fault['at'])})"
            )


def applied(record: dict[str, Any]) -> str:
    """Return `applied`, or `waiting` with the states of the nodes that have not applied the record."""
    if record["status"]["applied"]:
        return "applied"
    nodes = record["status"]["nodes"]
    behind = [f"{name}: {at['state']}" for name, at in nodes.items() if at["state"] != "in_sync"]
    return "waiting" + (f" ({', '.join(behind)})" if behind else "")


def ineffective(record: dict[str, Any]) -> str:
    """Return why an applied record is not effective; empty if it is."""
    conditions = {each["type"]: each for each in record["status"]["conditions"]}
    effective = conditions.get("Effective")
    if not record["status"]["applied"] or effective is None or effective["status"] != "False":
        return ""
    return f"not effective: {effective['message']}"


def refused(tenant: Mapping[str, Any]) -> str:
    """Return the number of refused blocks, with the most frequent reason."""
    reasons: dict[str, int] = tenant.get("refused") or {}
    count = tenant["refused_blocks"]
    if not reasons:
        return f"{count:,}"
    most = max(reasons, key=lambda reason: reasons[reason])
    more = f", {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return f"{count:,} ({most}{more})"


def table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    text: Sequence[str] = (),
    *,
    wide: bool = False,
) -> None:
    """Print a table. A column whose name ends with a space is right-aligned, for numbers; those in `text` may be
    shortened, the last one always."""
    made = [
        Column(
            name.strip(),
            itemgetter(at),
            right=name.endswith(" "),
            text=at == len(columns) - 1 or name in text,
        )
        for at, name in enumerate(columns)
    ]
    print_table(title, made, list(rows), wide=wide)
