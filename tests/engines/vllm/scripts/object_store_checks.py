"""What vLLM's store promises, checked in its environment.

`object_store_checks.py vllm|larder` prints the results by the names of the checks.

Each check holds for vLLM's own classes, too, unless it is listed in OF_LARDER: those are what Larder's are for.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from vllm.distributed.device_communicators import shm_object_storage as module
from vllm.multimodal import cache as caches
from vllm.multimodal.cache import MultiModalCacheMissError, shm
from vllm.multimodal.inputs import (
    MultiModalBatchedField,
    MultiModalFeatureSpec,
    MultiModalFieldElem,
    MultiModalKwargsItem,
    PlaceholderRange,
)

from dataplane.ipc.store.layout import H_UNREAD_NS

CONTEXT = multiprocessing.get_context("spawn")
WAIT_S = 120.0


@contextmanager
def raises(kind: type[BaseException], text: str = "") -> Iterator[None]:
    found = ""
    try:
        yield
        found = "nothing"
    except kind as error:
        if text not in str(error):
            found = repr(error)
    assert not found, f"expected {kind.__name__}, got {found}"


@contextmanager
def ring(size: int) -> Iterator[Any]:
    buffer = module.SingleWriterShmRingBuffer(data_buffer_size=size, create=True)
    try:
        yield buffer
    finally:
        buffer.close()


@contextmanager
def storage(size: int = 1 << 20, most: int = 100_000, readers: int = 1) -> Iterator[tuple[Any, Any]]:
    """A writer, and a reader in this process."""
    with ring(size) as buffer:
        writer = module.SingleWriterShmObjectStorage(most, readers, buffer)
        handle = writer.handle()
        handle.reader_lock = CONTEXT.Lock()
        reader = module.SingleWriterShmObjectStorage.create_from_handle(handle)
        try:
            yield writer, reader
        finally:
            reader.close()


def read(writer: Any, reader: Any, key: str, handle: tuple[int, int] | None = None) -> Any:
    handle = writer.key_index[key] if handle is None else handle
    return reader.get(*handle, writer.get_signature(key), key)


def chunks_follow_each_other_and_fill_the_ring() -> None:
    with ring(200) as buffer:
        assert buffer.allocate_buf(100) == (0, 0)
        assert buffer.allocate_buf(200 - 100 - 2 * buffer.MD_SIZE) == (100 + buffer.MD_SIZE, 1)
        with raises(MemoryError):
            buffer.allocate_buf(1)
        assert buffer.metadata == {0: 0, 1: 108}


def chunks_keep_their_bytes() -> None:
    with ring(4096) as buffer:
        handles = [buffer.allocate_buf(10 + number) for number in range(20)]
        for address, number in handles:
            with buffer.access_buf(address) as (data, (found, size)):
                assert (found, size, len(data)) == (number, 10 + number + buffer.MD_SIZE, 10 + number)
                data[:] = bytes([number]) * len(data)
        for address, number in handles:
            with buffer.access_buf(address) as (data, _):
                assert bytes(data) == bytes([number]) * (10 + number)


def a_ring_is_freed_from_its_oldest_chunk() -> None:
    with ring(400) as buffer:
        for _ in range(4):
            buffer.allocate_buf(80)
        assert list(buffer.free_buf(lambda number, data: number < 2)) == [0, 1]
        assert sorted(buffer.metadata) == [2, 3]
        assert list(buffer.free_buf(lambda number, data: number != 2)) == []
        assert list(buffer.free_buf(lambda number, data: True, nbytes=1)) == [2]
        assert list(buffer.free_buf(lambda number, data: True)) == [3]
        assert (buffer.data_buffer_start, buffer.data_buffer_end) == (0, 0)
        assert buffer.allocate_buf(400 - buffer.MD_SIZE) == (0, 4)


def a_ring_wraps_around() -> None:
    with ring(300) as buffer:
        buffer.allocate_buf(100)
        buffer.allocate_buf(100)
        buffer.free_buf(lambda number, data: number == 0)
        address, number = buffer.allocate_buf(90)
        assert (address % 300, number) == (0, 2)
        with raises(MemoryError):
            buffer.allocate_buf(90)
        with buffer.access_buf(address) as (data, (found, _)):
            assert (found, len(data)) == (2, 90)


def a_cleared_ring_continues_its_ids() -> None:
    with ring(300) as buffer:
        buffer.allocate_buf(10)
        buffer.clear()
        assert buffer.metadata == {}
        assert buffer.allocate_buf(10) == (0, 1)


def a_ring_is_opened_by_its_name() -> None:
    with ring(300) as buffer:
        address, number = buffer.allocate_buf(5)
        with buffer.access_buf(address) as (data, _):
            data[:] = b"12345"
        other = module.SingleWriterShmRingBuffer(*buffer.handle())
        assert not other.is_writer
        assert buffer.is_writer
        with other.access_buf(address) as (data, (found, _)):
            assert (bytes(data), found) == (b"12345", number)
        other.close()


def values_come_back() -> None:
    with storage() as (writer, reader):
        values: dict[str, Any] = {
            "tensor": torch.arange(1000).reshape(10, 100),
            "half": torch.ones(7, dtype=torch.bfloat16),
            "text": "hello",
            "nested": {"a": [1, (2, None)], "b": b"x" * 1000},
            "item": item(torch.arange(64.0)),
        }
        for key, value in values.items():
            writer.put(key, value)
        for key, value in values.items():
            found = read(writer, reader, key)
            if key == "item":
                assert torch.equal(found["pixels"].data, value["pixels"].data)
            else:
                assert torch.equal(found, value) if isinstance(value, torch.Tensor) else found == value
        with raises(ValueError, "already exists in the storage"):
            writer.put("text", "again")
        with raises(ValueError, "exceeds max object size"):
            writer.put("large", b"x" * 100_000)


def the_writer_finds_its_keys() -> None:
    with storage() as (writer, _):
        assert not writer.is_cached("a")
        handle = writer.put("a", "1")
        assert writer.is_cached("a")
        assert writer.get_cached("a") == handle == writer.key_index["a"]
        assert writer.id_index[handle[1]] == "a"
        with raises(KeyError):
            writer.get_cached("b")
        assert writer.get(*handle) == "1"
        assert (writer.is_writer, writer.n_readers, writer.max_object_size) == (True, 1, 100_000)


def clear_removes_all_and_ids_go_on() -> None:
    with storage() as (writer, reader):
        handles = {}
        for number in range(5):
            key = f"k{number}"
            handles[key] = (*writer.put(key, number), writer.get_signature(key))
        writer.clear()
        assert (writer.key_index, writer.id_index, writer.ring_buffer.metadata) == ({}, {}, {})
        assert writer.put("new", 1) == (0, 5)
        with raises(ValueError, "has been modified or is invalid"):
            reader.get(*handles["k0"], "k0")


def a_cleared_object_is_read_until_the_next_put() -> None:
    with storage() as (writer, reader):
        handle = (*writer.put("a", "1"), writer.get_signature("a"))
        writer.clear()
        assert not writer.is_cached("a")
        assert reader.get(*handle, "a") == "1"
        writer.put("a", "2")
        with raises(ValueError, "has been modified or is invalid"):
            reader.get(*handle, "a")


def forged_handles_are_refused() -> None:
    with storage() as (writer, reader):
        handle = writer.put("a", "1")
        signature = writer.get_signature("a")
        assert len(signature) == 32
        assert all(type(byte) is int for byte in signature)
        reader.verify_signature("a", *handle, signature)
        reader.touch("a", *handle, signature)
        wrong = [signature[0] ^ 1, *signature[1:]]
        for key, address, given in [
            ("b", handle[0], signature),
            ("a", handle[0] + 64, signature),
            ("a", handle[0], wrong),
            ("a", handle[0], None),
            (None, handle[0], signature),
            ("a", handle[0], signature[:31]),
            ("a", handle[0], [*signature[:31], 300]),
            ("a", handle[0], "text"),
        ]:
            with raises(ValueError, "SHM handle signature"):
                reader.get(address, handle[1], given, key)
            with raises(ValueError, "SHM handle signature"):
                reader.touch(key, address, handle[1], given)
        with raises(ValueError, "SHM handle signature"):
            writer.verify_signature("a", handle[0], handle[1] + 1, signature)
        assert reader.get(*handle, signature, "a") == "1"


def a_reader_needs_a_lock() -> None:
    with storage() as (writer, _), raises(ValueError, "Lock must be provided"):
        module.SingleWriterShmObjectStorage.create_from_handle(writer.handle())


def unread_objects_are_kept() -> None:
    with storage(size=20_000, most=5_000) as (writer, reader):
        stored = 0
        with raises(MemoryError):
            for number in range(10):
                writer.put(f"{number}", b"x" * 4_000)
                stored += 1
        assert 3 <= stored <= 4
        for number in range(stored):
            assert read(writer, reader, f"{number}") == b"x" * 4_000
        writer.put("next", b"y" * 4_000)
        assert not writer.is_cached("0")
        assert read(writer, reader, "next") == b"y" * 4_000


def every_handle_is_waited_for() -> None:
    with storage(size=20_000, most=5_000) as (writer, reader):
        first = writer.put("a", b"x" * 4_000)
        assert writer.get_cached("a") == first
        read(writer, reader, "a")
        writer.free_unused()
        assert writer.is_cached("a")
        read(writer, reader, "a")
        writer.free_unused()
        assert not writer.is_cached("a")
        assert writer.ring_buffer.metadata == {}


def a_touched_object_is_kept() -> None:
    with storage(size=20_000, most=5_000) as (writer, reader):
        writer.put("a", b"x" * 4_000)
        writer.touch("a")
        writer.touch("never")
        read(writer, reader, "a")
        writer.free_unused()
        assert writer.is_cached("a")
        writer.release_touches()
        writer.free_unused()
        assert not writer.is_cached("a")


def vllms_caches_work_across_processes() -> None:
    config = config_of(readers=2)
    sender = shm.ShmObjectStoreSenderCache(config)
    lock = CONTEXT.Lock()
    pipes, processes = [], []
    for _ in range(2):
        ours, theirs = CONTEXT.Pipe()
        processes.append(CONTEXT.Process(target=receive, args=(sys.argv[1], lock, theirs)))
        processes[-1].start()
        pipes.append(ours)
    for pipe in pipes:
        assert pipe.poll(WAIT_S)
        assert pipe.recv() == "ready"
    for number in range(30):  # 1 MB each: the store of 16 MB is used again
        pixels = torch.full((250_000,), float(number % 20))
        name = f"image-{number % 20}"
        sent, updates = sender.get_and_update_item((item(pixels), ["update"]), name)
        assert "address" in sent, number
        assert updates == ["update"]
        for pipe in pipes:
            pipe.send((name, sent))
        for pipe in pipes:
            assert pipe.poll(WAIT_S)
            assert pipe.recv() == (250_000, float(number % 20))
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join(WAIT_S)
        assert process.exitcode == 0
    assert sender.make_stats().total == 30
    sender.close()


def a_dead_reader_blocks_nothing() -> None:
    with storage(size=20_000, most=5_000, readers=2) as (writer, reader):
        handle = writer.handle()
        handle.reader_lock = CONTEXT.Lock()
        ours, theirs = CONTEXT.Pipe()
        process = CONTEXT.Process(target=wait, args=(sys.argv[1], handle, theirs))
        process.start()
        assert ours.poll(WAIT_S)
        process.kill()
        process.join(WAIT_S)
        for number in range(40):
            writer.put(f"{number}", b"x" * 4_000)
            assert read(writer, reader, f"{number}") == b"x" * 4_000


def names_in_dev_shm() -> set[str]:
    """Names of memory that this process maps."""
    with open("/proc/self/maps") as maps:
        paths = {line.split(maxsplit=5)[-1].strip() for line in maps}
    return {path for path in paths if path.startswith("/dev/shm/") and not path.endswith(" (deleted)")}


def no_name_is_left_in_dev_shm() -> None:
    before = names_in_dev_shm()
    with storage() as (writer, _):
        writer.put("a", "1")
        assert names_in_dev_shm() == before


def inputs_of_refused_requests_are_freed() -> None:
    with storage(size=20_000, most=5_000) as (writer, reader):
        sent = writer.put("sent", b"s" * 4_000)
        arrived = pickle.loads(pickle.dumps(writer.get_signature("sent")))
        encoded = writer.put("encoded", b"e" * 4_000)
        also_arrived = [*writer.get_signature("encoded")]
        for number in range(40):
            writer.put(f"{number}", b"x" * 4_000)
            writer.get_signature(f"{number}")
            writer.get_cached(f"{number}")
            writer.get_signature(f"{number}")
        assert reader.get(*sent, arrived, "sent") == b"s" * 4_000
        assert reader.get(*encoded, also_arrived, "encoded") == b"e" * 4_000


def inputs_of_waiting_requests_are_kept_and_those_of_aborted_ones_freed() -> None:
    config = config_of(readers=1)
    sender = shm.ShmObjectStoreSenderCache(config)
    core = caches.engine_receiver_cache_from_config(config)
    worker = shm.ShmObjectStoreReceiverCache(config, CONTEXT.Lock())
    storage = sender._shm_cache

    def send(name: str) -> Any:
        """Return a feature of a request as it arrives in the engine core."""
        sent, _ = sender.get_and_update_item((item(torch.full((250_000,), float(len(name)))), []), name)
        data = pickle.loads(pickle.dumps(sent))
        return MultiModalFeatureSpec(data, "image", name, PlaceholderRange(0, 1), mm_hash=name)

    waiting, in_process = (core.get_and_update_features([send(name)]) for name in ("waiting", "in process"))
    aborted = core.get_and_update_features([send("aborted")])
    lost = send("lost")
    assert storage._store.stats().leased_objects == 3
    del aborted
    storage._attachment.tables.header[H_UNREAD_NS] = 1  # as if all of them had been stored long ago
    for number in range(40):  # three times what the store has room for
        assert "address" in send(f"{number}").data
    assert [sender.is_cached_item(name) for name in ("waiting", "in process", "aborted", "lost")] == [
        True, True, False, False
    ]  # fmt: skip
    with raises(MultiModalCacheMissError, "lost"):
        core.get_and_update_features([lost])
    scheduled = pickle.loads(pickle.dumps(waiting))
    assert type(scheduled[0].data) is MultiModalKwargsItem
    for features, size in ((scheduled, 7), (in_process, 10)):
        (read,) = worker.get_and_update_features(features)
        assert float(read.data["pixels"].data.max()) == size
    assert storage._store.stats().leased_objects == 0
    core.clear_cache()
    sender.close()


def receive(kind: str, lock: Any, pipe: Any) -> None:
    use(kind)
    config = config_of(readers=2)
    receiver = shm.ShmObjectStoreReceiverCache(config, lock)
    pipe.send("ready")
    while (order := pipe.recv()) is not None:
        name, sent = order
        receiver.touch_receiver_cache_item(name, sent)
        pixels = receiver.get_and_update_item(sent, name)["pixels"].data
        pipe.send((len(pixels), float(pixels.max())))


def wait(kind: str, handle: Any, pipe: Any) -> None:
    use(kind)
    reader = module.SingleWriterShmObjectStorage.create_from_handle(handle)
    pipe.send("ready")
    pipe.poll(WAIT_S)
    reader.close()


def config_of(readers: int) -> Any:
    """Return a configuration of vLLM with a cache of 16 MiB."""
    media = SimpleNamespace(
        mm_processor_cache_gb=1 / 64, mm_shm_cache_max_object_size_mb=4, mm_processor_cache_type="shm"
    )
    return SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=readers, _api_process_count=1, data_parallel_size=1),
        model_config=SimpleNamespace(get_multimodal_config=lambda: media, supports_multimodal_inputs=True),
    )


def item(pixels: torch.Tensor) -> Any:
    return MultiModalKwargsItem({"pixels": MultiModalFieldElem(data=pixels, field=MultiModalBatchedField())})


def use(kind: str) -> None:
    if kind == "larder":
        from dataplane.engines.vllm.shim import register

        register()


CHECKS: list[Callable[[], None]] = [
    chunks_follow_each_other_and_fill_the_ring,
    chunks_keep_their_bytes,
    a_ring_is_freed_from_its_oldest_chunk,
    a_ring_wraps_around,
    a_cleared_ring_continues_its_ids,
    a_ring_is_opened_by_its_name,
    values_come_back,
    the_writer_finds_its_keys,
    clear_removes_all_and_ids_go_on,
    a_cleared_object_is_read_until_the_next_put,
    forged_handles_are_refused,
    a_reader_needs_a_lock,
    unread_objects_are_kept,
    every_handle_is_waited_for,
    a_touched_object_is_kept,
    vllms_caches_work_across_processes,
]
OF_LARDER = [
    a_dead_reader_blocks_nothing,
    no_name_is_left_in_dev_shm,
    inputs_of_refused_requests_are_freed,
    inputs_of_waiting_requests_are_kept_and_those_of_aborted_ones_freed,
]


def main(kind: str) -> None:
    use(kind)
    origin = module.SingleWriterShmObjectStorage.__module__
    assert origin.startswith("dataplane" if kind == "larder" else "vllm"), origin
    done = {}
    for check in CHECKS + OF_LARDER:
        try:
            check()
            done[check.__name__] = "ok"
        except Exception as error:  # noqa: BLE001 each check is reported
            import traceback

            last = traceback.extract_tb(error.__traceback__)[-1]
            done[check.__name__] = f"{type(error).__name__}: {error} (line {last.lineno})"
    print(json.dumps(done))


if __name__ == "__main__":
    main(sys.argv[1])
