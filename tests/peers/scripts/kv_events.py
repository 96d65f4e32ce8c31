"""A subscriber of KV events made of vLLM's own types. Arguments: URL of the events, URL of replays.

It says `ready` once, reads until everything that was stored is removed again, asks for all of it a second time, and
prints what it found.
"""

import json
import sys
import time
from typing import Any

import msgspec
import zmq
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

TIMEOUT_S = 60.0
END = (-1).to_bytes(8, "big", signed=True)
decoder = msgspec.msgpack.Decoder(type=KVEventBatch)
context = zmq.Context()
events = context.socket(zmq.SUB)
events.subscribe(b"kv@")
events.connect(sys.argv[1])
print("ready", flush=True)

found: dict[str, Any] = {"kinds": [], "numbers": [], "topics": [], "ranks": []}
stored: list[BlockStored] = []
cached: set[int] = set()
deadline = time.monotonic() + TIMEOUT_S
while not stored or cached:
    if not events.poll(1000) and time.monotonic() > deadline:
        raise TimeoutError(f"what was stored was never removed: {found}")
    if not events.poll(0):
        continue
    topic, number, payload = events.recv_multipart()
    batch = decoder.decode(payload)
    found["numbers"].append(int.from_bytes(number, "big"))
    found["topics"].append(topic.decode())
    found["ranks"].append(batch.data_parallel_rank)
    for event in batch.events:
        found["kinds"].append(type(event).__name__)
        if isinstance(event, BlockStored):
            stored.append(event)
            cached.update(event.block_hashes)
        elif isinstance(event, BlockRemoved):
            cached.difference_update(event.block_hashes)
        else:
            assert isinstance(event, AllBlocksCleared)
            cached.clear()
found["topics"], found["ranks"] = sorted(set(found["topics"])), sorted(set(found["ranks"]))
found["tokens"] = [token for event in stored for token in event.token_ids]
found["sizes"] = sorted({(event.block_size, event.medium) for event in stored})
found["hashes"] = sum(len(event.block_hashes) for event in stored)
parents = [event.parent_block_hash for event in stored]
found["parents"] = [parent is None or any(parent in event.block_hashes for event in stored) for parent in parents]

replays = context.socket(zmq.DEALER)
replays.connect(sys.argv[2])
replays.send_multipart([b"", (0).to_bytes(8, "big")])
again: list[int] = []
while replays.poll(int(TIMEOUT_S * 1000)):
    _, _, number, payload = replays.recv_multipart()
    if number == END:
        break
    decoder.decode(payload)
    again.append(int.from_bytes(number, "big"))
found["replayed"] = again == found["numbers"]
context.destroy(linger=0)
print(json.dumps(found))
