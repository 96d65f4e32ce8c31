"""`python -m benchmarks.ipc.queue`: the message queue beside vLLM's own, the remote path beside plain pyzmq, and kills.

Exit codes: 0 when everything ran, whether targets were met or not; 1 when something could not be measured.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

import click
import msgspec
from rich.console import Console

from benchmarks.harness import machine
from benchmarks.harness.memory import Memcpy, MiB
from benchmarks.harness.report import RESULTS, table, write
from benchmarks.harness.result import Report, Result, at_least, at_most
from benchmarks.harness.timing import once_ns
from benchmarks.peers.environment import CONNECTOR, QUIET, python

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 1800.0
PARTS = ("messages", "remote", "kills")
LATENCY_US = {1: 60.0, 4: 120.0}
_COPY_BYTES = 32 * MiB


class QueueEffort(msgspec.Struct, frozen=True):
    """How often things are done."""

    rounds: int
    """Pairs of measurements, ours and the other one in turn; the medians count."""
    paced: int
    burst: int
    remote: int
    kills: int


FULL = QueueEffort(rounds=3, paced=1000, burst=20_000, remote=20_000, kills=200)
QUICK = QueueEffort(rounds=1, paced=50, burst=500, remote=500, kills=2)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(PARTS), metavar="[NAME]...")
@click.option("--quick", is_flag=True, help="A few samples: to see that everything runs, not for figures.")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), default=RESULTS, help="Folder of the result file."
)
def main(names: tuple[str, ...], quick: bool, output: Path) -> None:
    """Measure Larder's message queue beside vLLM's."""
    interpreter = python(CONNECTOR)
    if interpreter is None:
        raise click.ClickException("vLLM is not built: make engines")
    effort = QUICK if quick else FULL
    console = Console()
    results: list[Result] = []
    parts = {"messages": _messages, "remote": _remote, "kills": _kills}
    for name in names or PARTS:
        console.print(f"{name} …")
        results += parts[name](interpreter, effort)
    memcpy = Memcpy(_COPY_BYTES, 128 * MiB)
    try:
        speed = median(_COPY_BYTES / once_ns(memcpy.into_arena) for _ in range(11))
    finally:
        memcpy.close()
    report = Report(machine.describe(), speed, results)
    console.print(table(report))
    console.print("baseline: vLLM's MessageQueue; of the remote path, plain pyzmq")
    console.print(f"written to {write(report, output, 'ipc-queue')}", soft_wrap=True)


def _messages(interpreter: Path, effort: QueueEffort) -> list[Result]:
    results = []
    for readers in (1, 4):
        samples: dict[str, list[dict[str, float]]] = {"larder": [], "msgspec": [], "vllm": [], "futex": []}
        for _ in range(effort.rounds):
            for kind in samples:
                samples[kind].append(
                    _run(
                        interpreter,
                        kind=kind,
                        readers=readers,
                        paced=effort.paced,
                        burst=effort.burst,
                        rate_hz=330,
                        bytes=1024,
                    )
                )
        larder, larder_msgspec, vllm, bare_futex = (
            {field: median(sample[field] for sample in samples[kind]) for field in samples[kind][0]} for kind in samples
        )
        label = f"1 KiB, {readers} reader{'s' if readers > 1 else ''}"
        results += [
            at_most(f"{label}: latency p50", larder["p50_us"], "µs", LATENCY_US[readers], vllm["p50_us"]),
            at_most(
                f"{label}, msgspec: latency p50", larder_msgspec["p50_us"], "µs", LATENCY_US[readers], vllm["p50_us"]
            ),
            at_most(f"bare futex, {readers} readers: latency p50", bare_futex["p50_us"], "µs", None),
            at_most(f"{label}: latency p99", larder["p99_us"], "µs", None, vllm["p99_us"]),
            at_most(
                f"{label}: CPU of a reader at 330 messages/s",
                larder["reader_cpu_percent"],
                "%",
                None,
                vllm["reader_cpu_percent"],
            ),
            at_most(
                f"{label}: CPU of a reader while idle", larder["idle_cpu_percent"], "%", 10.0, vllm["idle_cpu_percent"]
            ),
            at_least(
                f"{label}: burst",
                larder["messages_per_s"],
                "messages/s",
                2 * vllm["messages_per_s"],
                vllm["messages_per_s"],
            ),
        ]
    return results


def _remote(interpreter: Path, effort: QueueEffort) -> list[Result]:
    results = []
    for nbytes in (1024, 65536):
        rates: dict[str, list[float]] = {"remote": [], "pyzmq": []}
        for _ in range(effort.rounds):
            for kind in rates:
                sample = _run(interpreter, kind=kind, messages=effort.remote, bytes=nbytes)
                rates[kind].append(sample["messages_per_s"])
        larder, pyzmq = median(rates["remote"]), median(rates["pyzmq"])
        results.append(at_least(f"remote, {nbytes // 1024} KiB", larder, "messages/s", 0.9 * pyzmq, pyzmq))
    return results


def _kills(interpreter: Path, effort: QueueEffort) -> list[Result]:
    figures = _run(interpreter, kind="kills", kills=effort.kills)
    label = f"{effort.kills} kills"
    return [
        at_most(f"{label} of a reader: longest put", figures["put_ms"], "ms", 1000.0),
        at_most(f"{label} of the writer: longest get", figures["writer_gone_ms"], "ms", 1000.0),
        at_most(f"{label} of each and of both: leaked memories", figures["leaked"], "", 0.0),
        at_most(f"{label} of each and of both: wrong messages", figures["wrong"], "", 0.0),
    ]


def _run(interpreter: Path, **arguments: Any) -> dict[str, float]:
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        **QUIET,
        "PYTHONPATH": str(REPOSITORY),
        "VLLM_LOGGING_LEVEL": "ERROR",
    }
    done = subprocess.run(
        [str(interpreter), "-m", "benchmarks.ipc.queue_process", json.dumps(arguments)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise click.ClickException(f"{arguments['kind']}: {last}")
    return dict(json.loads(done.stdout))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.ipc.queue")
