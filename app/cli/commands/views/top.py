"""`larder top`: a live view of nodes, tenants, pins and rates in a terminal.

Only this command imports rich, because that import takes longer than most commands.
"""

import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import click

from app.cli.support.api.client import base_url, call, url_option
from app.cli.support.exit_codes import Unreachable
from app.cli.support.printing import show
from app.cli.support.printing.terminal import WIDTH, is_terminal
from dataplane.base.visible import cell, plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

Json = Mapping[str, Any]
SORTS = ("used", "name", "hits", "asked", "refused")
KEYS = {"u": "used", "n": "name", "h": "hits", "a": "asked", "r": "refused"}
"""Keys that choose the column by which tenants are sorted."""
MAX_NODES = 6
MAX_PINS = 6
HEIGHT = 40
"""Number of lines if the output is not a terminal."""
FIXED_LINES = 9
"""Number of lines other than rows: summary, titles, headings, keys."""
TICK_S = 0.2
ONCE_S = 1.0
"""Seconds over which `--once` takes rates."""


@click.command()
@click.option("--once", is_flag=True, help="Print one frame, with the rates of a second, and exit.")
@click.option("--sort", type=click.Choice(SORTS), default="used", show_default=True, help="Column to sort tenants by.")
@click.option(
    "--every", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, help="Seconds between frames."
)
@url_option
def top(once: bool, sort: str, every: float, url: str | None) -> None:
    """Show nodes, tenants, pins and rates, live. Keys: q quits; u, n, h, a, r sort tenants by used, name, hits, asked
    and refused blocks."""
    if not once and not (is_terminal() and sys.stdin.isatty()):
        raise click.UsageError("this is not a terminal: --once prints one frame")
    from rich.console import Console

    if once:
        before = call(url, "GET", "/api/v1/overview")
        time.sleep(ONCE_S)
        overview = call(url, "GET", "/api/v1/overview")
        size = {} if is_terminal() else {"width": WIDTH}
        console = Console(highlight=False, **size)  # type: ignore[arg-type]
        console.print(_frame(overview, before, sort, HEIGHT, None))
        return
    _follow(Console(highlight=False), url, sort, every)


def _follow(console: "Console", url: str | None, sort: str, every_s: float) -> None:
    """Draw frames until q or Ctrl-C. Retries if the server does not answer."""
    from rich.live import Live

    before: Json | None = None
    overview: Json | None = None
    problem, requested_at, size = "", float("-inf"), None
    with ExitStack() as stack:
        stack.enter_context(_ended_by_signals())
        stack.enter_context(_keys())
        live = stack.enter_context(Live(console=console, screen=True, auto_refresh=False))
        while True:
            changed = console.size != size
            if time.monotonic() - requested_at >= every_s:
                requested_at, changed = time.monotonic(), True
                try:
                    answer = call(url, "GET", "/api/v1/overview", timeout_s=5.0)
                    before, overview, problem = overview, answer, ""
                except Unreachable as error:
                    problem = f"no answer from {base_url(url)}, retrying: {error.message}"
            if changed:
                size = console.size
                live.update(_frame(overview, before, sort, size.height, problem), refresh=True)
            key = _key(min(TICK_S, every_s))
            if key == "q":
                return
            if key in KEYS:
                sort, size = KEYS[key], None


