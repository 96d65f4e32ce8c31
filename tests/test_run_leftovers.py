"""A run that leaves a process or a file fails and lists it: small runs of pytest that do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.run_marks import SHARED_MEMORY, run_folder, run_id, shm_name
from tests.run_processes import of_run

ROOT = Path(__file__).parents[1]
PLUGINS = ["-p", "tests.run_limits", "-p", "tests.run_leftovers", "-p", "pytest_timeout", "-p", "xdist"]
WORKERS = pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
HEAD = (
    "import os, signal, subprocess, sys, tempfile\nfrom pathlib import Path\nfrom tests.run_marks import *\n"
)
SLEEPS = "[sys.executable, '-c', 'import time; time.sleep(97)']"


def run(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\nrun_timeout = 150\n")
    (folder / "test_small.py").write_text(HEAD + text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGINS, *arguments],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_RUN_ENDS_S": "10"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=180,
        check=False,
    )


@WORKERS
def test_processes_and_files_are_listed_and_removed(tmp_path: Path, workers: tuple[str, ...]) -> None:
    """Also find a process without a parent in its own session, and one without the run's environment."""
    daemon = f"if not os.fork():\n    os.setsid()\n    subprocess.Popen({SLEEPS}).pid\n    os._exit(0)\n  os.wait()"
    ran = run(
        tmp_path,
        f"def test_a(tmp_path):\n  {daemon}\n"
        f"def test_b():\n  subprocess.Popen({SLEEPS}, env={{}})\n"
        "def test_c():\n  (SHARED_MEMORY / f'pool_{shm_name(1)}').touch()\n"
        "def test_d():\n  Path(tempfile.mkdtemp(prefix='forgotten-'), 'file').touch()\n",
        *workers,
    )
    assert "4 passed" in ran.stdout, ran.stdout
    assert ran.returncode == 1
    listed = ran.stdout.partition("left behind by this run, and removed")[2]
    assert listed.count("time.sleep(97)") == 2, listed
    files = [Path(line) for line in listed.splitlines() if line.startswith("/")]
    assert len(files) == 2
    assert files[0].parent == SHARED_MEMORY
    assert str(files[1].parent).startswith(f"{run_folder()}.")
    assert not any(each.exists() for each in files)
    pids = [int(line.split()[1].rstrip(":")) for line in listed.splitlines() if line.startswith("process ")]
    assert not [each for each in of_run(run_id(), os.getpid()) if each.pid in pids]


@WORKERS
def test_a_run_that_removes_what_it_makes_passes(tmp_path: Path, workers: tuple[str, ...]) -> None:
    ran = run(
        tmp_path,
        "def test_it(tmp_path):\n"
        "  (tmp_path / 'kept for a look').touch()\n"
        "  with tempfile.TemporaryDirectory(): pass\n"
        f"  child = subprocess.Popen({SLEEPS})\n  child.kill()\n  child.wait(10)\n",
        *workers,
    )
    assert (ran.returncode, "left behind" in ran.stdout) == (0, False), ran.stdout


def test_what_other_programs_make_meanwhile_does_not_matter(tmp_path: Path) -> None:
    """They make files of the same kind, under their own marks."""
    other = SHARED_MEMORY / f"pool_{shm_name(tmp_path)}"
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(97)"])
    other.touch()
    try:
        ran = run(tmp_path, "def test_it(): pass\n")
        assert (ran.returncode, "left behind" in ran.stdout) == (0, False), ran.stdout
        assert child.poll() is None
        assert other.exists()
    finally:
        other.unlink()
        child.kill()
        child.wait(10)


def test_a_process_that_only_names_the_folder_of_a_run_belongs_to_it(tmp_path: Path) -> None:
    """Its environment has no mark: `larder up` hands only Larder's own variables on."""
    command = [sys.executable, "-c", "import time; time.sleep(97)"]
    child = subprocess.Popen(command, env={"LARDER_SOCKET": str(run_folder() / "one.sock")})
    other = subprocess.Popen(command, env={"LARDER_SOCKET": f"{run_folder()}0/one.sock"})
    try:
        found = [each.pid for each in of_run(run_id(), -1)]
        assert (child.pid in found, other.pid in found) == (True, False)
    finally:
        for each in (child, other):
            each.kill()
            each.wait(10)
