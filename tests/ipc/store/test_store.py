"""What a store returns: the objects that were put, until they are evicted."""

from __future__ import annotations

import os
import pickle
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np
import pytest

from dataplane.ipc.store import (
    ObjectExists,
    ObjectHandle,
    ObjectMissing,
    ShmObjectStore,
    StoreError,
    StoreFull,
    StoreHandle,
    StoreTimeout,
    live_stores,
)
from dataplane.ipc.store.attachment import reopen
from dataplane.ipc.store.locks import try_lock
from tests.ipc.descriptors import free_descriptors, opened
from tests.ipc.released import until_released
from tests.ipc.store.conftest import WAIT_S
from tests.ipc.store.content import content, is_whole
from tests.threads import join

MakeStore = Callable[..., ShmObjectStore]


def attach(store: ShmObjectStore, **options: bool) -> ShmObjectStore:
    return ShmObjectStore.attach(store.handle(), timeout_s=WAIT_S, **options)


def test_another_attachment_reads_a_stored_object(store: ShmObjectStore) -> None:
    with attach(store) as reader:
        handle = store.put("a", content("a", 100))
        assert reader.is_cached("a")
        assert reader.get_cached("a") == handle
        assert is_whole("a", reader.get("a"))
        assert is_whole("a", reader.get(handle))
        assert not reader.is_cached("b")
        for missing in ("b", ObjectHandle(handle.store, handle.slot, handle.sequence + 1)):
            with pytest.raises(ObjectMissing):
                reader.get(missing)
        with pytest.raises(ObjectMissing, match="'b' is not in the store"):
            reader.get_cached("b")


def test_a_view_is_not_a_copy_and_cannot_be_written(store: ShmObjectStore) -> None:
    store.put("a", content("a", 100))
    first, second = store.get("a"), store.get("a")
    assert first.ctypes.data == second.ctypes.data
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        first.flags.writeable = True


def test_a_key_has_one_object(store: ShmObjectStore) -> None:
    store.put("a", b"1")
    with pytest.raises(ObjectExists, match="'a' already exists"):
        store.put("a", b"2")
    assert bytes(store.get("a")) == b"1"
    assert issubclass(ObjectExists, ValueError)


def test_the_object_that_was_not_used_longest_is_evicted(make_store: MakeStore) -> None:
    store = make_store(4 * 4096)
    value = np.zeros(4096 - 128, np.uint8)
    for key in "abcd":
        store.put(key, value)
    store.touch("a")
    store.get("b")
    store.put("e", value)
    store.put("f", value)
    assert [key for key in "abcdef" if store.is_cached(key)] == ["a", "b", "e", "f"]
    assert store.stats().evictions == 2


def test_the_table_is_a_bound_too(make_store: MakeStore) -> None:
    store = make_store(max_objects=3)
    for number in range(10):
        store.put(f"{number}", b"x")
    assert [number for number in range(10) if store.is_cached(f"{number}")] == [7, 8, 9]


def test_the_life_of_a_view_holds_its_object(make_store: MakeStore) -> None:
    store = make_store(4 * 4096)
    for key in "ab":
        store.put(key, content(key, 900))
    value = store.get("a")[10:20].reshape(2, 5)
    for number in range(10):
        store.put(f"{number}", content(f"{number}", 900))
    assert store.is_cached("a")
    assert not store.is_cached("b")
    assert (value.ravel() == content("a", 900)[10:20]).all()
    assert store.stats().leased_objects == 1
    del value
    for number in range(10, 20):
        store.put(f"{number}", content(f"{number}", 900))
    assert not store.is_cached("a")
    assert store.stats().leased_objects == 0


def test_a_store_full_of_read_objects_refuses(make_store: MakeStore) -> None:
    store = make_store(2 * 4096)
    value = []
    for key in "ab":
        store.put(key, np.zeros(4000, np.uint8))
        value.append(store.get(key))
    with pytest.raises(StoreFull, match="no room for 4"):
        store.put("c", np.zeros(4000, np.uint8))
    value.clear()
    store.put("c", np.zeros(4000, np.uint8))


