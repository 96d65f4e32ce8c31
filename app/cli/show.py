"""Tables and words for people."""

import time
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from dataplane.protocol.units import format_size


def size(value: int | None) -> str:
    return "-" if value is None else format_size(value)


def percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.1f} %"


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


def applied(record: dict[str, Any]) -> str:
    """Where a record stands: applied, or the states of the nodes that are not there."""
    if record["status"]["applied"]:
        return "applied"
    nodes = record["status"]["nodes"]
    behind = [f"{name}: {at['state']}" for name, at in nodes.items() if at["state"] != "in_sync"]
    return "waiting" + (f" ({', '.join(behind)})" if behind else "")


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print; numbers are right-aligned under a name that ends with a space."""
    grid = Table(
        title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
    )
    for column in columns:
        grid.add_column(column.strip(), justify="right" if column.endswith(" ") else "left", overflow="fold")
    for row in rows:
        grid.add_row(*row)
    Console(highlight=False, markup=False).print(grid)
