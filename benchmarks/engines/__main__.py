"""`make bench-engines`: vLLM alone, with vLLM's own offloading, with LMCache's connector on both servers, and with
Larder's connector. Users ask questions about long texts, which the engine's own cache cannot keep.

The result files are written after each round. An engine that fails is left out, and the report says why.

Exit codes: 0 when a round ran, whether targets were met or not; 1 when no engine could be measured.
"""

import re
import signal
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median

import click
import msgspec
from rich.console import Console

from benchmarks.engines import look_ups
from benchmarks.engines.comparison import FULL, QUICK, Comparison, Questions, Samples
from benchmarks.engines.figures import SECTION, results_of, section_of, summarized
from benchmarks.engines.lineup import BLOCKS, MAX_TOKENS, TITLES, dtype, lineup
from benchmarks.harness import machine, setting
from benchmarks.harness.memory import Memcpy, MiB
from benchmarks.harness.report import RESULTS, table, write
from benchmarks.harness.result import Report
from benchmarks.harness.timing import once_ns

PAGE = Path(__file__).parents[1] / "FIGURES.md"
NEXT = "## What a connector costs"
_COPY_BYTES = 32 * MiB
MAX_HISTORY = MAX_TOKENS - Questions().question - Questions().answer


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--quick", is_flag=True, help="Two short rounds: to see that everything runs, not for figures.")
@click.option("--users", type=click.IntRange(1), default=Questions().users, show_default=True)
@click.option(
    "--history",
    type=(click.IntRange(1, MAX_HISTORY), click.IntRange(1, MAX_HISTORY)),
    default=Questions().history,
    show_default=True,
    help="Shortest and longest text of a user, in tokens.",
)
@click.option(
    "--rate",
    type=click.FloatRange(0.01),
    multiple=True,
    default=Questions().rates,
    show_default=True,
    help="Questions a second; may be repeated.",
)
@click.option("--rounds", type=click.IntRange(1), help=f"Rounds of each set; {FULL.rounds} by default.")
@click.option("--seconds", type=click.FloatRange(1), help="How long questions arrive in each round.")
@click.option("--busy", type=click.IntRange(0), default=0, help="Number of other processes that compute all the time.")
@click.option(
    "--sets",
    type=click.IntRange(1),
    help=f"Number of sets of processes, each measured in turn; {FULL.sets} by default. More sets narrow the intervals.",
)
@click.option(
    "--engines",
    type=click.Choice(list(TITLES)),
    multiple=True,
    help="Engine to measure; may be repeated. Default: all.",
)
@click.option("--docs", is_flag=True, help=f"Write the table into {PAGE.relative_to(PAGE.parents[1])}.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=RESULTS, help="Folder of the result files."
)
def main(
    quick: bool,
    users: int,
    history: tuple[int, int],
    rate: tuple[float, ...],
    rounds: int | None,
    seconds: float | None,
    busy: int,
    sets: int | None,
    engines: tuple[str, ...],
    docs: bool,
    output: Path,
) -> None:
    """Compare connectors of vLLM: engines on CPU with a small model, which take turns."""
    if history[0] > history[1]:
        raise click.UsageError("--history: expected the shortest text first")
    if docs and quick:
        raise click.UsageError("figures of a quick run do not go into the documentation")
    engine_names = engines or tuple(TITLES)
    effort = QUICK if quick else FULL
    questions = msgspec.structs.replace(
        effort.questions, users=users, history=history, rates=rate, seconds=seconds or effort.questions.seconds
    )
    effort = msgspec.structs.replace(
        effort, sets=sets or effort.sets, rounds=rounds or effort.rounds, busy=busy, questions=questions
    )
    console = Console(soft_wrap=True, highlight=False)
    described: dict[str, str | int] = machine.describe() | {"dtype": dtype()}
    look_up_results = look_ups.run(setting.Setting(setting.QUICK if quick else setting.FULL))
    with closing(Memcpy(_COPY_BYTES, effort.pool_bytes)) as memcpy:
        speed = median(_COPY_BYTES / once_ns(memcpy.into_arena) for _ in range(11))
    comparison = Comparison(effort)
    total = effort.sets * effort.rounds
    failed: dict[str, str] = {}
    report, section = None, ""

    def written() -> tuple[Report, str]:
        """Write the figures of all rounds until now."""
        samples = summarized(
            {
                figure: {name: values for name, values in engines.items() if name not in failed}
                for figure, engines in comparison.samples.items()
            }
        )
        loads = comparison.loads
        described["rounds"] = len(loads)
        described["load"] = f"{min(loads):.1f} to {max(loads):.1f}, median {median(loads):.1f}"
        described.update({f"{name}_failed": why for name, why in failed.items()})
        report = Report(described, speed, results_of(samples) + look_up_results)
        section = section_of(report, samples, _description(questions, busy))
        write(report, output, "engines").with_suffix(".md").write_text(section)
        return report, section

    try:
        for number in range(effort.sets):
            with (
                tempfile.TemporaryDirectory(prefix="larder-bench-", dir="/tmp") as folder,
                lineup(Path(folder), effort.pool_bytes, engine_names, console.print) as running,
            ):
                console.print(f"set {number + 1} of {effort.sets}: the engines read {users} texts …")
                began = time.monotonic()
                for samples in comparison.measure(running):
                    seconds_each, began = time.monotonic() - began, time.monotonic()
                    failed |= running.failed
                    report, section = written()
                    remaining = total - len(comparison.loads)
                    console.print(_round(samples, len(comparison.loads), total, comparison.loads[-1]))
                    console.print(f"  {seconds_each:.0f} s; about {remaining * seconds_each / 60:.0f} min left")
    except KeyboardInterrupt:
        console.print("interrupted: the figures are those of complete rounds")
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    if report is None:
        raise click.ClickException("no round has ended")
    console.print(table(report))
    console.print("baseline of look-ups: one message to another process and back")
    console.print(section, markup=False)
    console.print(f"written to {output}")
    if docs:
        pattern = f"({SECTION}\n.*?)?(?={NEXT})"
        PAGE.write_text(re.sub(pattern, lambda _: section + "\n", PAGE.read_text(), count=1, flags=re.DOTALL))


def _round(samples: Samples, number: int, total: int, load: float) -> str:
    """Return a line on one round: for each engine, mean and 90 % of the times to a first token, by rate."""
    rates = [figure for figure in samples if figure.startswith("mean@")]
    engines = [
        f"{name} "
        + ", ".join(
            f"{samples[rate][name][0]:.2f}/{samples[rate.replace('mean', 'p90')][name][0]:.2f} s"
            for rate in rates
            if name in samples[rate]
        )
        for name in samples["seconds"]
    ]
    return f"round {number} of {total}, load {load:.1f}, mean/90 %: {'; '.join(engines)}"


def _description(questions: Questions, busy: int) -> str:
    low, high = questions.history
    return (
        f"Questions: {questions.users} users, texts of {low:,} to {high:,} tokens, questions of {questions.question} "
        f"and answers of {questions.answer};\nan engine keeps {BLOCKS * 128:,} tokens by itself; "
        f"{busy} busy processes beside."
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the engines and servers must end
    main(prog_name="python -m benchmarks.engines")
