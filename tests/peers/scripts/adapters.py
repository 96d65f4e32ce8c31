"""The adapters that LMCache's vLLM connector is made of: a scheduler's and one for each rank. Arguments: URL, mode, and
the device of the tensors (cpu).

Two ranks store a request of four chunks, other memory takes it back, and the bytes are compared.
"""

import json
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
import zmq
from lmcache.integration.vllm.vllm_multi_process_adapter import (
    LMCacheMPSchedulerAdapter,
    LMCacheMPWorkerAdapter,
    LoadStoreOp,
    ParallelStrategy,
)
from lmcache.v1.multiprocess.group_view import EngineGroupInfo

url, mode, device = (*sys.argv[1:], "cpu")[:3]
MODEL = f"tests/adapters/{mode}"
BLOCK_TOKENS, BLOCKS, LAYERS, HEADS, HEAD_SIZE, RANKS = 16, 128, 3, 2, 32, 2
TOKENS = list(range(11, 11 + 1100))
STORED, LOADED = list(range(64)), list(range(64, 128))
WAIT_S = 20.0

found: dict[str, Any] = {}
probes = count()
CONFIG = {"lmcache.mp.mp_transfer_mode": mode, "lmcache.mp.mq_timeout": 20.0}
context = zmq.Context()


def until(event: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (value := event()):
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.002)
    return value


def strategy(rank: int) -> ParallelStrategy:
    return ParallelStrategy(
        mla_only=False, vllm_world_size=RANKS, vllm_worker_id=rank, tp_size=RANKS, pp_size=1, n_servers=1
    )


def memory(rank: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(rank)
    shape = (2, BLOCKS, BLOCK_TOKENS, HEADS, HEAD_SIZE)
    return {f"layer.{layer}": torch.randn(shape, dtype=torch.float16).to(device) for layer in range(LAYERS)}


def looked_up(request: str, salt: str = "") -> int:
    scheduler.maybe_submit_lookup_request(request, TOKENS, cache_salt=salt)
    (tokens,) = until(
        lambda: None if (known := scheduler.check_lookup_result(request)) is None else (known,), "the look-up"
    )
    return int(tokens)


def published() -> bool:
    request = f"look-{next(probes)}"
    found_tokens = looked_up(request)
    scheduler.free_lookup_locks(TOKENS, 0, 1024, request)
    scheduler.end_session(request)
    scheduler.cleanup_lookup_result(request)
    return found_tokens == 1024


def stored(worker: LMCacheMPWorkerAdapter) -> None:
    until(lambda: worker.get_finished({"first"})[0] or not worker.store_futures, "the store")


def retrieved(worker: LMCacheMPWorkerAdapter) -> None:
    until(lambda: "second" in (worker.get_finished(set())[1] or ()), "the retrieval")


scheduler = LMCacheMPSchedulerAdapter([url], context, MODEL, BLOCK_TOKENS, strategy(0), extra_config=CONFIG)
workers = [
    LMCacheMPWorkerAdapter(url, context, MODEL, BLOCK_TOKENS, strategy(rank), extra_config=CONFIG)
    for rank in range(RANKS)
]
memories = [memory(rank) for rank in range(RANKS)]
for worker, tensors in zip(workers, memories, strict=True):
    worker.register_kv_caches(
        tensors,
        [EngineGroupInfo(engine_group_id=0, layer_indices=tuple(range(LAYERS)), tokens_per_block=BLOCK_TOKENS)],
        {"kv_layout": "NHD"},
    )

found["miss"] = looked_up("first")
scheduler.end_session("first")
scheduler.cleanup_lookup_result("first")
for rank, worker in enumerate(workers):
    event = worker.create_recorded_event()
    worker.submit_store_request("first", LoadStoreOp(TOKENS, [STORED], 0, 1024), event)
    if rank == 0:
        found["half_stored"] = looked_up("between")
        scheduler.end_session("between")
        scheduler.cleanup_lookup_result("between")
for worker in workers:
    stored(worker)
until(published, "the stored chunks are found")  # LMCache's server answers a store before it publishes it
found["hit"] = looked_up("second")
for worker in workers:
    event = worker.create_recorded_event()
    worker.submit_retrieve_request("second", LoadStoreOp(TOKENS, [LOADED], 0, 1024), event)
for worker in workers:
    retrieved(worker)
found["load_errors"] = sorted(set().union(*(worker.get_block_ids_with_load_errors() for worker in workers)))
found["bytes_are_right"] = [
    all(torch.equal(tensor[:, STORED], tensor[:, LOADED]) for tensor in tensors.values()) for tensors in memories
]
found["ranks_differ"] = not torch.equal(memories[0]["layer.0"], memories[1]["layer.0"])
scheduler.end_session("second")
found["other_salt"] = looked_up("salted", salt="someone-else")
scheduler.end_session("salted")
found["unused"] = looked_up("third")
scheduler.free_lookup_locks(TOKENS, 0, 1024, "third")
scheduler.end_session("third")
found["reset"] = scheduler.reset_cache()
found["after_reset"] = looked_up("fourth")
scheduler.end_session("fourth")
found["healthy"] = [scheduler.is_healthy, *(worker.is_healthy for worker in workers)]
for worker in workers:
    worker.shutdown()
scheduler.shutdown()
context.destroy(linger=0)
print(json.dumps(found))
