"""SGLang's host pools and controllers of the hierarchical cache on CPU, driven line by line: a JSON request on the
standard input, a JSON answer on the standard output.

    {"do": "open", "on": "a", "extra": {...}, "layout": "page_first", "kind": "mha", "rank": 0, "ranks": 1}
                                                make a host pool and a controller; `kind` is mha, asymmetric or mla
    {"do": "backup", "on": "a", "tokens": [...], "salt": null, "seed": 1}
                                                write whole pages into the host pool, and store them
    {"do": "prefetch", "on": "a", "tokens": [...], "salt": null}
                                                look up, and load into other pages of the host pool
    {"do": "second_pool", "on": "a"}            register an additional host pool
    {"do": "shape", "on": "a"}                  describe what the fake pool of the tests must have too
    {"do": "arguments", "of": {...}}            return the identity of an engine with these arguments, and what Larder
                                                lists although SGLang has no such argument
    {"do": "clear", ...}, {"do": "stats", ...}, {"do": "close", ...}
"""
# ruff: noqa: E402  something must happen before SGLang is imported

import hashlib
import json
import logging
import os
import sys
import tempfile
import threading
import traceback
from array import array
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from unittest import mock

from tests.engines.sglang.scripts import absent  # noqa: F401  before SGLang

answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # printed text must not mix with answers

import torch
import torch.distributed as dist
from sglang.srt.arg_groups.arg_utils import namespace_of
from sglang.srt.arg_groups.lora_hook import check_lora_server_args
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_pool_entry
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.common import get_allocator_type
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup
from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost, get_mha_host_pool_cls
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.server_args import ServerArgs

from dataplane.engines.sglang import arguments as identities

PAGE, LAYERS, TOKENS = 16, 3, 512
WAIT_S = 30


def make_pools(kind: str, layout: str, allocator: str) -> Any:
    common = {
        "size": TOKENS, "page_size": PAGE, "dtype": torch.bfloat16, "layer_num": LAYERS, "device": "cpu",
        "enable_memory_saver": False,
    }  # fmt: skip
    if kind == "mla":
        device = MLATokenToKVPool(kv_lora_rank=32, qk_rope_head_dim=8, **common)
        host_class = MLATokenToKVPoolHost
        more = {"target_layer_num": LAYERS, "override_kv_cache_dim": device.kv_cache_dim}
    else:
        wider = {"v_head_dim": 16} if kind == "asymmetric" else {}
        device = MHATokenToKVPool(head_num=2, head_dim=8, **wider, **common)
        host_class, more = get_mha_host_pool_cls(device.get_device_pool_infos()[0].buffer_info), {}
    host = host_class(
        device.get_device_pool_infos()[0].buffer_info,
        2.0,
        0,
        PAGE,
        layout,
        pin_memory=False,
        allocator_type=allocator,
        device_capacity_tokens=device.size,
        start_layer=device.start_layer,
        end_layer=device.end_layer,
        **more,
    )
    return device, host


