"""A subscriber of vLLM's own package reads the KV events of `larder up` while LMCache's client stores and clears."""

import json
import os
import random
import subprocess
from pathlib import Path
from struct import pack

import pytest
import zmq

from benchmarks.peers import servers
from benchmarks.peers.environment import QUIET
from benchmarks.peers.vllm_model import FULL_CHUNKS, write_model
from tests.dataplane.kv_events.decoders import llm_d
from tests.peers.scripting import SCRIPTS, ran

CHUNKS = 4


@pytest.mark.timeout(300)
@pytest.mark.parametrize("block_tokens", [16, 256])
def test_vllms_own_types_decode_the_stream(vllm_python: Path, lmcache_python: Path, block_tokens: int):
    urls = [f"tcp://127.0.0.1:{servers.free_port()}" for _ in range(2)]
    settings = {
        "LARDER_KV_EVENTS_URL": urls[0],
        "LARDER_DATAPLANE__KV_EVENTS_REPLAY_URL": urls[1],
        "LARDER_DATAPLANE__KV_EVENTS_BLOCK_TOKENS": str(block_tokens),
        "LARDER_DATAPLANE__KV_EVENTS_TOKEN_IDS": "true",
        "LARDER_DATAPLANE__NODE": "node-1",
    }
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("LARDER_", "PYTEST_"))}
    subscriber = subprocess.Popen(
        [vllm_python, SCRIPTS / "kv_events.py", *urls],
        env=environ | QUIET,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert subscriber.stdout is not None
        while subscriber.stdout.readline() not in ("ready\n", ""):
            pass
        with servers.larder(512 << 20, settings) as server:
            ran(lmcache_python, "calls", server.rpc_url)
            output, _ = subscriber.communicate(timeout=90)
    finally:
        subscriber.kill()
        subscriber.wait(60)
    found = json.loads(output.splitlines()[-1])
    assert found["kinds"][:2] == ["AllBlocksCleared", "BlockStored"]
    assert found["kinds"][-1] == "BlockRemoved"
    assert found["numbers"] == list(range(len(found["numbers"])))
    assert (found["topics"], found["ranks"]) == (["kv@node-1@tests/calls"], [0])
    assert found["tokens"] == list(range(7, 7 + CHUNKS * 256))
    assert found["sizes"] == [[block_tokens, "CPU"]]
    assert found["hashes"] == CHUNKS * 256 // block_tokens
    assert all(found["parents"])
    assert found["replayed"]


@pytest.mark.full
@pytest.mark.timeout(900)
def test_blocks_of_a_vllm_are_published_with_their_prompt(vllm_python: Path, tmp_path: Path):
    url, replays = (f"tcp://127.0.0.1:{servers.free_port()}" for _ in range(2))
    settings = {
        "LARDER_KV_EVENTS_URL": url,
        "LARDER_DATAPLANE__KV_EVENTS_REPLAY_URL": replays,
        "LARDER_DATAPLANE__KV_EVENTS_FORMAT": "array",
        "LARDER_DATAPLANE__KV_EVENTS_TOKEN_IDS": "true",
    }
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    with servers.larder(512 << 20, settings) as server:
        ran(vllm_python, "generate", server.rpc_port, write_model(tmp_path), timeout_s=420)
        asking = context.socket(zmq.DEALER)
        asking.connect(replays)
        asking.send_multipart([b"", pack(">Q", 0)])
        events = []
        while True:
            assert asking.poll(15_000)
            *_, number, payload = asking.recv_multipart()
            if number == pack(">q", -1):
                break
            events += llm_d(payload, old=True)
        asking.close(linger=0)
        context.term()
    stored = [event for event in events if event.kind == "BlockStored"]
    chance = random.Random(5)
    prompt = [chance.randrange(3, 4096) for _ in range(1200)]
    assert [token for event in stored for token in event.tokens] == prompt[:FULL_CHUNKS]
    assert stored[0].extra[0] == ["acme"]
