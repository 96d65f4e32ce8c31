"""Each distribution in an empty environment: its top-level packages, its libraries, and its main command."""

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
        [str(part) for part in command], capture_output=True, text=True, timeout=300, check=False, env=environ, **more
    )  # type: ignore[call-overload]


def pip(python: Path) -> list[object]:
    return [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheels of both distributions."""
    folder = tmp_path_factory.mktemp("wheels")
    for source in (ROOT, ROOT / "dataplane"):
        built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=source)
        assert built.returncode == 0, built.stderr
    return folder


def installed(folder: Path, wheels: Path, *names: str) -> tuple[Path, set[str]]:
    """Install into a new environment. Return its Python, and the top-level names of Larder's packages in it."""
    made = run(sys.executable, "-m", "venv", "--without-pip", folder)  # the pip of the tests installs into it
    assert made.returncode == 0, made.stderr
    python = folder / "bin" / "python"
    parts = [f"{next(wheels.glob(f'{name}-*.whl'))}{extra}" for name, _, extra in (n.partition("+") for n in names)]
    done = run(*pip(python), "install", "-q", "--no-compile", "-c", ROOT / "constraints.txt", *parts)
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python3*/site-packages")
    records = [each.read_text() for each in packages.glob("larder*.dist-info/RECORD")]
    tops = {line.partition("/")[0] for record in records for line in record.splitlines()}
    return python, {top for top in tops if not top.endswith(".dist-info") and top != ".."}


@pytest.mark.full
@pytest.mark.timeout(900)
def test_an_engine_installs_three_libraries_and_one_package_and_stores_and_reads_a_block(
    tmp_path: Path, wheels: Path, socket_dir: Path
) -> None:
    python, tops = installed(tmp_path / "engine", wheels, "larder_engine")
    assert tops == {"dataplane"}
    listed = run(*pip(python), "list", "--format=freeze").stdout
    names = {re.split("[= @]", line)[0].lower() for line in listed.splitlines()}
    assert names == LIBRARIES | {"larder-engine"}
    plane = Plane(socket_dir).start()
    try:
        ran = run(python, "-c", ENGINE, plane.socket, cwd=socket_dir)
        assert (ran.returncode, ran.stdout) == (0, "stored and read\n"), ran.stderr
    finally:
        plane.stop()
    refused = run(python, "-m", "dataplane", cwd=socket_dir)
    assert refused.returncode == 2
    assert refused.stderr.endswith("the package 'structlog' is not installed; a data plane needs 'larder[server]'\n")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_laptop_installs_the_commands_without_a_server(tmp_path: Path, wheels: Path) -> None:
    python, tops = installed(tmp_path / "laptop", wheels, "larder_engine", "larder+[cli]")
    assert tops - {"web"} == {"app", "dataplane", "migrations"}
    larder = python.with_name("larder")
    for command in (("status",), ("version", "-o", "yaml"), ("quotas", "list")):
        completed = run(larder, *command, "--url", "http://127.0.0.1:9", cwd=tmp_path)
        assert completed.returncode == 6
        assert "no Larder answers at http://127.0.0.1:9" in completed.stderr
    for name in ("up", "doctor", "dataplane"):
        refused = run(larder, name, cwd=tmp_path)
        assert refused.returncode == 2
        assert "'larder[server]'" in refused.stderr
        assert "Traceback" not in refused.stderr
