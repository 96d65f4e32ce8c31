"""Readers and writers that are killed at random: `python -m tests.ipc.store.hammer KILLS reader|writer|both`.

Prints, as JSON, the number of kills, the longest time in seconds from a kill until each survivor had gone on, and the
store's counters.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from dataclasses import dataclass
from typing import Literal

import msgspec

from dataplane.ipc.store import ObjectExists, ObjectMissing, ShmObjectStore, StoreFull, StoreHandle
from tests.ipc.store.content import content, is_whole

Role = Literal["reader", "writer"]
ROLES: tuple[Role, ...] = ("reader", "reader", "reader", "writer", "writer")
WAIT_S = 60.0
BUDGET_BYTES = 1 << 20
KEYS = 60


@dataclass
class Worker:
    role: Role
    pid: int
    progress: int
    """A pipe: the worker writes a byte for each operation."""

    def makes_progress(self) -> int:
        """Wait for an operation that began now, and return how many bytes of progress came."""
        os.set_blocking(self.progress, False)
        count = 0
        while count < 2:  # the first one may be of an operation from before
            assert select.select([self.progress], [], [], WAIT_S)[0], f"a {self.role} is blocked"
            data = os.read(self.progress, 1 << 16)
            assert data, f"a {self.role} ended"
            count += len(data)
        return count

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.progress)
        assert os.WIFSIGNALED(status), f"a {self.role} failed: {status}"


def start(role: Role, handle: StoreHandle) -> Worker:
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(ours)
            work(role, handle, theirs)
        finally:
            os._exit(1)
    os.close(theirs)
    return Worker(role, pid, ours)


def work(role: Role, handle: StoreHandle, progress: int) -> None:
    chance = random.Random()
    store = ShmObjectStore.attach(handle, writer=role == "writer", timeout_s=WAIT_S)
    values: list[object] = []
    while True:
        key = f"{chance.randrange(KEYS)}"
        try:
            if role == "writer":
                store.put(key, content(key, chance.randrange(1, 6000)))
            else:
                found = store.get(key)
                if chance.random() < 0.3:
                    values.append(found)
                if len(values) > 3:
                    del values[0]
                assert is_whole(key, found), key
        except (ObjectExists, ObjectMissing, StoreFull):
            pass
        os.write(progress, b".")


def main(kills: int, role_of_victims: str) -> None:
    chance = random.Random(kills)
    store = ShmObjectStore.create(BUDGET_BYTES, max_objects=64, max_processes=16, timeout_s=WAIT_S)
    workers = [start(role, store.handle()) for role in ROLES]
    longest = 0.0
    try:
        for _ in range(kills):
            for worker in workers:
                worker.makes_progress()
            roles = {"reader", "writer"} if role_of_victims == "both" else {role_of_victims}
            for role in roles:
                victim = chance.choice([worker for worker in workers if worker.role == role])
                victim.kill()
                workers.remove(victim)
            killed = time.monotonic()
            for worker in workers:
                worker.makes_progress()
            longest = max(longest, time.monotonic() - killed)
            workers += [start(role, store.handle()) for role in sorted(roles)]  # type: ignore[arg-type]
    finally:
        for worker in workers:
            worker.kill()
    store.clear()
    stats = store.stats()
    assert (stats.used_bytes, stats.leased_objects, stats.pids) == (0, 0, (os.getpid(),)), stats
    store.put("all", content("all", (BUDGET_BYTES - 256) // 8))
    assert is_whole("all", store.get("all"))
    print(json.dumps({"kills": kills, "longest_s": longest, "stats": msgspec.to_builtins(stats)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
