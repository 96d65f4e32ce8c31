"""`python -m benchmarks.eviction TRACE…`: what share of a trace each policy serves, through a real data plane.

Every figure is one `larder replay`: a data plane process with a pool of so many blocks, an engine process that looks
up, reads, checks and stores, and the policy put in force over the control socket. Figures that a simulation of the same
trace gave stand beside them. Minutes for each trace: not part of `make bench`.

Policies that go by time (`age_class`, and admission) get the trace's times, `--speed` times faster, with idle times
scaled alike; the others see the same order of requests as fast as they are served. A replay that could not keep up with
that speed is marked as late: its idle times were longer than they should have been, and its figure is worth nothing.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.expected_hits import expected_hit_ratio
from benchmarks.harness import machine
from benchmarks.harness.plot import Curve, line_plot
from dataplane.protocol.control.records import ALGORITHMS
from dataplane.replay.trace import TraceError, TraceRequest, read_trace

ADMISSION = "+admission"
VARIANTS = (*(name for name in ALGORITHMS if name != "noop"), "noop", "lru" + ADMISSION)
TIMED = ("age_class",)
LATE = 1.1
"""Times what a replay should have taken: beyond it, times are not those of the trace."""
CAPACITIES = "1,2,5,10,20,40"


class Run(msgspec.Struct, frozen=True):
    """One replay, and what a simulation of it gave."""

    trace: str
    policy: str
    capacity_percent: float
    """Of the trace's different blocks."""
    capacity_blocks: int
    hit_ratio: float
    """Share of all input blocks that were served by a contiguous cached prefix."""
    expected: float | None
    seconds: float
    speed: float | None
    """How many times faster than recorded; None: as fast as possible."""
    late: bool
    """It could not keep up with that speed."""
    verify_errors: int
    blocks_refused: dict[str, int]


class Report(msgspec.Struct, frozen=True):
    """The result file."""

    machine: dict[str, str | int]
    runs: list[Run]


class Subject(msgspec.Struct, frozen=True):
    """A trace to measure with."""

    path: Path
    unique_blocks: int
    duration_s: float

    @property
    def name(self) -> str:
        return self.path.stem


def _numbers(context: click.Context, parameter: click.Parameter, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"expected numbers and commas, got {text!r}") from None
    if not all(0 < number <= 100 for number in numbers):
        raise click.BadParameter(f"expected percentages above 0, at most 100, got {text!r}")
    return numbers


def _variants(context: click.Context, parameter: click.Parameter, text: str) -> list[str]:
    variants = text.split(",")
    for name in variants:
        if name.removesuffix(ADMISSION) not in ALGORITHMS:
            raise click.BadParameter(f"expected some of {', '.join(VARIANTS)}, got {name!r}")
    return variants


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("traces", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--policies", callback=_variants, default=",".join(VARIANTS), show_default=True)
@click.option(
    "--capacities",
    callback=_numbers,
    default=CAPACITIES,
    show_default=True,
    help="Pool sizes in percent of a trace's different blocks.",
)
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), default=200.0, show_default=True)
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N requests: no figures to compare.")
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, help="Replays at once.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Result file.")
@click.option("--svg", "svg_path", type=click.Path(dir_okay=False, path_type=Path), help="Plot, of the first trace.")
def main(
    traces: tuple[Path, ...],
    policies: list[str],
    capacities: list[float],
    speed: float,
    limit: int | None,
    jobs: int,
    json_path: Path | None,
    svg_path: Path | None,
) -> None:
    """Measure what eviction policies serve of TRACES (Mooncake format) at several pool sizes."""
    try:
        subjects = [_subject(path, read_trace(path, limit)) for path in traces]
    except TraceError as error:
        raise click.UsageError(str(error)) from None
    console = Console()
    cases = [(subject, name, percent) for subject in subjects for name in policies for percent in capacities]

    def measure(case: tuple[Subject, str, float]) -> Run:
        run = _measure(*case, speed, limit)
        console.print(f"{run.trace} {run.policy} {run.capacity_percent:g} %: {_figure(run)}", highlight=False)
        return run

    try:
        with ThreadPoolExecutor(jobs) as pool:
            runs = list(pool.map(measure, cases))
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    for subject in subjects:
        console.print(_table(subject, [run for run in runs if run.trace == subject.name], capacities))
    if json_path is not None:
        report = Report(machine.describe(), runs)
        json_path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    if svg_path is not None:
        svg_path.write_text(plot([run for run in runs if run.trace == subjects[0].name]))


def _subject(path: Path, requests: Sequence[TraceRequest]) -> Subject:
    unique = len({block for request in requests for block in request.hash_ids})
    return Subject(path, unique, max(request.timestamp for request in requests) / 1e3)


def _measure(subject: Subject, name: str, percent: float, speed: float, limit: int | None) -> Run:
    """One replay in a process of its own. RuntimeError when it fails."""
    algorithm = name.removesuffix(ADMISSION)
    blocks = max(1, int(subject.unique_blocks * percent / 100))
    timed = algorithm in TIMED or name != algorithm
    command = [sys.executable, "-m", "dataplane.replay", str(subject.path), "--json", "--policy", algorithm]
    command += ["--pool-blocks", str(blocks)]
    command += ["--speed", str(speed)] if timed else []
    command += ["--admission"] if name != algorithm else []
    command += ["--limit", str(limit)] if limit is not None else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])}: {done.stderr.strip()}")
    result = json.loads(done.stdout.splitlines()[-1])
    return Run(
        trace=subject.name,
        policy=name,
        capacity_percent=percent,
        capacity_blocks=blocks,
        hit_ratio=result["hit_ratio"],
        expected=None if limit else expected_hit_ratio(subject.unique_blocks, name, percent),
        seconds=result["seconds"],
        speed=speed if timed else None,
        late=timed and result["seconds"] > LATE * subject.duration_s / speed,
        verify_errors=result["verify_errors"],
        blocks_refused=result["blocks_refused"],
    )


def _table(subject: Subject, runs: Sequence[Run], capacities: Sequence[float]) -> Table:
    """Measured over expected, a row for each policy."""
    table = Table(title=f"{subject.name}: share of blocks served (simulated)", title_justify="left")
    table.add_column("policy")
    for percent in capacities:
        table.add_column(f"{percent:g} %", justify="right")
    for name in dict.fromkeys(run.policy for run in runs):
        table.add_row(name, *(_figure(run) for run in runs if run.policy == name))
    return table


def _figure(run: Run) -> str:
    late = " late" if run.late else ""
    expected = "" if run.expected is None else f" ({run.expected:.4f})"
    return f"{run.hit_ratio:.4f}{late}{expected}"


def plot(runs: Sequence[Run]) -> str:
    """Hit ratio over the size of the pool, as SVG: a line for each policy."""
    curves = [
        Curve(name, [(run.capacity_percent, run.hit_ratio) for run in runs if run.policy == name])
        for name in dict.fromkeys(run.policy for run in runs)
    ]
    return line_plot(curves, "pool, % of the trace's different blocks", "share of blocks served")


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.eviction")
