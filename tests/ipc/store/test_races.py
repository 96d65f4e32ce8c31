"""Every call beside `close` and beside a fork, at every place: it completes, or raises StoreError."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count

import numpy as np
import pytest

from dataplane.ipc.store import ObjectHandle, ShmObjectStore, StoreError
from tests.interleaving import STEP_S, Pair, in_a_child, undocumented
from tests.ipc.store.conftest import WAIT_S

PIXELS = np.arange(1024, dtype=np.uint8)
numbers = count()


def put(store: ShmObjectStore) -> ObjectHandle:
    return store.put(f"object {next(numbers)}", PIXELS)


CALLS: dict[str, Callable[[ShmObjectStore], object]] = {
    "put": put,
    "put_pieces": lambda store: store.put_pieces(f"object {next(numbers)}", [b"pieces"]),
    "get": lambda store: store.get("first"),
    "get_cached": lambda store: store.get_cached("first"),
    "return_handle": lambda store: store.return_handle(ObjectHandle(store.attachment.number, 0, 0)),
    "is_cached": lambda store: store.is_cached("first"),
    "touch": lambda store: store.touch("first"),
    "evict": lambda store: store.evict(1 << 20),
    "clear": ShmObjectStore.clear,
    "stats": ShmObjectStore.stats,
    "handle": ShmObjectStore.handle,
    "fileno": ShmObjectStore.fileno,
    "attach": lambda store: ShmObjectStore.attach(store.handle(), timeout_s=0.02).close(),
    "close": ShmObjectStore.close,
}


@contextmanager
def store_of() -> Iterator[ShmObjectStore]:
    with ShmObjectStore.create(
        1 << 20, max_objects=64, max_processes=4, readers=1, checksums=True, timeout_s=WAIT_S
    ) as store:
        store.put("first", PIXELS)
        yield store


@pytest.mark.parametrize("stopped", ["call", "close"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_beside_close(name: str, stopped: str) -> None:
    @contextmanager
    def make() -> Iterator[Pair]:
        with store_of() as store:
            calls = partial(CALLS[name], store), store.close
            yield Pair(*calls) if stopped == "call" else Pair(*reversed(calls))

    assert not list(undocumented(make, "dataplane/ipc", (StoreError,)))


@pytest.mark.parametrize("name", CALLS)
def test_a_forked_child_attaches_again_whatever_a_thread_of_the_parent_does(name: str) -> None:
    def check(store: ShmObjectStore) -> None:
        for call in CALLS.values():
            with suppress(StoreError):
                call(store)

    @contextmanager
    def make() -> Iterator[Pair]:
        with store_of() as store:
            yield Pair(partial(CALLS[name], store), partial(in_a_child, partial(check, store)))

    assert not list(undocumented(make, "dataplane/ipc", (StoreError,), every=27, meanwhile_s=STEP_S))


def test_a_child_that_is_forked_while_a_thread_attaches_does_not_keep_its_row() -> None:
    """A child that runs on would keep the lock that proves that its parent is attached."""
    with ShmObjectStore.create(1 << 20, max_processes=3) as store:

        def attach() -> ShmObjectStore:
            return ShmObjectStore.attach(store.handle(), timeout_s=WAIT_S)

        @contextmanager
        def make() -> Iterator[Pair]:
            reading, writing = os.pipe()
            children: list[int] = []

            def fork() -> None:
                child = os.fork()
                if child == 0:
                    os.close(writing)
                    os.read(reading, 1)
                    os._exit(0)
                children.append(child)

            try:
                yield Pair(lambda: attach().close(), fork)
                with attach(), attach():  # all rows but that of the first store
                    pass
            finally:
                os.close(writing)
                os.waitpid(children[0], 0)
                os.close(reading)

        assert not list(undocumented(make, "dataplane/ipc", (StoreError,), every=9, meanwhile_s=STEP_S))