class Engine:
    """One rank's host pool and controller."""

    def __init__(self, extra: dict[str, Any], layout: str, kind: str, rank: int, ranks: int) -> None:
        with get_context().override_server_args(
            hicache_storage_backend="dynamic", hicache_storage_backend_extra_config=json.dumps(extra)
        ):
            allocator = get_allocator_type()
        device, self.host = make_pools(kind, layout, allocator)
        entry = build_pool_entry(
            name=PoolName.KV,
            host_pool=self.host,
            device_pool=device,
            layer_mapping={layer: layer for layer in range(LAYERS)},
            transfer_layer_id_max=LAYERS,
            is_anchor=True,
        )
        options = {
            **dict.fromkeys(("tp_rank", "attn_tp_rank", "moe_tp_rank"), rank),
            **dict.fromkeys(("tp_size", "attn_tp_size", "moe_tp_size"), ranks),
            **dict.fromkeys(("pp_rank", "attn_dcp_rank"), 0),
            **dict.fromkeys(("pp_size", "attn_dcp_size"), 1),
        }
        with get_parallel().override(**options):
            self.controller = HybridCacheController(
                PagedTokenToKVPoolAllocator(TOKENS, PAGE, torch.bfloat16, "cpu", device, False),
                HostPoolGroup([entry]),
                PAGE,
                group,
                threading.Event(),
                io_backend="direct",
                storage_backend="dynamic",
                model_name="m",
                storage_backend_extra_config=extra,
                transfer_layer_id_max=LAYERS,
                enable_storage_metrics=True,
            )

    def _digest(self, first: int) -> str:
        """Return the digest of a page of the host pool, as the pool itself reads it."""
        if isinstance(self.host, AsymmetricMHATokenToKVPoolHost):  # it has no flat pages
            parts = [self.host.k_buffer[first : first + PAGE], self.host.v_buffer[first : first + PAGE]]
        else:
            parts = [self.host.get_data_page(first)]
        content = b"".join(each.contiguous().view(torch.uint8).numpy().tobytes() for each in parts)
        return hashlib.sha256(content).hexdigest()

    def _fill(self, first: int, chance: Any) -> None:
        """Write noise into a page of the host pool."""

        def noise(like: Any) -> Any:
            return torch.randint(-99, 99, like.shape, generator=chance).to(like.dtype)

        if isinstance(self.host, AsymmetricMHATokenToKVPoolHost):
            for buffer in (self.host.k_buffer, self.host.v_buffer):
                buffer[first : first + PAGE] = noise(buffer[first : first + PAGE])
        else:
            self.host.set_from_flat_data_page(first, noise(self.host.get_dummy_flat_data_page()))

    def backup(self, tokens: list[int], seed: int, salt: str | None = None) -> dict[str, Any]:
        host, key = self.host, key_of(tokens, salt)
        names = get_storage_hash_str(key, None, page_size=PAGE)
        indices = host.alloc(len(names) * PAGE)
        chance = torch.Generator().manual_seed(seed)
        for at in range(len(names)):
            self._fill(int(indices[at * PAGE]), chance)
        self.controller.write_storage(indices, key, hash_value=names)
        done = self.controller.ack_backup_queue.get(timeout=WAIT_S)
        pages = [self._digest(int(indices[at * PAGE])) for at in range(len(names))]
        host.free(indices)
        return {"tokens": done.completed_tokens, "pages": pages}

    def prefetch(self, tokens: list[int], salt: str | None = None) -> dict[str, Any]:
        controller, key = self.controller, key_of(tokens, salt)
        controller.prefetch(CacheRequestHandle("request", 0), key)
        found = controller.prefetch_hit_queue.get(timeout=WAIT_S)
        hits, completed, pages = found.storage_hit_count, 0, []
        if hits:
            found.host_indices = controller.alloc_prefetch_host_buffers(found, hits)
            controller.prefetch_buffer.put(found)
            while True:
                ack = controller.ack_prefetch_queue.get(timeout=WAIT_S)
                completed = max(completed, ack.completed_tokens or 0)
                if ack.completed_req:
                    break
            pages = [self._digest(int(found.host_indices[at])) for at in range(0, completed, PAGE)]
            self.host.free(found.host_indices)
        return {"hits": hits, "completed": completed, "pages": pages}

    def shape(self) -> dict[str, Any]:
        addresses, sizes = self.host.get_page_buffer_meta(torch.arange(2 * PAGE))
        pieces = len(sizes) // 2
        return {
            "kind": type(self.host).__name__,
            "sizes": sizes[:pieces],
            "steps": [b - a for a, b in zip(addresses[:pieces], addresses[pieces:], strict=True)],
            "attributes": [name for name in ("page_size", "size", "layout", "dtype") if hasattr(self.host, name)],
            "config": sorted(vars(self.controller.storage_config)),
        }

    def second_pool(self) -> dict[str, Any]:
        """Register a pool beside that of the KV cache, as SGLang does for models that need one."""
        backend = self.controller.storage_backend
        backend.register_mem_host_pool_v2(self.host, PoolName.KV)
        before = backend.batch_exists_v2([]).kv_hit_pages
        backend.register_mem_host_pool_v2(self.host, PoolName.MAMBA)
        transfer = PoolTransfer(name=PoolName.MAMBA, keys=["a", "b"])
        return {
            "before": before,
            "hits": backend.batch_exists_v2(["a"], [transfer]).kv_hit_pages,
            "loaded": list(backend.batch_get_v2([transfer]).values()),
            "stored": list(backend.batch_set_v2([transfer]).values()),
        }

    def clear(self) -> dict[str, Any]:
        return {"done": self.controller.clear_storage_backend()}

    def stats(self) -> dict[str, Any]:
        found = self.controller.storage_backend.get_stats()
        return {name: getattr(found, name) for name in ("prefetch_pgs", "backup_pgs")}

    def close(self) -> dict[str, Any]:
        self.controller.detach_storage_backend()
        return {"closed": True}


def key_of(tokens: list[int], salt: str | None) -> Any:
    return RadixKey(array("q", tokens[: len(tokens) // PAGE * PAGE]), cache_salt=salt)


def open_engine(on: str, **options: Any) -> dict[str, Any]:
    try:
        engines[on] = Engine(**options)
    except ValueError as error:
        return {"error": str(error)}
    return {"opened": type(engines[on].controller.storage_backend).__name__}


def arguments(of: dict[str, Any]) -> dict[str, Any]:
    names = namespace_of(ServerArgs)
    listed = [*identities.COUNTED, *identities.HARMLESS]
    server = ServerArgs(model_path="dummy", **of)
    check_lora_server_args(server)
    with mock.patch("sglang.srt.runtime_context.get_server_args", return_value=server):
        identity = identities.identity("m", vouched=True, has_draft_layers=False)
    return {
        "unknown": [known for known in listed if not any(fnmatchcase(name, known) for name in names)]
        + [known for known in identities.HARMLESS_NAMESPACES if known not in names.values()],
        "identity": identity,
    }


engines: dict[str, Engine] = {}
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{Path(folder, 'store')}", rank=0, world_size=1)
    group = dist.new_group([0])
    with get_context().override_server_args(page_size=PAGE, device="cpu"):
        # SGLang compiles its hash function at the first use, which takes minutes on a busy machine.
        get_storage_hash_str(key_of([0] * PAGE, None), None, page_size=PAGE)
        print(json.dumps({"ready": True}), file=answers)
        for line in sys.stdin:
            request = json.loads(line)
            do = request.pop("do")
            try:
                methods: dict[str, Any] = {"open": open_engine, "arguments": arguments}
                method = methods.get(do) or getattr(engines[request.pop("on")], do)
                answer = method(**request)
            except Exception:  # noqa: BLE001  the test shows it
                answer = {"failed": traceback.format_exc()}
            print(json.dumps(answer), file=answers)
    dist.destroy_process_group()
