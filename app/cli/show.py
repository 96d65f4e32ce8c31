"""Tables and words for people."""

import sys
import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from app.cli.terminal import say
from app.observe.visible import cell, plain
from dataplane.protocol.units import format_size

WIDE = 400
"""Characters in a line where nothing wraps it."""


def size(value: int | None) -> str:
    return "-" if value is None else format_size(value)


def floor(floor_bytes: int, effective_bytes: int | None) -> str:
    """The floor, and what of it is really guaranteed when that is less."""
    if effective_bytes is None or effective_bytes >= floor_bytes:
        return size(floor_bytes or None)
    return f"{size(floor_bytes)} ({size(effective_bytes)} in effect)"


def rate(bytes_per_s: int | None) -> str:
    return "-" if bytes_per_s is None else f"{format_size(bytes_per_s)}/s"


def percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.1f} %"


def span(seconds: float) -> str:
    """`7d`, `90m`, `45s`: as it is written for a command."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:g}s"


def plural(number: int, one: str) -> str:
    """`1 chunk`, `2,000 chunks`."""
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def tier(pin: dict[str, Any]) -> str:
    """`host`, also where a server of an older release knows no other; or how many replicas are on GPUs."""
    tier = str(pin.get("tier", "host"))
    return f"gpu ({plural(pin['replicas'], 'replica')})" if tier == "gpu" else tier


def ends(expires_at: float | None) -> str:
    """`never`, `in 3 h`, `expired`."""
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
    """`5 s ago`."""
    passed = max(time.time() - at, 0)
    for unit, seconds in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if passed >= 2 * seconds:
            return f"{passed / seconds:.0f} {unit} ago"
    return f"{passed:.0f} s ago"


def replica_pools(node: dict[str, Any]) -> list[dict[str, Any]]:
    """What the node's GPUs keep of pins; nothing when it has not told, or the server is of an older release."""
    return [] if node["stats"] is None else list(node["stats"].get("replica_pools", ()))


def pool_state(pool: dict[str, Any]) -> str:
    """What is worth a look about a GPU's replicas first."""
    if pool["problem"]:
        return str(pool["problem"])
    if pool["copying"] or pool["wanted"] <= pool["replicas"]:
        return "-"
    return "full" if pool["used_bytes"] >= pool["capacity_bytes"] else "not all fit"


def faults(nodes: Iterable[dict[str, Any]]) -> None:
    """A line for everything that a node refused and still does not hold, and for every GPU that it cannot use as it
    should."""
    for node in nodes:
        for pool in replica_pools(node):
            if pool["problem"]:
                say(f"  {node['name']} replicas on {pool['name']} ({pool['device']}): {pool['problem']}")
        for fault in node["faults"]:
            say(
                f"  {node['name']} refused {fault['type']}: {fault['path']}: {fault['message']} ({ago(fault['at'])})"
            )


def applied(record: dict[str, Any]) -> str:
    """Where a record stands: applied, or the states of the nodes that are not there."""
    if record["status"]["applied"]:
        return "applied"
    nodes = record["status"]["nodes"]
    behind = [f"{name}: {at['state']}" for name, at in nodes.items() if at["state"] != "in_sync"]
    return "waiting" + (f" ({', '.join(behind)})" if behind else "")


def ineffective(record: dict[str, Any]) -> str:
    """Why a record that is applied does not do what it says; empty when it does."""
    conditions = {each["type"]: each for each in record["status"]["conditions"]}
    effective = conditions.get("Effective")
    if not record["status"]["applied"] or effective is None or effective["status"] != "False":
        return ""
    return f"not effective: {effective['message']}"


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print; numbers are right-aligned under a name that ends with a space."""
    grid = Table(
        title=plain(title),
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
    )
    for column in columns:
        grid.add_column(column.strip(), justify="right" if column.endswith(" ") else "left", overflow="fold")
    for row in rows:
        grid.add_row(*map(cell, row))
    # Nobody looks at a file or a pipe as wide as a terminal: lines stay whole.
    width = None if sys.stdout.isatty() else WIDE
    Console(highlight=False, markup=False, width=width).print(grid)
