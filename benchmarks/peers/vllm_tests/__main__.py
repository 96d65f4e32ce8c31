"""`make vllm-tests ARGS=CHECKOUT`: vLLM's tests of its message queue and object store, on its classes and on Larder's.

Exit codes: 0 when each test that passes on vLLM's classes passes on Larder's or is listed in `limits`; else 1.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import click
import msgspec

from benchmarks.peers.environment import QUIET, VLLM_TESTS, python
from benchmarks.peers.vllm_tests.limits import LIMITS

REPOSITORY = Path(__file__).parents[3]
FILES = ("test_shm_buffer.py", "test_shm_storage.py", "test_mq_connect_ip.py", "test_shm_broadcast.py")
_FOLDER = Path("tests", "distributed")
_NEEDED = ("PKG-INFO", "pyproject.toml")
_LIMIT_S = 1800.0
_KILL_S = 60.0


class Outcome(msgspec.Struct):
    """What happened to a test on one side's classes."""

    result: str = "not run"
    why: str = ""
    used: set[str] = msgspec.field(default_factory=set)
    """Names of Larder's classes of which the test made objects."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkout", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option("-k", "chosen", default="", help="Only tests whose names match this expression of pytest.")
def main(checkout: Path, chosen: str) -> None:
    """Run the tests in CHECKOUT/tests/distributed of vLLM, and compare the results."""
    interpreter = python(VLLM_TESTS)
    if interpreter is None:
        raise click.ClickException(
            "vLLM is not built for its tests: `make vllm-tests ARGS=/a/checkout/of/vllm` builds it"
        )
    missing = [name for name in FILES if not (checkout / _FOLDER / name).is_file()]
    if missing:
        raise click.UsageError(f"{checkout / _FOLDER}: expected vLLM's tests, but {missing[0]} is missing")
    vllm_outcomes, larder_outcomes = (run(interpreter, checkout, chosen, shim=shim) for shim in (False, True))
    lines, failed = compare(vllm_outcomes, larder_outcomes, LIMITS)
    click.echo("\n".join(lines))
    if failed:
        raise click.ClickException(f"{len(failed)} tests pass on vLLM's classes only: {', '.join(failed)}")


def run(interpreter: Path, checkout: Path, chosen: str, *, shim: bool) -> dict[str, Outcome]:
    """Run the tests in a copy of the checkout's tests, which hides its source of vLLM from the interpreter. Return the
    outcomes by test. Raises ClickException if pytest could not run them."""
    with tempfile.TemporaryDirectory(prefix="larder-vllm-tests-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        shutil.copytree(checkout / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        for file in _NEEDED:
            if (checkout / file).is_file():
                shutil.copy(checkout / file, folder / file)
        report = folder / "report.jsonl"
        process = subprocess.Popen(
            [
                *(interpreter, "-m", "pytest", "-q", "-p", "benchmarks.peers.vllm_tests.plugin"),
                *("-p", "no:cacheprovider", "-k", chosen),
                *(str(_FOLDER / file) for file in FILES),
            ],
            cwd=folder,
            env={
                **os.environ,
                **QUIET,
                "PYTHONPATH": str(REPOSITORY),
                "HF_HUB_OFFLINE": "1",
                "VLLM_NO_USAGE_STATS": "1",
                "VLLM_TARGET_DEVICE": "cpu",
                "LARDER_SHIM": str(int(shim)),
                "LARDER_VLLM_TESTS_REPORT": str(report),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=_LIMIT_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate(timeout=_KILL_S)
            if isinstance(error, subprocess.TimeoutExpired):
                raise click.ClickException(f"vLLM's tests did not end in {_LIMIT_S:g} s") from None
            raise
        outcomes = outcomes_of(report.read_text() if report.is_file() else "")
        if process.returncode not in (0, 1) or not outcomes:
            raise click.ClickException(f"pytest failed (exit code {process.returncode}):\n{output[-4000:]}")
        click.echo(f"{'Larder' if shim else 'vLLM'}: {output.strip().splitlines()[-1]}")
        return outcomes


def outcomes_of(report: str) -> dict[str, Outcome]:
    """Return the outcomes by test that the plugin has written."""
    outcomes: dict[str, Outcome] = {}
    for line in map(json.loads, report.splitlines()):
        outcome = outcomes.setdefault(line["test"], Outcome())
        if "used" in line:
            outcome.used.add(line["used"])
        elif outcome.result != "failed":
            outcome.result, outcome.why = line["outcome"], line["why"]
    return outcomes


def compare(
    vllm_outcomes: dict[str, Outcome], larder_outcomes: dict[str, Outcome], limits: dict[str, str]
) -> tuple[list[str], list[str]]:
    """Return the lines of a report, and the tests that pass only on vLLM's classes and are in no limit.

    `limits` has reasons by the name of a test without its parameters.
    """
    lines, failed, counts = [], [], {"passed": 0, "passed, without an object of Larder": 0}
    for test, outcome in larder_outcomes.items():
        name = test.rpartition("::")[2]
        before = vllm_outcomes.get(test, Outcome())
        if outcome.result == "passed":
            counts["passed" if outcome.used else "passed, without an object of Larder"] += 1
            continue
        reason = limits.get(name) or limits.get(name.partition("[")[0])
        if before.result != "passed":
            reason = f"{before.result} on vLLM's classes, too"
        elif reason is None:
            failed.append(name)
        lines.append(f"{outcome.result}: {name}: {reason or outcome.why}")
    failed += [test.rpartition("::")[2] for test in vllm_outcomes if test not in larder_outcomes]
    return [*(f"{count} {what}" for what, count in counts.items()), *lines], failed


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.peers.vllm_tests")
