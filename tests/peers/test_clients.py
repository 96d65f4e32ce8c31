"""LMCache's client classes: what they find is the same at LMCache's server and at Larder's gateway."""

from pathlib import Path

import pytest

from benchmarks.peers.servers import Server
from tests.peers.scripting import ran

CHUNK_BYTES = 2 * 2 * 256 * 64 * 2


def test_every_operation_of_the_engine_driven_path_has_its_answer(lmcache_python: Path, server: Server):
    assert ran(lmcache_python, "calls", server.rpc_url) == {
        "chunk_size": 256,
        "ping": True,
        "noop": "OK",
        "pool_is_named": True,
        "pool_mode": "0o600",
        "pool_size_is_true": True,
        "ping_instance": True,
        "miss": 0,
        "store": {
            "indices": [0, 1, 2, 3],
            "lengths": [CHUNK_BYTES] * 4,
            "shapes": [[2, 2, 256, 64]] * 4,
            "dtypes": ["float16"],
            "aligned": True,
            "inside": True,
        },
        "unseen_before_commit": 0,
        "committed": True,
        "hit": 4,
        "consumed": 0,
        "retrieve": {"success": True, "slots": 4, "bytes_are_right": [True] * 4},
        "done": True,
        "store_of_what_is_there": {"slots": []},
        "prefix_hit": 4,
        "other_tokens": 0,
        "other_salt": 0,
        "unknown_request": 0,
        "after_clear": 0,
    }


@pytest.mark.parametrize("mode", ["engine_driven", "lmcache_driven"])
def test_the_adapters_of_two_ranks_get_their_own_bytes_back(lmcache_python: Path, server: Server, mode: str):
    assert ran(lmcache_python, "adapters", server.rpc_url, mode) == {
        "miss": 0,
        "half_stored": 0,
        "hit": 1024,
        "load_errors": [],
        "bytes_are_right": [True, True],
        "ranks_differ": True,
        "other_salt": 0,
        "unused": 1024,
        "reset": True,
        "after_reset": 0,
        "healthy": [True, True, True],
    }
