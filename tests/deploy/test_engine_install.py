"""An engine installs Larder without extras: three libraries, and the client stores and reads a block."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.dataplane.plane import Plane

ROOT = Path(__file__).parents[2]
LIBRARIES = {"msgspec", "numpy", "xxhash"}
ENGINE = """
import sys
from dataplane.client import Space, attach
from dataplane.protocol.keys import chain

keys = chain(list(range(256)))
with attach(sys.argv[1], [Space(model="m")], timeout_s=60) as client:
    with client.reserve(keys, 4096) as reservation:
        reservation.array(0)[:] = 7
        assert reservation.commit().blocks == 1
    with client.acquire(keys) as lease:
        assert len(lease) == 1 and bytes(lease.view(0)) == bytes([7]) * 4096
print("stored and read")
"""


def run(*command: object, **more: object) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environ,
        **more,
    )  # type: ignore[call-overload]


def pip(python: Path) -> list[object]:
    return [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """The Python of a new environment with the wheel and nothing else."""
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=ROOT)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    folder = tmp_path / "venv"
    made = run(sys.executable, "-m", "venv", "--without-pip", folder)  # the pip of the tests installs into it
    assert made.returncode == 0, made.stderr
    python = folder / "bin" / "python"
    installed = run(*pip(python), "install", "-q", "--no-compile", "-c", ROOT / "constraints.txt", wheel)
    assert installed.returncode == 0, installed.stderr
    return python


@pytest.mark.full
@pytest.mark.timeout(900)
def test_an_engine_installs_three_libraries_and_stores_and_reads_a_block(
    bare: Path, socket_dir: Path
) -> None:
    listed = run(*pip(bare), "list", "--format=freeze").stdout
    names = {re.split("[= @]", line)[0].lower() for line in listed.splitlines()}
    assert names == LIBRARIES | {"larder"}
    plane = Plane(socket_dir).start()
    try:
        ran = run(bare, "-c", ENGINE, plane.socket, cwd=socket_dir)
        assert (ran.returncode, ran.stdout) == (0, "stored and read\n"), ran.stderr
    finally:
        plane.stop()
    refused = run(bare.with_name("larder"), "status", cwd=socket_dir)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert re.fullmatch(
        r"larder: the package '\w+' is not installed; install Larder with: pip install 'larder\[server\]'\n",
        refused.stderr,
    )
