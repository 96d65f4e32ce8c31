"""LMCache's own clients and an unmodified vLLM, against LMCache's server and against Larder's gateway.

What a test demands of Larder it demands of LMCache's server too: so the test is right before Larder is.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from benchmarks.peers import environment, servers
from benchmarks.peers.servers import Server

MiB = 1 << 20
START: dict[str, Callable[[int], AbstractContextManager[Server]]] = {
    "lmcache": servers.lmcache,
    "larder": servers.larder,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.peer)


def _interpreter(peer: environment.Peer) -> Path:
    python = environment.python(peer)
    if python is None:
        pytest.skip(f"{peer.name} is not built: run `make peers`")
    return python


@pytest.fixture(scope="session")
def lmcache_python() -> Path:
    """The interpreter that has LMCache; skips where it is not built."""
    return _interpreter(environment.LMCACHE)


@pytest.fixture(scope="session")
def vllm_python(lmcache_python: Path) -> Path:
    """The interpreter that has vLLM for CPU, and LMCache; skips where it is not built."""
    return _interpreter(environment.VLLM)


@pytest.fixture(scope="module", params=["lmcache", "larder"])
def server(request: pytest.FixtureRequest, lmcache_python: Path) -> Iterator[Server]:
    """Each of the two, with a pool of 512 MiB."""
    with START[request.param](512 * MiB) as running:
        yield running


@pytest.fixture
def larder(lmcache_python: Path) -> Iterator[Server]:
    """Larder alone, with a pool of 512 MiB of its own."""
    with servers.larder(512 * MiB) as running:
        yield running