def test_an_object_beyond_the_budget_is_refused(store: ShmObjectStore) -> None:
    with pytest.raises(ValueError, match="exceed the budget of 1048576 bytes"):
        store.put("a", np.zeros(1 << 20, np.uint8))


def test_views_outlive_clear_and_close(store: ShmObjectStore) -> None:
    reader = attach(store)
    store.put("a", content("a", 1000))
    value = reader.get("a")
    store.clear()
    reader.close()
    with pytest.raises(StoreError, match="closed"):
        reader.get("a")
    assert not store.is_cached("a")
    for number in range(200):
        store.put(f"{number}", content(f"{number}", 1000))
    assert is_whole("a", value)
    del value
    store.clear()
    assert store.stats().used_bytes == 0


def test_all_memory_comes_back(make_store: MakeStore) -> None:
    store = make_store(1 << 20)
    chance = np.random.default_rng(3)
    value: list[np.ndarray] = []
    for number in range(500):
        key = f"{number}"
        try:
            store.put(key, content(key, int(chance.integers(1, 12_000))))
        except StoreFull:
            value.clear()
            continue
        if chance.random() < 0.3:
            value.append(store.get(key))
        if chance.random() < 0.1:
            del value[: len(value) // 2]
        if number % 100 == 99:
            store.clear()
    value.clear()
    store.clear()
    assert store.stats().used_bytes == 0
    store.put("all", np.zeros((1 << 20) - 256, np.uint8))


def test_two_writers_share_a_store(store: ShmObjectStore) -> None:
    with attach(store, writer=True) as other:
        for number in range(200):
            one, two = (store, other) if number % 2 else (other, store)
            one.put(f"{number}", content(f"{number}", 500))
            assert is_whole(f"{number}", two.get(f"{number}"))
        with pytest.raises(ObjectExists):
            other.put("199", b"")
    with attach(store) as reader:
        for change in (lambda: reader.put("a", b""), lambda: reader.evict(1), reader.clear):
            with pytest.raises(StoreError, match="writer=True"):
                change()
    assert store.is_cached("199")


def test_threads_share_a_store(make_store: MakeStore) -> None:
    store = make_store(64 * 1024, max_objects=32)

    def work(thread: int) -> int:
        wrong = 0
        for number in range(150):
            key = f"{(number * 7 + thread) % 40}"
            with suppress(ObjectExists):
                store.put(key, content(key, 300))
            with suppress(ObjectMissing):
                wrong += not is_whole(key, store.get(key))
        return wrong

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4), timeout=240)) == [0] * 4
    assert store.stats().leased_objects == 0


def test_the_lock_has_a_deadline(store: ShmObjectStore) -> None:
    with ShmObjectStore.attach(store.handle(), writer=True, timeout_s=WAIT_S) as other:
        impatient = ShmObjectStore.attach(store.handle(), writer=True, timeout_s=0.05)
        holder = reopen(store.fileno())
        assert try_lock(holder, 0)
        with pytest.raises(StoreTimeout, match="held the store's lock until the deadline"):
            impatient.put("a", b"")
        waiting = threading.Thread(target=other.put, args=("b", b""))
        waiting.start()
        os.close(holder)
        join(waiting)
        impatient.put("a", b"")
        impatient.close()
    assert store.is_cached("a")
    assert store.is_cached("b")


def test_a_store_is_found_by_its_name(make_store: MakeStore) -> None:
    name = f"test-{os.getpid()}"
    store = make_store(name=name)
    store.put("a", b"1")
    with ShmObjectStore.attach(name) as reader:
        assert bytes(reader.get("a")) == b"1"
        assert [each.objects for each in live_stores() if each.name == name] == [1]
        make_store(name=name)
        with pytest.raises(StoreError, match="more than one"):
            ShmObjectStore.attach(name)
    with pytest.raises(StoreError, match="no process of uid"):
        ShmObjectStore.attach(f"{name}-x")
    with pytest.raises(ValueError, match="expected up to 128 letters"):
        make_store(name="a/b")


