"""`make bench-engines`: vLLM alone, with a connector that does nothing, with LMCache's connector on both servers, and
with Larder's connector.

Exit codes: 0 when everything ran, whether targets were met or not; 1 when vLLM alone could not be measured. An engine
whose connector fails is left out, and the report says why.
"""

import os
import re
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median

import click
import msgspec
from rich.console import Console

from benchmarks.engines import look_ups
from benchmarks.engines.comparison import FULL, QUICK, Comparison
from benchmarks.engines.figures import SECTION, results_of, section_of
from benchmarks.engines.lineup import BARE, TITLES, dtype, lineup
from benchmarks.harness import machine, setting
from benchmarks.harness.memory import Memcpy, MiB
from benchmarks.harness.report import RESULTS, table, write
from benchmarks.harness.result import Report
from benchmarks.harness.timing import once_ns
from dataplane.replay.trace import TraceError, read_trace

PAGE = Path(__file__).parents[1] / "FIGURES.md"
NEXT = "## What a connector costs"
_COPY_BYTES = 32 * MiB


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Two rounds: to see that everything runs, not for figures.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    envvar="LARDER_BENCH_TRACE",
    help="Trace in Mooncake's format, for goodput [env: LARDER_BENCH_TRACE]; without one it is not measured.",
)
@click.option(
    "--sets",
    type=click.IntRange(1),
    help=f"Number of sets of processes, each measured in turn; {FULL.sets} by default. More sets narrow the intervals.",
)
@click.option(
    "--engines",
    type=click.Choice([each for each in TITLES if each != BARE]),
    multiple=True,
    help="Engine to compare with vLLM alone; may be repeated. Default: all.",
)
@click.option("--docs", is_flag=True, help=f"Write the table into {PAGE.relative_to(PAGE.parents[1])}.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=RESULTS, help="Folder of the result files."
)
def main(quick: bool, trace: Path | None, sets: int | None, engines: tuple[str, ...], docs: bool, output: Path) -> None:
    """Compare connectors of vLLM: engines on CPU with a tiny model, which take turns."""
    if docs and (quick or engines):
        raise click.UsageError("figures of a quick run, or without an engine, do not go into the documentation")
    names = (BARE, *engines) if engines else tuple(TITLES)
    effort = QUICK if quick else FULL
    if sets is not None:
        effort = msgspec.structs.replace(effort, sets=sets)
    console = Console()
    failed: dict[str, str] = {}
    load = os.getloadavg()[0]
    try:
        comparison = Comparison(effort, [] if trace is None else read_trace(trace))
        for number in range(effort.sets):
            console.print(f"set {number + 1} of {effort.sets} …")
            with (
                tempfile.TemporaryDirectory(prefix="larder-bench-", dir="/tmp") as folder,
                lineup(Path(folder), effort.pool_bytes, names) as running,
            ):
                comparison.measure(running)
            failed |= running.failed
    except (RuntimeError, TraceError) as error:
        raise click.ClickException(str(error)) from None
    samples = {
        figure: {name: values for name, values in each.items() if name not in failed}
        for figure, each in comparison.samples.items()
    }
    results = results_of(samples, effort.sets) + look_ups.run(setting.Setting(setting.QUICK if quick else setting.FULL))
    described = machine.describe() | {f"{name}_failed": why for name, why in failed.items()}
    described["dtype"] = dtype()
    described["load"] = f"{load:.1f} before, {os.getloadavg()[0]:.1f} after (the engines themselves: about 1)"
    with closing(Memcpy(_COPY_BYTES, effort.pool_bytes)) as memcpy:
        speed = median(_COPY_BYTES / once_ns(memcpy.into_arena) for _ in range(11))
    report = Report(described, speed, results)
    console.print(table(report))
    console.print("baseline: vLLM alone (of look-ups: one message to another process and back)")
    path = write(report, output, "engines")
    section = section_of(report, samples, effort.sets)
    path.with_suffix(".md").write_text(section)
    console.print(section, markup=False, soft_wrap=True)
    console.print(f"written to {path} and {path.with_suffix('.md')}", soft_wrap=True)
    if docs:
        pattern = f"({SECTION}\n.*?)?(?={NEXT})"
        PAGE.write_text(re.sub(pattern, lambda _: section + "\n", PAGE.read_text(), count=1, flags=re.DOTALL))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.engines")
