"""A report for people, and as a file for scripts."""

import re
from datetime import datetime
from pathlib import Path

import msgspec
from rich.table import Table

from benchmarks.harness.result import Report

RESULTS = Path(__file__).parents[1] / "results"


def table(report: Report) -> Table:
    """One row for each figure."""
    table = Table(title="Results (medians)", title_justify="left")
    table.add_column("what")
    for heading in ("value", "baseline", "target"):
        table.add_column(heading, justify="right")
    table.add_column("met")
    for result in report.results:
        mark = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[result.met]
        bound = "≥" if result.direction == "min" else "≤"
        table.add_row(
            result.name,
            f"{_number(result.value)} {result.unit}",
            "" if result.baseline is None else _number(result.baseline),
            "" if result.target is None else f"{bound} {_number(result.target)}",
            mark,
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def write(report: Report, folder: Path, kind: str = "") -> Path:
    """`<date>-<host>.json`, or `<date>-<host>-<kind>.json`; a later run of the same day replaces it."""
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", str(report.machine["host"])) or "unknown"
    date = datetime.now().astimezone().date().isoformat()
    path = folder / f"{'-'.join(filter(None, (date, host, kind)))}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return path