def test_a_handle_can_be_sent_and_outlives_its_process(store: ShmObjectStore) -> None:
    handle = msgspec.msgpack.decode(msgspec.msgpack.encode(store.handle()), type=StoreHandle)
    store.put("a", b"1")
    reader = ShmObjectStore.attach(pickle.loads(pickle.dumps(handle)))
    store.close()
    with ShmObjectStore.attach(handle, writer=True) as writer:  # found in another process's files
        writer.put("b", b"2")
        assert bytes(reader.get("b")) == b"2"
    reader.close()
    until_released(handle.identity)
    with pytest.raises(StoreError, match="no process"):
        ShmObjectStore.attach(handle)


def test_an_fd_can_be_sent(store: ShmObjectStore) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b"x"], [store.fileno()])
        _, [fd], _, _ = socket.recv_fds(theirs, 1, 1)
    with ShmObjectStore.attach(fd, writer=True) as other:
        os.close(fd)
        other.put("a", b"1")
    assert bytes(store.get("a")) == b"1"


def test_memory_is_private_and_cannot_be_resized(store: ShmObjectStore) -> None:
    status = os.fstat(store.fileno())
    assert status.st_mode & 0o777 == 0o600
    for size in (0, status.st_size + 4096):
        with pytest.raises(PermissionError):
            os.ftruncate(store.fileno(), size)


def test_rows_of_processes_are_a_bound(make_store: MakeStore) -> None:
    store = make_store(max_processes=3)
    others = [attach(store) for _ in range(2)]
    with pytest.raises(StoreError, match="all 3 rows"):
        attach(store)
    others.pop().close()
    others.append(attach(store))
    assert store.stats().dead_processes == 0
    for each in others:
        each.close()


def test_counters_can_be_read_from_outside(make_store: MakeStore) -> None:
    store = make_store(name="counted")
    reader = attach(store)
    store.put("a", np.zeros(1000, np.uint8))
    reader.get("a")
    with pytest.raises(ObjectMissing):
        reader.get("b")
    [stats] = [each for each in live_stores() if each.identity == store.handle().identity]
    assert (stats.objects, stats.hits, stats.misses, stats.puts) == (1, 1, 1, 1)
    assert stats.put_bytes is not None
    assert stats.put_bytes > 1000
    assert stats.put_bytes == stats.object_bytes == stats.used_bytes
    assert stats.pids == (os.getpid(), os.getpid())
    reader.close()
    store.clear()
    assert (store.stats().hits, store.stats().misses) == (1, 1)
    assert store.stats().pids == (os.getpid(),)


