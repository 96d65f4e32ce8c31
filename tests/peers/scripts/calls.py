"""LMCache's request client against a server: every operation of the engine-driven path. Argument: the URL."""

import json
import mmap
import os
import sys
import time
from typing import Any

import zmq
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey, RegisterEngineDrivenContextPayload
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

INSTANCE = 4711
TIMEOUT_S = 20.0
TOKENS = tuple(range(7, 7 + 1100))
CHUNKS = 4
LAYERS, HIDDEN = 2, 64
CHUNK_BYTES = 2 * LAYERS * 256 * HIDDEN * 2

found: dict[str, Any] = {}
context = zmq.Context()
client = RequestClientFactory.create(sys.argv[1], context=context)


def key(request: str, *, worker: int | None = 0, tokens: tuple[int, ...] = TOKENS, salt: str = "") -> IPCCacheServerKey:
    return IPCCacheServerKey(
        model_name="tests/calls",
        world_size=1,
        worker_id=worker,
        token_ids=tokens,
        start=0,
        end=len(tokens) // 256 * 256,
        request_id=request,
        cache_salt=salt,
        num_kv_readers=1,
    )


def looked_up(request: str, **which: Any) -> int:
    """Chunks, once the server knows."""
    client.lookup(key(request, worker=None, **which), 1).result(timeout=TIMEOUT_S)
    deadline = time.monotonic() + TIMEOUT_S
    while (chunks := client.query_prefetch_status(request).result(timeout=TIMEOUT_S)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError("the look-up never ended")
        time.sleep(0.002)
    return chunks


def slot_bytes(slot: dict[str, Any]) -> slice:
    return slice(slot["offset"], slot["offset"] + slot["length"])


def content(chunk: int) -> bytes:
    return bytes([chunk + 1]) * (CHUNK_BYTES - 8) + chunk.to_bytes(8, "little")


found["chunk_size"] = client.get_chunk_size().result(timeout=TIMEOUT_S)
found["ping"] = client.ping(None).result(timeout=TIMEOUT_S)
found["noop"] = client.noop().result(timeout=TIMEOUT_S)
client.get_experimental().result(timeout=TIMEOUT_S)
registered = client.register_kv_cache_engine_driven_context(
    RegisterEngineDrivenContextPayload(
        instance_id=INSTANCE,
        model_name="tests/calls",
        world_size=1,
        block_size=16,
        num_layers=LAYERS,
        hidden_dim_size=HIDDEN,
        dtype_str="float16",
        use_mla=False,
        num_physical_slots=256,
    )
).result(timeout=TIMEOUT_S)
found["pool_is_named"] = registered.shm_name.startswith("lmcache_l1_pool_")
descriptor = os.open(f"/dev/shm/{registered.shm_name}", os.O_RDWR)
found["pool_mode"] = oct(os.fstat(descriptor).st_mode & 0o777)
found["pool_size_is_true"] = os.fstat(descriptor).st_size >= registered.pool_size > 0
pool = mmap.mmap(descriptor, registered.pool_size)
found["ping_instance"] = client.ping(INSTANCE).result(timeout=TIMEOUT_S)

found["miss"] = looked_up("first")
prepared = client.prepare_store(key("first"), INSTANCE).result(timeout=TIMEOUT_S).context
found["store"] = {
    "indices": prepared["chunk_indices"],
    "lengths": [slot["length"] for slot in prepared["slots"]],
    "shapes": [list(slot["shape"]) for slot in prepared["slots"]],
    "dtypes": sorted({slot["dtype"] for slot in prepared["slots"]}),
    "aligned": all(slot["offset"] % 4096 == 0 for slot in prepared["slots"]),
    "inside": all(slot["offset"] + slot["length"] <= registered.pool_size for slot in prepared["slots"]),
}
for chunk, slot in zip(prepared["chunk_indices"], prepared["slots"], strict=True):
    pool[slot_bytes(slot)] = content(chunk)
found["unseen_before_commit"] = looked_up("between")
client.end_session("between").result(timeout=TIMEOUT_S)
found["committed"] = client.commit_store(key("first"), INSTANCE, b"").result(timeout=TIMEOUT_S)
client.end_session("first").result(timeout=TIMEOUT_S)

found["hit"] = looked_up("second")
found["consumed"] = client.query_prefetch_status("second").result(timeout=TIMEOUT_S)
retrieved = client.prepare_retrieve(key("second"), INSTANCE).result(timeout=TIMEOUT_S)
slots = retrieved.context["slots"]
found["retrieve"] = {
    "success": retrieved.success,
    "slots": len(slots),
    "bytes_are_right": [pool[slot_bytes(slot)] == content(chunk) for chunk, slot in enumerate(slots)],
}
found["done"] = client.commit_retrieve(key("second"), INSTANCE).result(timeout=TIMEOUT_S)
client.end_session("second").result(timeout=TIMEOUT_S)

again = client.prepare_store(key("third"), INSTANCE).result(timeout=TIMEOUT_S).context
found["store_of_what_is_there"] = {"slots": again["slots"]}
client.end_session("third").result(timeout=TIMEOUT_S)
longer = TOKENS + tuple(range(5000, 5300))
found["prefix_hit"] = looked_up("longer", tokens=longer)
client.free_lookup_locks(key("longer", worker=None, tokens=longer), 1).result(timeout=TIMEOUT_S)
client.end_session("longer").result(timeout=TIMEOUT_S)
found["other_tokens"] = looked_up("other", tokens=tuple(range(9000, 9600)))
client.end_session("other").result(timeout=TIMEOUT_S)
found["other_salt"] = looked_up("salted", salt="someone-else")
client.end_session("salted").result(timeout=TIMEOUT_S)
found["unknown_request"] = client.query_prefetch_status("never asked").result(timeout=TIMEOUT_S)
client.clear(True).result(timeout=TIMEOUT_S)
found["after_clear"] = looked_up("cleared")
client.end_session("cleared").result(timeout=TIMEOUT_S)
client.unregister_kv_cache_engine_driven_context(INSTANCE).result(timeout=TIMEOUT_S)

pool.close()
os.close(descriptor)
client.close()
context.destroy(linger=0)
print(json.dumps(found))
