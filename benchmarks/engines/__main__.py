"""`make bench-engines`: vLLM alone, with a connector that does nothing, with vLLM's own offloading, with LMCache's
connector on both servers, and with Larder's connector. Users ask questions about long texts, which the engine's own
cache cannot keep.

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
from benchmarks.engines.comparison import FULL, QUICK, Comparison, Questions
from benchmarks.engines.figures import SECTION, results_of, section_of
from benchmarks.engines.lineup import BARE, BLOCKS, MAX_TOKENS, TITLES, dtype, lineup
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
    type=click.Choice([each for each in TITLES if each != BARE]),
    multiple=True,
    help="Engine to compare with vLLM alone; may be repeated. Default: all.",
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
    if docs and (quick or engines):
        raise click.UsageError("figures of a quick run, or without an engine, do not go into the documentation")
    names = (BARE, *engines) if engines else tuple(TITLES)
    effort = QUICK if quick else FULL
    questions = Questions(users, history, rates=rate, seconds=seconds or effort.questions.seconds)
    effort = msgspec.structs.replace(
        effort, sets=sets or effort.sets, rounds=rounds or effort.rounds, busy=busy, questions=questions
    )
    console = Console()
    failed: dict[str, str] = {}
    load = os.getloadavg()[0]
    try:
        comparison = Comparison(effort)
        for number in range(effort.sets):
            console.print(f"set {number + 1} of {effort.sets} …")
            with (
                tempfile.TemporaryDirectory(prefix="larder-bench-", dir="/tmp") as folder,
                lineup(Path(folder), effort.pool_bytes, names) as running,
            ):
                comparison.measure(running)
            failed |= running.failed
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    samples = {
        figure: {name: values for name, values in each.items() if name not in failed}
        for figure, each in comparison.samples.items()
    }
    results = results_of(samples) + look_ups.run(setting.Setting(setting.QUICK if quick else setting.FULL))
    described = machine.describe() | {f"{name}_failed": why for name, why in failed.items()}
    described["dtype"] = dtype()
    described["load"] = f"{load:.1f} before, {os.getloadavg()[0]:.1f} after (the engines themselves: about 1)"
    with closing(Memcpy(_COPY_BYTES, effort.pool_bytes)) as memcpy:
        speed = median(_COPY_BYTES / once_ns(memcpy.into_arena) for _ in range(11))
    report = Report(described, speed, results)
    console.print(table(report))
    console.print("baseline of look-ups: one message to another process and back")
    path = write(report, output, "engines")
    section = section_of(report, samples, _description(effort.questions, busy))
    path.with_suffix(".md").write_text(section)
    console.print(section, markup=False, soft_wrap=True)
    console.print(f"written to {path} and {path.with_suffix('.md')}", soft_wrap=True)
    if docs:
        pattern = f"({SECTION}\n.*?)?(?={NEXT})"
        PAGE.write_text(re.sub(pattern, lambda _: section + "\n", PAGE.read_text(), count=1, flags=re.DOTALL))


def _description(questions: Questions, busy: int) -> str:
    low, high = questions.history
    return (
        f"Questions: {questions.users} users, texts of {low:,} to {high:,} tokens, questions of {questions.question} "
        f"and answers of {questions.answer};\nan engine keeps {BLOCKS * 128:,} tokens by itself; "
        f"{busy} busy processes beside."
    )


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.engines")
