"""One store with readers in processes of their own, measured: `python -m benchmarks.ipc.store_process KIND ROUNDS`.

KIND is `larder` or `vllm`. Both are measured by the same interpreter, which for `vllm` is that of vLLM's environment.
Prints one JSON object: medians in microseconds by figure.
"""

from __future__ import annotations

import ctypes
import gc
import json
import multiprocessing
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.harness.memory import Mapping

OBJECT_BYTES = 9_000_000
STORE_BYTES = 256 << 20
READERS = 4
HITS = 5
START_S = 120.0


class LarderStore:
    """Larder's store, from one process's side."""

    def __init__(self, handle: Any = None) -> None:
        from dataplane.ipc.store import ShmObjectStore

        self._store = (
            ShmObjectStore.create(STORE_BYTES, readers=READERS) if handle is None else ShmObjectStore.attach(handle)
        )

    def handle(self) -> Any:
        return self._store.handle()

    def put(self, key: str, value: Any) -> Any:
        return self._store.put(key, value)

    def get(self, key: str, address: Any) -> Any:
        return self._store.get(address)

    def refer(self, key: str, address: Any) -> None:
        self._store.get_cached(key)

    def close(self) -> None:
        self._store.close()


class VllmStore:
    """vLLM's store, from one process's side."""

    def __init__(self, handle: Any = None) -> None:
        from vllm.distributed.device_communicators.shm_object_storage import (
            SingleWriterShmObjectStorage,
            SingleWriterShmRingBuffer,
        )

        if handle is None:
            ring = SingleWriterShmRingBuffer(STORE_BYTES, create=True)
            self._lock = multiprocessing.get_context("spawn").Lock()
            self._store = SingleWriterShmObjectStorage(OBJECT_BYTES + (1 << 20), READERS, ring)
        else:
            self._store = SingleWriterShmObjectStorage.create_from_handle(handle)

    def handle(self) -> Any:
        handle = self._store.handle()
        handle.reader_lock = self._lock
        return handle

    def put(self, key: str, value: Any) -> Any:
        address = self._store.put(key, value)
        return *address, self._store.get_signature(key)

    def get(self, key: str, address: Any) -> Any:
        return self._store.get(*address, key)

    def refer(self, key: str, address: Any) -> None:
        self._store.get_cached(key)

    def close(self) -> None:
        self._store.close()


KINDS: dict[str, Callable[..., Any]] = {"larder": LarderStore, "vllm": VllmStore}


def read_all(get: Callable[[], Any]) -> Any:
    """Get an array or a tensor, and touch every byte of it."""
    return get().max()


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    started = perf_counter_ns()
    result = action()
    return (perf_counter_ns() - started) / 1e3, result


def reader(kind: str, handle: Any, orders: Connection) -> None:
    """Answer each key and address with the times of a first get, of a get with a pass over all bytes, and of hits."""
    import torch

    torch.set_num_threads(1)
    store = KINDS[kind](handle)
    orders.send("ready")
    while (order := orders.recv()) is not None:
        key, address = order
        get = partial(store.get, key, address)
        first, value = timed(get)
        passed, _ = timed(partial(read_all, get))
        hits = []
        for _ in range(HITS):
            del value
            hit_time, value = timed(get)
            hits.append(hit_time)
        del value
        orders.send((first, passed, hits))


def measure(kind: str, value: Any, rounds: int, name: str) -> dict[str, float]:
    source = value.ctypes.data if isinstance(value, np.ndarray) else value.data_ptr()
    store = KINDS[kind]()
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    target = Mapping(STORE_BYTES)
    try:
        for _ in range(READERS):
            own_end, child_end = context.Pipe()
            process = context.Process(target=reader, args=(kind, store.handle(), child_end), daemon=True)
            process.start()
            pipes.append(own_end)
            processes.append(process)
        for pipe in pipes:
            assert pipe.poll(START_S), "a reader did not start"
            pipe.recv()
        puts, copies, firsts, passes, hits = [], [], [], [], []
        objects = STORE_BYTES // OBJECT_BYTES
        gc.disable()
        for number in range(rounds + objects + 2):  # each page is touched once before it counts
            key = f"{name}{number}"
            at = target.address + number % objects * OBJECT_BYTES
            turns = [partial(store.put, key, value), partial(ctypes.memmove, at, source, OBJECT_BYTES)]
            order = (0, 1) if number % 2 else (1, 0)  # the second one finds the source in the caches
            times = {turn: timed(turns[turn]) for turn in order}
            (put_time, address), (copy_time, _) = times[0], times[1]
            for _ in range(HITS + 1):  # each reader reads the object so often
                store.refer(key, address)
            for pipe in pipes:
                pipe.send((key, address))
            for pipe in pipes:
                assert pipe.poll(START_S), "a reader does not answer"
                first, passed, reader_hits = pipe.recv()
                if number >= objects + 2:
                    firsts.append(first)
                    passes.append(passed)
                    hits += reader_hits
            if number >= objects + 2:
                puts.append(put_time)
                copies.append(copy_time)
    finally:
        for pipe, process in zip(pipes, processes, strict=True):
            pipe.send(None)
            process.join(START_S)
        store.close()
        target.close()
    return {
        f"{name}_put": median(puts),
        f"{name}_put_over_memcpy": median(put / copy for put, copy in zip(puts, copies, strict=True)),
        f"{name}_memcpy": median(copies),
        f"{name}_first_get": median(firsts),
        f"{name}_hit": median(hits),
        f"{name}_get_and_read": median(passes),
    }


def main(kind: str, rounds: int) -> None:
    import torch

    torch.set_num_threads(1)
    figures = measure(kind, np.arange(OBJECT_BYTES // 4, dtype=np.float32), rounds, "numpy")
    figures |= measure(kind, torch.arange(OBJECT_BYTES // 4, dtype=torch.float32), rounds, "torch")
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
