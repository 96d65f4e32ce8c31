"""Looks four chunks up and stores them. Argument: the URL."""

import json
import sys

import zmq
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey, RegisterEngineDrivenContextPayload
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory

TIMEOUT_S = 20.0
TOKENS = tuple(range(3, 3 + 1024))

context = zmq.Context()
client = RequestClientFactory.create(sys.argv[1], context=context)


def key(worker: int | None) -> IPCCacheServerKey:
    return IPCCacheServerKey("tests/fill", 1, worker, TOKENS, 0, 1024, "filling", num_kv_readers=1)


client.get_chunk_size().result(timeout=TIMEOUT_S)
registered = RegisterEngineDrivenContextPayload(7, "tests/fill", 1, 16, 2, 64, "float16", False, 256)
client.register_kv_cache_engine_driven_context(registered).result(timeout=TIMEOUT_S)
client.lookup(key(None), 1).result(timeout=TIMEOUT_S)
hit = None
while hit is None:
    hit = client.query_prefetch_status("filling").result(timeout=TIMEOUT_S)
if client.prepare_store(key(0), 7).result(timeout=TIMEOUT_S).context.get("slots"):
    assert client.commit_store(key(0), 7, b"").result(timeout=TIMEOUT_S)
client.end_session("filling").result(timeout=TIMEOUT_S)
client.unregister_kv_cache_engine_driven_context(7).result(timeout=TIMEOUT_S)
client.close()
context.destroy(linger=0)
print(json.dumps({"hit": hit}))
