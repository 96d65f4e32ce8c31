"""LMCache's own clients and an unmodified vLLM, against Larder's gateway and, with LARDER_TEST_SERVERS=lmcache,larder,
against LMCache's own server: what a test demands of one it demands of the other, so the test is right before Larder is.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from benchmarks.peers import environment, servers
from benchmarks.peers.servers import Server

MiB = 1 << 20
BUILT = {peer.name: environment.python(peer) for peer in environment.PEERS.values()}
collect_ignore_glob = [
    *([] if BUILT["lmcache"] else ["test_[a-u]*.py"]),
    *([] if BUILT["vllm"] else ["test_vllm.py", "test_vllm_events.py", "test_vllm_releases.py", "test_move.py"]),
]
"""Tests of what is not built are not collected; test_what_is_built says so, in one line."""
START: dict[str, Callable[[int], AbstractContextManager[Server]]] = {
    "lmcache": servers.lmcache,
    "larder": servers.larder,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/peers/"):
            item.add_marker(pytest.mark.peer)


@pytest.fixture(scope="session", autouse=True)
def compiled(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels that one vLLM compiles are there for the next one, and go with the run: torch keeps them in TMPDIR."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("torchinductor"))


@pytest.fixture(scope="session")
def lmcache_python() -> Path:
    """The interpreter that has LMCache."""
    python = BUILT["lmcache"]
    assert python is not None
    return python


@pytest.fixture(scope="session")
def vllm_python(lmcache_python: Path) -> Path:
    """The interpreter that has vLLM for CPU, and LMCache."""
    python = BUILT["vllm"]
    assert python is not None
    return python


@pytest.fixture(scope="module", params=os.environ.get("LARDER_TEST_SERVERS", "larder").split(","))
def server(request: pytest.FixtureRequest, lmcache_python: Path) -> Iterator[Server]:
    """Each of those that are to be tested, with a pool of 512 MiB."""
    with START[request.param](512 * MiB) as running:
        yield running


@pytest.fixture
def larder(lmcache_python: Path) -> Iterator[Server]:
    """Larder alone, with a pool of 512 MiB of its own."""
    with servers.larder(512 * MiB) as running:
        yield running
