"""Other releases of LMCache under an unmodified vLLM: what they hit of their own chunks, and of the final release."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.peers.environment import LMCACHE_RELEASES
from benchmarks.peers.servers import Server
from benchmarks.peers.vllm_model import FULL_CHUNKS, write_model
from dataplane.gateways.lmcache.wire.operations import (
    BY_NAME,
    DIALECT_050,
    DIALECT_053,
    DIALECT_055,
    OPERATIONS,
    Dialect,
)
from tests.peers.conftest import BUILT
from tests.peers.scripting import ran

pytestmark = [pytest.mark.full, pytest.mark.timeout(2400)]
FINAL = "0.5.6"
DIALECT_OF: dict[str, Dialect] = {
    "0.5.0": DIALECT_050,
    "0.5.3": DIALECT_053,
    "0.5.4": DIALECT_053,
    "0.5.5": DIALECT_055,
    FINAL: DIALECT_055,
    "0.5.7rc2": DIALECT_055,
}
UNSHARED = {"0.5.0"}
"""Releases that give chunks of this vLLM another shape than the final one, and so share none with it."""
RETIRED = {"query_prefetch_lookup_hits"}
"""Operations that 0.5.6 no longer has."""


def _python(release: str) -> Path:
    """The interpreter with vLLM and this release of LMCache; the test is skipped if it is not built."""
    name = "vllm" if release == FINAL else LMCACHE_RELEASES[release].name
    python = BUILT[name]
    if python is None:
        pytest.skip(f"{name} is not built: run `make peers`")
    return python


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def _generated(release: str, server: Server, model: Path) -> Any:
    return ran(_python(release), "generate", server.rpc_port, model, timeout_s=600)


def _failures(server: Server) -> Any:
    """Failures of the gateway by reason."""
    with httpx.Client(base_url=server.http_url, trust_env=False, timeout=60) as api:
        (node,) = api.get("/api/v1/nodes").json()["items"]
    return node["stats"]["gateway"]["failures"]


@pytest.mark.parametrize("release", DIALECT_OF)
def test_the_numbers_are_those_of_the_release_and_it_decodes_every_failure_answer(release: str):
    answers = {each.name: each.failure.hex() for each in OPERATIONS if each.failure is not None}
    found = ran(_python(release), "operations", json.dumps(answers), timeout_s=300)
    ours = {operation.name: number for number, operation in DIALECT_OF[release].operations.items()}
    assert found["numbers"].items() <= ours.items()
    assert ours.keys() - found["numbers"].keys() <= RETIRED
    assert set(found["names"]) <= BY_NAME.keys()
    assert found["undecodable"] == {}


@pytest.mark.parametrize("release", LMCACHE_RELEASES)
def test_the_same_release_and_the_final_one_load_blocks_of_another(larder: Server, model: Path, release: str):
    first = _generated(release, larder, model)
    assert first["cached"] == 0
    assert _generated(release, larder, model) == {**first, "cached": FULL_CHUNKS}
    assert _generated(FINAL, larder, model) == {**first, "cached": 0 if release in UNSHARED else FULL_CHUNKS}
    assert _failures(larder) == {}


def test_other_releases_load_blocks_of_the_final_one(larder: Server, model: Path):
    built = [release for release, peer in LMCACHE_RELEASES.items() if BUILT[peer.name] and release not in UNSHARED]
    if not built:
        pytest.skip("no other release of LMCache is built: run `make peers`")
    first = _generated(FINAL, larder, model)
    assert first["cached"] == 0
    hits = {release: _generated(release, larder, model) for release in built}
    assert hits == {release: {**first, "cached": FULL_CHUNKS} for release in built}
    assert _failures(larder) == {}