@contextmanager
def _keys() -> Iterator[None]:
    """Let `_key` read keys without Enter within the block."""
    descriptor = sys.stdin.fileno()
    attributes = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, attributes)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into SystemExit, so that the terminal is restored."""

    def leave(number: int, _: object) -> None:
        raise SystemExit(0 if number == signal.SIGINT else 128 + number)

    handlers = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _key(wait_s: float) -> str:
    """Return the key pressed within `wait_s` seconds, or an empty string."""
    ready, _, _ = select.select([sys.stdin], [], [], wait_s)
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace") if ready else ""


def _frame(overview: Json | None, before: Json | None, sort: str, height: int, problem: str | None) -> "RenderableType":
    """Return a frame; without a line of keys if `problem` is None."""
    from rich.console import Group
    from rich.text import Text

    help_text = f"q quit · sort by {', '.join(f'{key} {name}' for key, name in KEYS.items())}"
    keys = [] if problem is None else [Text(help_text, style="dim")]
    trouble = [Text(plain(problem), style="bold red", no_wrap=True, overflow="ellipsis")] if problem else []
    if overview is None:
        return Group(*(trouble or [Text("waiting for the server")]), *keys)
    nodes, pins = overview["nodes"][:MAX_NODES], overview["pins"][:MAX_PINS]
    free_lines = max(1, height - FIXED_LINES - len(trouble) - len(nodes) - len(pins))
    tenants = _sorted(overview, before, sort)
    return Group(
        *trouble,
        *_summary(overview),
        _table("Nodes", _NODES, [_node(node) for node in nodes]),
        _table(f"Tenants ({overview['tenants_total']:,}, by {sort})", _TENANTS, tenants[:free_lines]),
        _table(f"Pins ({overview['pins_total']:,})", _PINS, [_pin(pin) for pin in pins]),
        *keys,
    )


def _summary(overview: Json) -> list["RenderableType"]:
    from rich.text import Text

    pool, rates = overview["pool"], overview["rates"]
    ready = "ready" if overview["ready"] else "not ready"
    first = (
        f"{ready} · pool {show.size(pool['used_bytes'])} of {show.size(pool['capacity_bytes'])}, pinned "
        f"{show.size(pool['pinned_bytes'])} · hit ratio {show.percent(rates['hit_ratio'])}"
    )
    second = (
        f"read {show.rate(round(rates['read_bytes_per_s']))} · "
        f"stored {show.rate(round(rates['stored_bytes_per_s']))} · "
        f"evicted {rates['evicted_blocks_per_s']:,.0f} blocks/s"
    )
    style = "bold" if overview["ready"] else "bold yellow"
    return [Text(line, style=style, no_wrap=True, overflow="ellipsis") for line in (first, second)]


_NODES = (("node", False), ("state", False), ("used", True), ("of", True), ("engines", True), ("hits", True))
_TENANTS = (("tenant", False), ("used", True), ("limit", True), ("hits", True), ("asked/s", True), ("refused/s", True))
_PINS = (("pin", False), ("tenant", False), ("strength", False), ("resident", True))


def _table(title: str, columns: Sequence[tuple[str, bool]], rows: Sequence[Sequence[str]]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, expand=True, pad_edge=False, title=Text(title, style="bold"), title_justify="left")
    for index, (name, right) in enumerate(columns):
        grid.add_column(
            name, justify="right" if right else "left", no_wrap=True, overflow="ellipsis",
            ratio=None if right else (3 if index == 0 else 2), header_style="dim",
        )  # fmt: skip
    for row in rows:
        grid.add_row(*(Text(text) for text in row))
    return grid


def _node(node: Json) -> list[str]:
    stats = node["stats"]
    state = f"{node['state']}{', draining' if node['draining'] else ''}"
    if stats is None:
        return [cell(node["name"]), state, "-", show.size(node["capacity_bytes"]), "-", "-"]
    requested = stats["totals"]["requested_blocks"]
    ratio = stats["totals"]["hit_blocks"] / requested if requested else None
    pool = stats["pool"]
    return [
        cell(node["name"]), state, show.size(pool["used_bytes"]), show.size(pool["capacity_bytes"]),
        show.engines(node), show.percent(ratio),
    ]  # fmt: skip


def _sorted(overview: Json, before: Json | None, sort: str) -> list[list[str]]:
    """Return the rows of tenants. Rates are relative to the previous frame."""
    tenants_before = {tenant["tenant"]: tenant for tenant in before["tenants"]} if before else {}
    span_s = overview["at"] - before["at"] if before else 0.0
    rows = []
    for tenant in overview["tenants"]:
        was = tenants_before.get(tenant["tenant"])
        requested, refused = (
            max(0.0, (tenant[name] - was[name]) / span_s) if was and span_s > 0 else None
            for name in ("requested_blocks", "refused_blocks")
        )
        value = {
            "used": -tenant["bytes"],
            "name": 0,
            "hits": -(tenant["hit_ratio"] or 0),
            "asked": -(tenant["requested_blocks"] if requested is None else requested),
            "refused": -(tenant["refused_blocks"] if refused is None else refused),
        }[sort]
        cells = [
            cell(tenant["tenant"]), show.size(tenant["bytes"]), show.size(tenant["limit_bytes"]),
            show.percent(tenant["hit_ratio"]),
            *("-" if rate is None else f"{rate:,.0f}" for rate in (requested, refused)),
        ]  # fmt: skip
        rows.append((value, tenant["tenant"], cells))
    return [cells for _, _, cells in sorted(rows, key=lambda row: row[:2])]


def _pin(pin: Json) -> list[str]:
    return [cell(pin["name"]), cell(pin["tenant"]), pin["strength"], f"{pin['resident']}/{pin['resolved']}"]
