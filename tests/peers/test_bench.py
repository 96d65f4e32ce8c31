"""LMCache's own end-to-end check of a server: it stores, wipes, retrieves and compares checksums."""

import re
from pathlib import Path

import pytest

from benchmarks.peers.servers import Server
from tests.peers.scripting import completed

REQUESTS = 3
WAYS = {
    "engine-driven": ["--transfer-mode", "engine_driven"],
    "default-mode": [],
    # LMCache's server publishes a copy of its own some time after it answered: it needs the second.
    "server-copies": ["--transfer-mode", "lmcache_driven", "--interval", "1"],
    "two-ranks": ["--transfer-mode", "engine_driven", "--tp-size", "2"],
    "two-readers-of-one-copy": [
        *("--transfer-mode", "engine_driven", "--tp-size", "2", "--use-mla"),
        *("--kvcache-shape-spec", "(1,256,16,1,128):float16:4"),
    ],
}


def _checked(python: Path, server: Server, way: str) -> str:
    first = 100 * list(WAYS).index(way)  # sequences that no other way has stored
    done = completed(
        python.with_name("lmcache"),
        *("bench", "server", "--mode", "cpu", "--rpc-url", server.rpc_url, "--url", server.http_url),
        *("--num-tokens", "1024", "--start", first, "--end", first + REQUESTS, "--interval", "0"),
        *("--kvcache-shape-spec", "(2,256,16,4,64):float16:4", *WAYS[way]),
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-3000:]
    return output


def _figure(output: str, name: str) -> float:
    match = re.search(rf"^{re.escape(name)}:\s+([0-9.]+)$", output, re.MULTILINE)
    assert match, output[-3000:]
    return float(match[1])


@pytest.mark.parametrize("way", WAYS)
def test_retrieved_chunks_have_the_checksums_of_stored_ones(lmcache_python: Path, server: Server, way: str):
    output = _checked(lmcache_python, server, way)
    assert _figure(output, "Checksum OK") == REQUESTS, output[-3000:]
    assert _figure(output, "Checksum FAIL") == 0
    assert _figure(output, "Pass rate (%)") == 100
