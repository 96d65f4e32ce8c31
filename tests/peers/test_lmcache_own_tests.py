"""LMCache's own tests of its server, of the final and of the newest release, with Larder as the server."""

import sysconfig
from pathlib import Path

import pytest

from benchmarks.peers import environment
from benchmarks.peers.environment import LMCACHE_RELEASES, LMCACHE_TESTS
from benchmarks.peers.servers import Server
from tests.peers.conftest import BUILT
from tests.peers.scripting import ran

TESTS = 9
INTERPRETERS = {"0.5.6": "lmcache", "0.5.7rc2": LMCACHE_RELEASES["0.5.7rc2"].name}


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("release", INTERPRETERS)
def test_every_test_of_a_release_passes(larder: Server, release: str) -> None:
    python, tests = BUILT[INTERPRETERS[release]], BUILT[LMCACHE_TESTS.name]
    if python is None or tests is None:
        pytest.skip(f"LMCache {release} or lmcache-tests is not built: run `make peers`")
    home = environment.folder() / LMCACHE_TESTS.name
    packages = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    (archive,) = Path(home, environment.SOURCES).glob(f"lmcache-{release}.tar.gz")
    outcomes = ran(python, "cache_server", packages, archive, larder.rpc_port, timeout_s=600)
    assert outcomes == dict.fromkeys(outcomes, "passed")
    assert len(outcomes) == TESTS
