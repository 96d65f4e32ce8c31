"""Stores and loads that the data plane makes by itself in an engine's memory, opened by CUDA IPC."""

from __future__ import annotations

from contextlib import ExitStack
from statistics import median
from time import perf_counter_ns

from benchmarks.gpu.device import BATCH_BYTES, EMULATED_BATCH_BYTES
from benchmarks.gpu.pages import DTYPE, SPLIT, Form, shuffled
from benchmarks.gpu.plane import Plane, plane_on
from benchmarks.harness.result import Result, at_least
from benchmarks.harness.setting import Setting
from dataplane.client import Space, attach
from dataplane.client.driven import Copy
from dataplane.client.engine_memory import chunk_layout, exported
from dataplane.devices.runtime import Device, DeviceRuntime

WAIT_S = 60.0


def run(setting: Setting, runtime: DeviceRuntime, device: Device) -> list[Result]:
    batch = EMULATED_BATCH_BYTES if setting.emulated else BATCH_BYTES
    with plane_on(runtime, 3 * batch, 0) as plane:
        return [result for form in SPLIT for result in _copies(setting, runtime, device, form, plane, batch)]


def _copies(
    setting: Setting, runtime: DeviceRuntime, device: Device, form: Form, plane: Plane, batch: int
) -> list[Result]:
    blocks = form.blocks_in(batch)
    chunks = blocks // form.blocks_per_chunk
    taken: dict[str, list[int]] = {"store_from": [], "load_into": []}
    with ExitStack() as stack:
        memory = runtime.allocate(device, batch)
        stack.callback(runtime.free, memory)
        tensors = [
            exported(runtime, memory + offset, DTYPE, form.shape(blocks), form.stride(blocks))
            for offset in form.offsets(blocks)
        ]
        tokens = {"tokens_per_block": form.tokens, "chunk_tokens": form.chunk_tokens}
        layout, block_bytes = chunk_layout(tensors, **tokens)
        space = Space(model="bench", layout=layout, dtype=DTYPE, block_bytes=block_bytes)
        client = stack.enter_context(attach(plane.engine_socket, [space], timeout_s=WAIT_S, checksums=False))
        refused = client.register_cache(tensors, **tokens)
        if refused is not None:
            raise RuntimeError(f"the cache is not registered: {refused.name}")
        numbers = shuffled(blocks)
        for _ in range(setting.effort.rounds + 3):  # the first ones register memory
            keys = setting.new_keys(chunks)
            for name, begin in (("store_from", client.store_from), ("load_into", client.load_into)):
                began = perf_counter_ns()
                copy: Copy = begin(keys, numbers)
                if not copy.wait(WAIT_S) or copy.ended is None or copy.ended.blocks != chunks:
                    raise RuntimeError(f"{name}: {copy.ended}")
                taken[name].append(perf_counter_ns() - began)
    return [
        at_least(f"gpu_{name}_{form.name}", median(chunks * block_bytes / each for each in times[3:]), "GB/s", None)
        for name, times in taken.items()
    ]
