"""The harness of the gate: runs of pytest whose tests fail, pass when they run again, or leave something behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.gate import ALONE
from tests.leftovers import processes_of
from tests.run_marks import SHARED_MEMORY, run_folder, run_id, shm_name

ROOT = Path(__file__).parents[1]
SLEEPS = [sys.executable, "-c", "import time; time.sleep(97)"]


def run(module: str, folder: Path, text: str, **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "build").mkdir()
    (folder / "test_small.py").write_text(text)
    plugins = "-p tests.leftovers -p pytest_timeout"
    return subprocess.run(
        [sys.executable, "-m", module, "-q"],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": plugins, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )


def fails_in(name: str, *runs: int) -> str:
    return (
        f"def test_{name}(path=pathlib.Path('{name}')):\n"
        "  path.write_text((path.read_text() if path.exists() else '') + '.')\n"
        f"  assert len(path.read_text()) not in {runs}\n"
    )


def fails_at_first(name: str) -> str:
    return fails_in(name, 1)


def test_a_test_that_passes_five_times_alone_is_flaky_and_any_other_fails_the_gate(tmp_path: Path) -> None:
    text = "import pathlib\n" + fails_at_first("once") + "def test_passes(): pass\n"
    (tmp_path / "flaky").mkdir()
    flaky = run("tests.gate", tmp_path / "flaky", text)
    assert flaky.returncode == 0, flaky.stdout
    assert flaky.stdout.endswith("FLAKY test_small.py::test_once\n")
    assert (tmp_path / "flaky" / "build" / "flaky.txt").read_text() == "FLAKY test_small.py::test_once\n"
    (tmp_path / "failed").mkdir()
    assert (tmp_path / "flaky" / "once").read_text() == "." * (1 + ALONE)
    failed = run("tests.gate", tmp_path / "failed", text + "def test_never(): 1/0\n" + fails_in("fifth", 1, 1 + ALONE))
    assert failed.returncode == 1
    last = r"FLAKY .*test_once\nFAILED .*test_never, also alone\nFAILED .*test_fifth, also alone\n\Z"
    assert re.search(last, failed.stdout), failed.stdout


def test_more_than_three_flaky_tests_fail_the_gate(tmp_path: Path) -> None:
    ran = run("tests.gate", tmp_path, "import pathlib\n" + "".join(map(fails_at_first, "abcd")))
    assert ran.returncode == 1
    assert "more than 3 tests are flaky" in ran.stdout


def test_a_run_without_a_test_or_with_an_error_in_a_module_fails_the_gate(tmp_path: Path) -> None:
    ran = run("tests.gate", tmp_path, "import no_such_module\n")
    assert (ran.returncode, "1 error" in ran.stdout) == (2, True)


def test_processes_and_files_are_listed_and_removed_and_fail_a_full_run(tmp_path: Path) -> None:
    """Those of the run alone: another run's live on."""
    text = (
        "import os, subprocess, tempfile\nfrom pathlib import Path\nfrom tests.run_marks import *\n"
        "def test_a():\n"
        f"  if not os.fork():\n    os.setsid()\n    subprocess.Popen({SLEEPS}).pid\n    os._exit(0)\n  os.wait()\n"
        "def test_b(tmp_path):\n  (SHARED_MEMORY / f'pool_{shm_name(1)}').touch()\n"
        "def test_c():\n  Path(tempfile.mkdtemp(prefix='forgotten-'), 'file').touch()\n"
    )
    other = SHARED_MEMORY / f"pool_{shm_name(tmp_path)}"
    other.touch()
    with subprocess.Popen(SLEEPS) as child:
        try:
            ran = run("pytest", tmp_path, text, LARDER_TEST_FULL="1", PYTEST_RUN_ENDS_S="1")
            assert (child.poll(), other.exists()) == (None, True)
            assert len(re.findall(r"time\.sleep\(97\)", " ".join(processes_of(run_id()).values()))) == 1
        finally:
            other.unlink()
            child.kill()
    assert (ran.returncode, "3 passed" in ran.stdout) == (1, True)
    listed = ran.stdout.partition("left behind by this run, and removed")[2]
    assert listed.count("time.sleep(97) (test_small.py::test_a (call))") == 1
    files = [Path(line) for line in listed.splitlines() if line.startswith("/")]
    assert len(files) == 2
    assert sum(file.parent == SHARED_MEMORY for file in files) == 1
    assert sum(str(file.parent).startswith(f"{run_folder()}.") for file in files) == 1
    assert not any(each.exists() for each in files)


def test_a_process_that_only_names_the_folder_of_a_run_belongs_to_it() -> None:
    """Its environment has no mark: `larder up` hands only Larder's own variables on."""
    children = [subprocess.Popen(SLEEPS, env={"LARDER_SOCKET": f"{run_folder()}{rest}/one.sock"}) for rest in ("", "0")]
    try:
        found = processes_of(run_id())
        assert [child.pid in found for child in children] == [True, False]
    finally:
        for each in children:
            each.kill()
            each.wait(10)
