"""Kill a process before and after each of its stores into a store's memory: `python -m tests.ipc.store.cuts OPERATION`.

Prints, as JSON, the number of kills and the longest time in seconds that the next put of another process took.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dataplane.ipc.store import ShmObjectStore, attachment, encoding, locks
from dataplane.ipc.store.attachment import StoreAttachment
from dataplane.ipc.store.encoding import Encoded
from dataplane.ipc.store.layout import Tables
from tests.ipc.store.content import content, is_whole

WAIT_S = 60.0
WORDS = 500
KEYS = "abc"
NEW = "new"


class Cut:
    """Kills this process when it comes to the step with the given number."""

    def __init__(self, at: int) -> None:
        self.left = at

    def step(self) -> None:
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)
        self.left -= 1

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*given: Any) -> Any:
            self.step()
            result = function(*given)
            self.step()
            return result

        return stepping


class Stepping(np.ndarray):
    """An array whose stores are steps."""

    cut: Cut

    def __setitem__(self, key: Any, value: Any) -> None:
        self.cut.step()
        super().__setitem__(key, value)


def install(cut: Cut) -> None:
    Stepping.cut = cut
    tables = Tables.__init__

    def stepping_tables(self: Tables, memory: Any, shape: Any) -> None:
        tables(self, memory.view(Stepping), shape)

    def copy_to(self: Encoded, target: Any) -> None:
        for offset, part in self.parts:
            cut.step()
            raw = part.reshape(-1).view(np.uint8)
            half = len(raw) // 2
            target[offset : offset + half] = raw[:half]
            cut.step()
            target[offset + half : offset + len(raw)] = raw[half:]

    Tables.__init__ = stepping_tables  # type: ignore[method-assign]
    encoding.Encoded.copy_to = copy_to  # type: ignore[method-assign]
    for module in (locks, attachment):
        for name in ("try_lock", "unlock"):
            setattr(module, name, cut.around(getattr(locks, name)))
    for name in ("raise_lease", "lower_lease"):
        setattr(StoreAttachment, name, cut.around(getattr(StoreAttachment, name)))


def read(store: ShmObjectStore) -> None:
    value = store.get("a")
    assert is_whole("a", value)


def put(store: ShmObjectStore) -> None:
    store.put(NEW, content(NEW, WORDS))


def clear(store: ShmObjectStore) -> None:
    value = store.get("a")
    store.clear()
    assert is_whole("a", value)


def close(store: ShmObjectStore) -> None:
    value = store.get("a")
    store.close()
    assert is_whole("a", value)


OPERATIONS: dict[str, tuple[Callable[[ShmObjectStore], None], int]] = {
    "attach": (lambda store: None, 8),
    "read": (read, 8),
    "put": (put, 8),
    "evict": (put, 3),
    "clear": (clear, 8),
    "close": (close, 8),
}
"""What the child does, and for how many objects the store has room."""


def child(store: ShmObjectStore, operation: Callable[[ShmObjectStore], None], at: int) -> None:
    """Do an operation and end, in a forked child, with exit code 0 if the cut did not come."""
    code = 1
    try:
        install(Cut(at))
        operation(ShmObjectStore.attach(store.handle(), writer=True, timeout_s=WAIT_S))
        code = 0
    finally:
        os._exit(code)


def check(store: ShmObjectStore) -> float:
    """Check a store after a kill. Return the seconds that a put took."""
    found = [key for key in (*KEYS, NEW) if store.is_cached(key)]
    assert all(is_whole(key, store.get(key)) for key in found)
    assert all(len(store.get(key)) == WORDS for key in found)
    started = time.monotonic()
    store.put("after", content("after", WORDS))
    took = time.monotonic() - started
    assert is_whole("after", store.get("after"))
    store.clear()
    stats = store.stats()
    assert (stats.used_bytes, stats.leased_objects, len(stats.pids)) == (0, 0, 1), stats
    return took


def main(name: str) -> None:
    operation, room = OPERATIONS[name]
    longest, at, finished = 0.0, 0, False
    while not finished:
        with ShmObjectStore.create(room * 4160, max_objects=8, max_processes=4, readers=0, timeout_s=WAIT_S) as store:
            for key in KEYS:
                store.put(key, content(key, WORDS))
            pid = os.fork()
            if not pid:
                child(store, operation, at)
            status = os.waitpid(pid, 0)[1]
            finished = status == 0
            assert finished or os.WTERMSIG(status) == signal.SIGKILL, f"cut {at}: the child failed: {status}"
            longest = max(longest, check(store))
            at += 1
    print(json.dumps({"kills": at - 1, "longest_s": longest}))


if __name__ == "__main__":
    main(sys.argv[1])
