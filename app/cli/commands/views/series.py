"""`larder series`: figures over time, and what happened meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from app.cli.support.api.client import call
from app.cli.support.api.names import NODES, TENANTS, names
from app.cli.support.keys import seconds
from app.cli.support.printing import show
from app.cli.support.printing.findings import at
from app.cli.support.printing.terminal import Column, say, table, wrapped
from app.cli.support.resources.options import Output, request_options

MAX_MARKS = 10
CELLS = 24
"""Characters of the small chart of a series."""
LEVELS = "▁▂▃▄▅▆▇█"
_NAMES = (
    Column("name", lambda series: series["name"]),
    Column("unit", lambda series: series["unit"], drop=2),
    Column("kept for", lambda series: ", ".join(series["scopes"]), drop=1),
    Column("meaning", lambda series: series["meaning"], drop=3, text=True),
)


@click.command()
@click.argument("name", nargs=-1, shell_complete=names(("/api/v1/series/names", "name")))
@click.option("--range", "span", default="1h", show_default=True, metavar="TIME", help="How far back to look.")
@click.option("--step", metavar="TIME", help="Time between points.  [default: at most 720 points]")
@click.option("--node", multiple=True, shell_complete=NODES, help="Show the series of this node; repeatable.")
@click.option("--tenant", multiple=True, shell_complete=TENANTS, help="Show the series of this tenant; repeatable.")
@request_options
def series(
    name: tuple[str, ...],
    span: str,
    step: str | None,
    node: tuple[str, ...],
    tenant: tuple[str, ...],
    url: str | None,
    output: Output,
) -> None:
    """Show figures over time, and the changes, alerts, crashes and restarts of the same time. Without NAME, list the
    names."""
    if not name:
        output.listing("Series", call(url, "GET", "/api/v1/series/names"), _NAMES, "name")
        return
    answer = call(
        url,
        "GET",
        "/api/v1/series",
        None,
        {
            "name": name,
            "node": node,
            "tenant": tenant,
            "range_s": f"{seconds('--range', span):.0f}",
            "step_s": None if step is None else f"{seconds('--step', step):.0f}",
        },
    )
    if output.data(answer, name):
        return
    table(f"Series of {span}", _columns(answer["series"]), answer["series"], wide=output.wide)
    _marks(answer["marks"])
    if answer["problem"]:
        wrapped(answer["problem"])


def _columns(items: Sequence[Mapping[str, Any]]) -> list[Column]:
    def figure(of: Callable[[list[float]], float]) -> Callable[[Mapping[str, Any]], str]:
        def text(item: Mapping[str, Any]) -> str:
            measured = [value for value in item["values"] if value is not None]
            return _text(of(measured), item["unit"]) if measured else "-"

        return text

    columns = [Column("name", lambda item: item["name"])]
    columns += [
        Column(of, lambda item, of=of: item[of] or "all")  # type: ignore[misc]
        for of in ("node", "tenant")
        if any(item[of] for item in items)
    ]
    return [
        *columns,
        Column("last", figure(lambda measured: measured[-1]), right=True),
        Column("least", figure(min), drop=3, right=True),
        Column("mean", figure(lambda measured: sum(measured) / len(measured)), drop=2, right=True),
        Column("most", figure(max), drop=3, right=True),
        Column("chart", lambda item: chart(item["values"]), drop=1),
    ]


def _text(value: float, unit: str) -> str:
    if unit == "ratio":
        return show.percent(value)
    if unit == "bytes":
        return show.size(round(value))
    if unit == "bytes/s":
        return show.rate(round(value))
    if unit == "seconds":
        return f"{value * 1e6:,.0f} µs" if value < 0.01 else f"{value:,.3g} s"
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.3g}"


def chart(values: Sequence[float | None], cells: int = CELLS) -> str:
    """Return the values as a line of bars from 0 to the largest, each the mean of its part of the time; dots where
    nothing was measured."""
    count = min(cells, len(values))
    means: list[float | None] = []
    for index in range(count):
        part = values[index * len(values) // count : (index + 1) * len(values) // count]
        measured = [value for value in part if value is not None]
        means.append(sum(measured) / len(measured) if measured else None)
    largest = max((mean for mean in means if mean is not None), default=0.0) or 1.0
    return "".join(
        "." if mean is None else LEVELS[min(len(LEVELS) - 1, int(mean / largest * len(LEVELS)))] for mean in means
    )


def _marks(marks: Sequence[Mapping[str, Any]]) -> None:
    if not marks:
        return
    say()
    shown = marks[-MAX_MARKS:]
    say(f"Meanwhile ({len(marks)})" if len(marks) == len(shown) else f"Meanwhile ({len(marks)}, the newest)")
    for mark in shown:
        node_note = f" on {mark['node']}" if mark["node"] else ""
        wrapped(f"  {at(mark['at'])}  {mark['kind']}: {mark['title']}{node_note}")
