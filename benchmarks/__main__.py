"""`python -m benchmarks`: run, print, write the result file.

Exit codes: 0 when everything ran, whether targets were met or not; 1 when something could not be measured.
"""

import time
from pathlib import Path
from statistics import median

import click
from rich.console import Console

from benchmarks.harness import machine
from benchmarks.harness.memory import MiB
from benchmarks.harness.report import RESULTS, table, write
from benchmarks.harness.result import Report, Result
from benchmarks.harness.setting import FULL, QUICK, Setting
from benchmarks.harness.timing import once_ns
from benchmarks.suite import BENCHMARKS, BY_NAME, run

_COPY_BYTES = 32 * MiB
_COPIES = 11


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice([*BENCHMARKS, *BY_NAME]), metavar="[NAME]...")
@click.option("--quick", is_flag=True, help="A few samples only: to see that everything runs, not for figures.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=RESULTS, help="Folder of the result file."
)
@click.option(
    "--emulated", is_flag=True, help="For gpu: measure the emulated device on host memory, where there is no GPU."
)
def main(names: tuple[str, ...], quick: bool, output: Path, emulated: bool) -> None:
    """Measure Larder's data plane beside what this machine can do, and compare with the targets."""
    setting = Setting(QUICK if quick else FULL, emulated=emulated)
    console = Console()
    results: list[Result] = []
    for name in names or tuple(BENCHMARKS):
        started = time.monotonic()
        console.print(f"{name} … ", end="")
        try:
            results += run(name, setting)
        except RuntimeError as error:
            raise click.ClickException(f"{name}: {error}") from None
        console.print(f"{time.monotonic() - started:.1f} s")
    described = machine.describe()
    if setting.device:
        described["gpu"] = setting.device
    report = Report(described, _memcpy_gbps(setting), results)
    console.print(table(report))
    console.print(f"memcpy between shared mappings: {report.memcpy_gbps:.2f} GB/s")
    console.print(f"written to {write(report, output, _kind(names, emulated=emulated))}", soft_wrap=True)


def _kind(names: tuple[str, ...], *, emulated: bool) -> str:
    """Figures of GPUs have a file of their own, and the emulated device's are not taken for them; so have figures of
    shared tiers."""
    if names and set(names) <= {"redis", "s3"}:
        return "shared-tiers"
    if set(names) != {"gpu"}:
        return ""
    return "gpu-emulated" if emulated else "gpu"


def _memcpy_gbps(setting: Setting) -> float:
    """The median of what the benchmarks saw; measured here when none of them copied."""
    if not setting.memcpy_gbps:
        with setting.memcpy(_COPY_BYTES) as memcpy:
            setting.memcpy_gbps += [_COPY_BYTES / once_ns(memcpy.into_arena) for _ in range(_COPIES)]
    return median(setting.memcpy_gbps)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
