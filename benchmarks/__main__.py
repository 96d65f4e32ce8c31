"""`python -m benchmarks`: run, print, write the result file.

Exit codes: 0 when everything ran, whether targets were met or not; 1 when something could not be measured.
"""

import re
import time
from datetime import datetime
from pathlib import Path
from statistics import median

import click
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks import machine
from benchmarks.memory import MiB
from benchmarks.result import Report, Result
from benchmarks.setting import FULL, QUICK, Setting
from benchmarks.suite import BENCHMARKS
from benchmarks.timing import once_ns

RESULTS = Path(__file__).parent / "results"
_COPY_BYTES = 32 * MiB
_COPIES = 11


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)), metavar="[NAME]...")
@click.option(
    "--quick", is_flag=True, help="A few samples only: to see that everything runs, not for figures."
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=RESULTS,
    help="Folder of the result file.",
)
def main(names: tuple[str, ...], quick: bool, output: Path) -> None:
    """Measure Larder's data plane beside what this machine can do, and compare with the targets."""
    setting = Setting(QUICK if quick else FULL)
    console = Console()
    results: list[Result] = []
    for name in names or tuple(BENCHMARKS):
        started = time.monotonic()
        console.print(f"{name} … ", end="")
        try:
            results += BENCHMARKS[name](setting)
        except RuntimeError as error:
            raise click.ClickException(f"{name}: {error}") from None
        console.print(f"{time.monotonic() - started:.1f} s")
    report = Report(machine.describe(), _memcpy_gbps(setting), results)
    console.print(_table(report))
    console.print(f"memcpy between shared mappings: {report.memcpy_gbps:.2f} GB/s")
    console.print(f"written to {_write(report, output)}", soft_wrap=True)


def _memcpy_gbps(setting: Setting) -> float:
    """The median of what the benchmarks saw; measured here when none of them copied."""
    if not setting.memcpy_gbps:
        with setting.memcpy(_COPY_BYTES) as memcpy:
            setting.memcpy_gbps += [_COPY_BYTES / once_ns(memcpy.into_arena) for _ in range(_COPIES)]
    return median(setting.memcpy_gbps)


def _table(report: Report) -> Table:
    table = Table(title="Results (medians)", title_justify="left")
    table.add_column("what")
    for heading in ("value", "baseline", "target"):
        table.add_column(heading, justify="right")
    table.add_column("met")
    for result in report.results:
        met = {True: "[green]yes[/]", False: "[red]no[/]", None: ""}[result.met]
        bound = "≥" if result.direction == "min" else "≤"
        table.add_row(
            result.name,
            f"{_number(result.value)} {result.unit}",
            "" if result.baseline is None else _number(result.baseline),
            "" if result.target is None else f"{bound} {_number(result.target)}",
            met,
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _write(report: Report, folder: Path) -> Path:
    """`<date>-<host>.json`; a later run of the same day replaces it."""
    host = re.sub(r"[^A-Za-z0-9.-]+", "-", str(report.machine["host"])) or "unknown"
    path = folder / f"{datetime.now().astimezone().date().isoformat()}-{host}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return path


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