def test_a_forked_child_must_attach_again(store: ShmObjectStore) -> None:
    store.put("a", content("a", 100))
    value = store.get("a")
    pid = os.fork()
    if not pid:
        code = 1
        try:
            try:
                store.get("a")
            except StoreError:
                with ShmObjectStore.attach(store.handle()) as again:
                    code = 0 if is_whole("a", again.get("a")) else 3
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert is_whole("a", value)
    store.clear()
    assert store.stats().leased_objects == 1
    assert store.stats().dead_processes == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget_bytes": 0}, "budget_bytes: expected 1 to"),
        ({"budget_bytes": 1.5}, "budget_bytes: expected a whole number"),
        ({"max_objects": 0}, "max_objects: expected 1 to"),
        ({"max_processes": 1 << 20}, "max_processes: expected 1 to"),
        ({"readers": -1}, "readers: expected 0 to"),
        ({"unread_s": -1}, "unread_s: expected 0 or more seconds"),
        ({"timeout_s": float("nan")}, "timeout_s: expected 0 or more seconds"),
        ({"timeout_s": "5"}, "timeout_s: expected a number of seconds"),
        ({"checksums": "no"}, "checksums: expected bool"),
        ({"name": b"x"}, "name: expected str"),
    ],
)
def test_a_wrong_argument_is_named(make_store: MakeStore, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        make_store(**options)


def test_a_wait_may_have_no_end(make_store: MakeStore) -> None:
    store = make_store(timeout_s=float("inf"))
    store.put("a", b"1")
    assert store.is_cached("a")


def test_memory_without_an_object_store_is_refused() -> None:
    for wrong in (True, None, b"one", 1.5):
        with pytest.raises(TypeError, match="store: expected"):
            ShmObjectStore.attach(wrong)  # type: ignore[arg-type]
    for fd in (-1, 1 << 70):
        with pytest.raises(StoreError, match="expected a store's memory"):
            ShmObjectStore.attach(fd)


def test_a_process_without_descriptors_does_not_say_that_the_store_is_gone(make_store: MakeStore) -> None:
    name = f"exhausted-{os.getpid()}"
    store = make_store(name=name)
    ways: list[Any] = [name, store.handle(), store.fileno()]
    before = opened()
    for way in ways:
        with free_descriptors(0), pytest.raises(OSError, match="Too many open files"):
            ShmObjectStore.attach(way)
    assert opened() == before


def test_a_handle_is_kept_until_every_reader_has_read_it(make_store: MakeStore) -> None:
    store = make_store(4 * 4096, readers=2)
    value = np.zeros(4000 - 128, np.uint8)
    one = attach(store)
    two = attach(store)
    handles = [store.put(key, value) for key in "abcd"]
    with pytest.raises(StoreFull):
        store.put("e", value)
    one.get(handles[0])
    one.get(handles[0])
    with pytest.raises(StoreFull):  # twice by one reader is not once by both
        store.put("e", value)
    two.get(handles[0])
    again = store.get_cached("a")
    with pytest.raises(StoreFull):  # a second handle of the same object
        store.put("e", value)
    one.get(again)
    two.get(again)
    store.put("e", value)
    assert not store.is_cached("a")
    two.close()
    for handle in handles[1:]:
        one.get(handle)
    store.put("f", value)
    late = attach(store)
    store.put("g", value)
    late.close()
    one.close()


def age(store: ShmObjectStore, handle: ObjectHandle) -> None:
    """Let an object look as if it had been used a minute earlier."""
    store.attachment.tables.used[handle.slot] -= np.uint64(60_000_000_000)


@pytest.mark.parametrize("unread_s", [59.0, 3600.0, float("inf")])
def test_an_object_that_readers_never_read_is_evicted_after_its_time(make_store: MakeStore, unread_s: float) -> None:
    store = make_store(4 * 4096, readers=1, unread_s=unread_s)
    value = np.zeros(4000 - 128, np.uint8)
    with attach(store):
        handles = [store.put(key, value) for key in "abcd"]
        for handle in handles[1:]:
            age(store, handle)
        store.get_cached("b")  # another handle: the wait begins again
        held = store.get("c")
        if unread_s > 60:
            with pytest.raises(StoreFull):
                store.put("e", value)
            return
        store.put("e", value)
        assert [key for key in "abcde" if store.is_cached(key)] == ["a", "b", "c", "e"]
        with pytest.raises(StoreFull):
            store.put("f", value)
        del held


def test_a_handle_that_is_returned_is_not_waited_for(make_store: MakeStore) -> None:
    store = make_store(4096, readers=1)
    with attach(store) as reader:
        handle = store.put("a", b"1")
        again = store.get_cached("a")
        store.return_handle(again)
        assert not store.evict(1), "the first handle is still waited for"
        store.return_handle(handle)
        store.return_handle(handle)
        assert store.is_cached("a"), "it can be used again"
        reader.get(store.get_cached("a"))
        assert store.evict(1)
        store.put("b", b"2")
        store.return_handle(handle)  # of another object, which had the slot
        assert not store.evict(1)
        with pytest.raises(ValueError, match="expected store"):
            store.return_handle(ObjectHandle(1, handle.slot, handle.sequence))
        with pytest.raises(ValueError, match="expected a slot"):
            store.return_handle(ObjectHandle(handle.store, 64, 0))


def test_reads_of_a_handle_that_was_sent_twice_do_not_count_for_the_next_handle(make_store: MakeStore) -> None:
    store = make_store(4096, readers=2)
    with attach(store) as one, attach(store) as two:
        handle = store.put("a", b"1")
        for reader in (one, two, one, two):
            reader.get(handle)
        again = store.get_cached("a")
        assert not store.evict(1)
        one.get(again)
        assert not store.evict(1)
        two.get(again)
        assert store.evict(1)
