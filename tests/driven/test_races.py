"""Many connections of one process that register, copy, unregister, detach and vanish at any moment: nothing of them is
left, and the node's accounts are consistent."""

from __future__ import annotations

import random
import select
import threading
from collections.abc import Callable

import numpy as np

from dataplane.protocol.codec import encode
from dataplane.protocol.engine import (
    CacheRegistered,
    CopyEnded,
    Detach,
    Detached,
    LoadInto,
    RegisterCache,
    SpaceRequest,
    StoreFrom,
    TensorDescription,
    UnregisterCache,
)
from tests.dataplane import factories as make
from tests.dataplane.plane import RawEngine, wait_for
from tests.driven.conftest import DrivenPlane
from tests.driven.engines import Engine, done
from tests.driven.test_ends import mapped, opened
from tests.gpu.machines import Machine
from tests.threads import join

THREADS = 6
LIVES = 12
"""Of each thread, one connection after the other."""
STEPS = 10
MakePlane = Callable[..., DrivenPlane]
MakeEngine = Callable[..., Engine]


class Life:
    """One connection."""

    def __init__(self, plane: DrivenPlane, engine: Engine, seed: int, pending: bytes) -> None:
        self.random = random.Random(seed)
        self.engine = engine
        self.pending = pending
        self.raw = RawEngine(plane.socket)
        attached = self.raw.attach(SpaceRequest(engine.space), group=f"race-{seed % 3}")
        self.space = attached.spaces[0]
        self.caches = [1]
        self.request_count = 1

    def message(self) -> object:
        self.request_count += 1
        cache = self.random.choice(self.caches)
        keys = make.packed(make.keys(self.random.randint(1, 2), self.random.randint(0, 9)))
        first = self.random.randint(0, 8)
        blocks = np.arange(first, first + 16 * (len(keys) // 32), dtype=np.uint32).tobytes()
        event = self.random.choice([b"", b"", self.pending, bytes(64)])
        kind = self.random.randint(0, 7)
        if kind < 2:
            tensors = [
                TensorDescription(
                    0, each.handle.offset, each.handle.nbytes, each.dtype, list(each.shape), list(each.stride)
                )
                for each in self.engine.tensors
            ]
            body = self.engine.tensors[0].handle.body
            return RegisterCache(self.request_count, self.space, self.engine.machine.device.uuid, [body], tensors, 16)
        if kind == 2:
            return UnregisterCache(self.request_count, cache)
        if kind < 5:
            return StoreFrom(self.request_count, cache, "a", keys, blocks, event, b"", self.random.random() < 0.5)
        return LoadInto(self.request_count, cache, keys, blocks, event, 0)

    def live(self) -> None:
        for _ in range(self.random.randint(1, STEPS)):
            self.raw.send(encode(self.message()))
            # It reads some of its answers, in its own time; some come when a copy has ended alone.
            while self.random.random() < 0.7 and select.select([self.raw.socket], [], [], 0.02)[0]:
                answer = self.raw.receive()
                if isinstance(answer, CacheRegistered):
                    self.caches.append(answer.cache)
                if not isinstance(answer, CopyEnded):
                    break
        if self.random.random() < 0.5:
            self.raw.send(encode(Detach(0)))
            while not isinstance(self.raw.receive(), Detached):
                pass
        self.raw.close()


def test_connections_that_come_and_go_at_any_moment_leave_nothing(
    emulated: Machine, make_plane: MakePlane, make_engine: MakeEngine
) -> None:
    plane = make_plane(emulated, pool_bytes="8MiB", dataplane__segment_bytes="2MiB")
    engine = make_engine(emulated, plane, page_bytes=4096, blocks=48)
    pending = engine.pending().export()
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for at in range(LIVES):
                Life(plane, engine, 1000 * number + at, pending).live()
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert not failed
    stats = plane.wait_stats(lambda stats: sum(each.connected for each in stats.engines) == 1, "all are gone")
    assert stats.pool.used_bytes == stats.pool.ready_bytes
    wait_for(lambda: not opened(plane) and not mapped(plane), "everything is closed")
    emulated.emulator.pace.resume()
    assert engine.register() is None
    assert done(engine.client.store_from(make.keys(1, "after"), list(range(16)))).outcomes.tolist() == [0]
    assert done(engine.client.load_into(make.keys(1, "after"), list(range(16, 32)))).hits == 1
