"""Real engines for tests. Without `make engines` their tests are not collected, which test_environment.py reports."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.vllm_model import write_model
from dataplane.client import Client, Space, attach
from tests.dataplane.conftest import make_plane, plane
from tests.dataplane.plane import Plane
from tests.engines.vllm.engine import PYTHON, REPOSITORY, Engine, MakeEngine
from tests.engines.vllm.sides import clock, make_step
from tests.run_marks import short_folder

__all__ = ["clock", "make_plane", "make_step", "plane"]

collect_ignore_glob = [] if PYTHON else ["test_real_*.py"]
POOL = {"pool_bytes": "256MiB", "dataplane__segment_bytes": "64MiB"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name.startswith("test_real_"):
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.full)
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Share compiled kernels between the vLLM processes of a test run, in a folder that is removed after the run."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("torchinductor"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model."""
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return an environment in which vLLM finds Larder's plugins, as it does where Larder is installed."""
    folder = tmp_path_factory.mktemp("plugins")
    project = tomllib.loads((REPOSITORY / "dataplane" / "pyproject.toml").read_text())["project"]
    info = folder / f"larder_engine-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: larder-engine\nVersion: {project['version']}\n")
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["vllm.general_plugins"].items()]
    (info / "entry_points.txt").write_text("\n".join(["[vllm.general_plugins]", *lines, ""]))
    return {"PYTHONPATH": f"{REPOSITORY}:{folder}"}


@pytest.fixture(scope="module")
def pool() -> Iterator[Plane]:
    """Start a data plane with room for the prompts of a file's tests."""
    with short_folder() as folder:
        plane = Plane(folder, POOL).start()
        yield plane
        plane.kill()


@pytest.fixture
def observer(pool: Plane) -> Iterator[Client]:
    """Attach a client that sees the index, and whose space has no blocks."""
    with attach(pool.socket, [Space(model="observer", block_bytes=4096)], timeout_s=30) as client:
        yield client


@pytest.fixture(scope="module")
def make_engine(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeEngine]:
    """Return a function, as in `make_engine(socket, chunk_tokens=64)`. Its engines end with the file's tests."""
    made: list[Engine] = []
    folder = tmp_path_factory.mktemp("engines")

    def new(socket: str | None, model_folder: Path = model, **options: object) -> Engine:
        made.append(Engine(model_folder, socket, folder / f"{len(made)}.log", **options))  # type: ignore[arg-type]
        return made[-1]

    yield new
    for each in made:
        each.close()
