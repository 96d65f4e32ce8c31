"""Engines that let the node copy: what is copied where, and what is refused instead of read or written wrongly."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest

from dataplane.copies.copying import CopyFailed
from dataplane.devices.paged import Planes, planes_of
from dataplane.gateways.lmcache.wire.ipc import CpuShm, MemoryUnsupported, Metadata, decode
from dataplane.gateways.lmcache.wire.messages import Group, Hints
from dataplane.gateways.lmcache.workers import copies as copies_module
from dataplane.gateways.lmcache.workers.copies import MAX_REGISTERED_PLANES, CpuShmCopier
from dataplane.gateways.lmcache.workers.registry import Registry
from dataplane.gateways.lmcache.workers.transfers import Transfers
from tests.lmcache.client import Client, key, lookup_key, packed, prompt
from tests.lmcache.engine_memory import EngineMemory
from tests.lmcache.gateway import Gateway

SHAPES = {
    "keys and values first": ((2, 64, 16, 2, 8), 16),
    "blocks first": ((64, 2, 16, 2, 8), 16),
    "one plane": ((64, 16, 24), 16),
    "keys and values in one row": ((64, 2, 16, 16), 16),
    "a block is a chunk": ((2, 8, 256, 1, 4), 256),
    "a plane for each of six dimensions": ((2, 64, 2, 1, 16, 8), 16),
}
EVENT = b"stub_ipc_handle"


@pytest.fixture
def engine() -> Iterator[EngineMemory]:
    with EngineMemory() as memory:
        yield memory


def copier(memory: EngineMemory, tokens: int = 16, **hints: Any) -> CpuShmCopier:
    described = decode([packed(memory.describe(each)) for each in range(memory.layers)])
    group = Group(layer_indices=list(range(memory.layers)), tokens_per_block=tokens)
    return CpuShmCopier(described, [group], Hints(**hints), "vllm")


class TestCopying:
    @pytest.mark.parametrize(("shape", "tokens"), SHAPES.values(), ids=SHAPES.keys())
    def test_a_chunk_comes_back_into_other_blocks(self, shape: tuple[int, ...], tokens: int) -> None:
        with EngineMemory(3, shape) as memory:
            memory.fill(1)
            copies = copier(memory, tokens)
            count = 256 // tokens
            old = [5, 3, 4, *range(20, 20 + count)][:count]
            new = [40 + 16 - 1 - at if count > 1 else 6 for at in range(count)]
            expected = memory.blocks(old)
            buffer = memoryview(bytearray(copies.chunk_bytes))
            assert copies.chunk_bytes == expected.nbytes
            assert copies.chunks([old], 1) == 1
            copies.gather([old], 0, buffer)
            others = [each for each in range(shape[1] if shape[0] == 2 else shape[0]) if each not in new]
            untouched = memory.blocks(others)
            copies.scatter([new], 0, buffer, 0)
            assert np.array_equal(memory.blocks(new), expected)
            assert np.array_equal(memory.blocks(others), untouched)
            copies.close()

    def test_layers_may_be_packed_block_by_block(self) -> None:
        # All layers of a block lie together: the stride of a block is that of all of them.
        with EngineMemory(1, (64, 4, 16, 24)) as memory:
            memory.fill(2)
            described = [
                {
                    **memory.describe(0),
                    "metadata": {
                        "dtype": "float16",
                        "shape": [64, 16, 24],
                        "stride": [4 * 16 * 24, 24, 1],
                        "storage_offset": layer * 16 * 24,
                        "device_uuid": "cpu",
                    },
                }
                for layer in range(4)
            ]
            copies = CpuShmCopier(decode([packed(each) for each in described]), [], None, "vllm")
            blocks = list(range(7, 23))
            buffer = memoryview(bytearray(copies.chunk_bytes))
            copies.gather([blocks], 0, buffer)
            expected = memory.layer(0)[7:23].copy()
            assert np.array_equal(
                np.frombuffer(buffer, np.uint16).reshape(4, 16, 16, 24), expected.transpose(1, 0, 2, 3)
            )
            memory.items[:] = 0
            copies.scatter([blocks], 0, buffer, 0)
            assert np.array_equal(memory.layer(0)[7:23], expected)
            assert memory.layer(0)[:7].sum() == memory.layer(0)[23:].sum() == 0
            copies.close()

    def test_groups_have_their_own_blocks(self) -> None:
        with EngineMemory(4) as memory:
            memory.fill(3)
            described = decode([packed(memory.describe(each)) for each in range(4)])
            groups = [
                Group(layer_indices=[0, 2], tokens_per_block=16),
                Group(layer_indices=[3, 1], tokens_per_block=32),
            ]
            copies = CpuShmCopier(described, groups, None, "vllm")
            first, second = list(range(1, 17)), list(range(30, 38))
            buffer = memoryview(bytearray(copies.chunk_bytes))
            copies.gather([first, second], 0, buffer)
            expected = [memory.blocks(first)[[0, 2]], memory.blocks(second)[[1, 3]]]
            memory.items[:] = 0
            copies.scatter([first, second], 0, buffer, 0)
            assert np.array_equal(memory.blocks(first)[[0, 2]], expected[0])
            assert np.array_equal(memory.blocks(second)[[1, 3]], expected[1])
            copies.close()

    @pytest.mark.parametrize(
        ("skip", "unchanged"), [(0, 0), (1, 0), (15, 0), (16, 1), (100, 6), (256, 16), (300, 18), (10**9, 32)]
    )
    def test_blocks_that_others_read_are_left_alone(self, engine: EngineMemory, skip: int, unchanged: int) -> None:
        engine.fill(4)
        copies = copier(engine)
        blocks = list(range(32))
        buffers = [memoryview(bytearray(copies.chunk_bytes)) for _ in range(2)]
        for chunk, buffer in enumerate(buffers):
            copies.gather([blocks], chunk, buffer)
        expected = engine.blocks(blocks)
        engine.items[:] = 7
        for chunk, buffer in enumerate(buffers):
            copies.scatter([blocks], chunk, buffer, skip)
        after = engine.blocks(blocks)
        assert (after[:, :, :unchanged] == 7).all()
        assert np.array_equal(after[:, :, unchanged:], expected[:, :, unchanged:])
        copies.close()

    def test_the_first_chunk_without_blocks_ends_a_store(self, engine: EngineMemory) -> None:
        copies = copier(engine)
        assert copies.chunks([[*range(1, 17), *[0] * 16, *range(1, 17)]], 3) == 1
        assert copies.chunks([[0] * 16], 1) == 0
        assert copies.chunks([[*[0] * 15, 5]], 1) == 1
        copies.close()

    @pytest.mark.parametrize(
        "blocks", [[], [[]], [[1] * 15], [[1] * 16, [1] * 16], [[-1] * 16], [[64] * 16], [[2**62] * 16]], ids=str
    )
    def test_blocks_that_cannot_be_are_refused(self, engine: EngineMemory, blocks: list[list[int]]) -> None:
        copies = copier(engine)
        with pytest.raises(CopyFailed):
            copies.chunks(blocks, 1)
        copies.close()

    def test_memory_that_is_cut_short_is_a_copy_that_fails(self, engine: EngineMemory) -> None:
        copies = copier(engine)
        os.truncate(engine.path, 4096)
        buffer = memoryview(bytearray(copies.chunk_bytes))
        with pytest.raises(CopyFailed, match="cut short"):
            copies.gather([list(range(32, 48))], 0, buffer)
        with pytest.raises(CopyFailed, match="cut short"):
            copies.scatter([list(range(32, 48))], 0, buffer, 0)
        assert engine.path.stat().st_size == 4096
        copies.close()

    def test_copiers_leave_no_descriptors(self, engine: EngineMemory) -> None:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            copier(engine).close()
        with pytest.raises(MemoryUnsupported):
            copier(engine, tokens=7)
        assert len(os.listdir("/proc/self/fd")) == before

    def test_equal_forms_have_equal_layouts_and_others_do_not(self) -> None:
        layouts = set()
        for shape, tokens in SHAPES.values():
            with EngineMemory(2, shape) as one, EngineMemory(2, shape) as two, EngineMemory(3, shape) as three:
                copiers = [copier(each, tokens) for each in (one, two, three)]
                first, same, other = (each.layout for each in copiers)
                assert first == same != other
                layouts |= {first, other}
                for each in copiers:
                    each.close()
        assert len(layouts) == 2 * len(SHAPES)


class TestDescriptions:
    @pytest.mark.parametrize("kind", ["cuda", "cuda_raw", "cuda_vmm", "musa", "npu"])
    def test_memory_of_a_device_is_refused_by_name(self, kind: str) -> None:
        with pytest.raises(MemoryUnsupported, match=kind):
            decode([packed({"type": kind, "version": 1, "metadata": {}, "handle": [b"x"]})])

    def test_a_pickle_is_refused_unread(self) -> None:
        with pytest.raises(MemoryUnsupported, match="never unpickles"):
            decode([b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x05abort\x93\x94)R\x94."])

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"\xc0",
            packed([]),
            packed({}),
            packed({"type": "floppy"}),
            packed({"type": "cpu_shm", "version": 2}),
            packed({"type": "cpu_shm", "version": 1, "shm_name": "/lmcache_kv_x", "nbytes": 1}),
            b"\xd9" * 50,
        ],
        ids=range(8),
    )
    def test_an_invalid_description_is_refused(self, body: bytes) -> None:
        with pytest.raises(MemoryUnsupported):
            decode([body])

    @pytest.mark.parametrize(
        "changes",
        [
            {"nbytes": 100},
            {"nbytes": -1},
            {"nbytes": 2**63},
            {"metadata": {"dtype": "float7"}},
            {"metadata": {"shape": []}},
            {"metadata": {"shape": [1] * 9, "stride": [1] * 9}},
            {"metadata": {"stride": [1]}},
            {"metadata": {"shape": [2, -1, 16, 2, 8]}},
            {"metadata": {"shape": [2, 64, 16, 0, 8]}},
            {"metadata": {"shape": [2, 64, 16, 2, 0], "storage_offset": 2**40}},
            {"metadata": {"shape": [2, 0, 16, 2, 8], "storage_offset": 2**40}},
            {"metadata": {"storage_offset": -5}},
            {"metadata": {"storage_offset": 2**60}},
            {"metadata": {"stride": [2**60] * 5}},
        ],
        ids=str,
    )
    def test_a_tensor_that_leaves_its_memory_is_refused(self, engine: EngineMemory, changes: dict[str, Any]) -> None:
        with pytest.raises(MemoryUnsupported):
            decode([packed(engine.describe(0, **changes))])

    @pytest.mark.parametrize(
        "name",
        [
            "/lmcache_l1_pool_x",
            "/etc/passwd",
            "../etc/passwd",
            "lmcache_kv_/../x",
            "",
            "psm_x",
            "lmcache_kv_gone",
            "lmcache_kv_\0",
        ],
    )
    def test_segments_of_other_programs_are_not_touched(self, engine: EngineMemory, name: str) -> None:
        described = decode([packed(engine.describe(0, shm_name=name))])
        with pytest.raises(MemoryUnsupported):
            CpuShmCopier(described, [], None, "vllm")

    def test_a_segment_smaller_than_its_declared_size_is_refused(self, engine: EngineMemory) -> None:
        os.truncate(engine.path, 100)
        with pytest.raises(MemoryUnsupported, match="has 100 bytes"):
            copier(engine)

    @pytest.mark.parametrize("kind", ["symlink", "folder", "fifo"])
    def test_an_invalid_file_is_refused(self, engine: EngineMemory, kind: str) -> None:
        engine.path.unlink()
        if kind == "symlink":
            engine.path.symlink_to("/etc/passwd")
        elif kind == "folder":
            engine.path.mkdir()
        else:
            os.mkfifo(engine.path)
        try:
            with pytest.raises(MemoryUnsupported):
                copier(engine)
        finally:
            if kind == "folder":
                engine.path.rmdir()

    @pytest.mark.parametrize("engine_type", ["sglang", "trtllm", "atom", "", "x" * 100])
    def test_engines_that_are_not_known_are_refused(self, engine: EngineMemory, engine_type: str) -> None:
        with pytest.raises(MemoryUnsupported, match="engine type"):
            CpuShmCopier(decode([packed(engine.describe(0))]), [], None, engine_type)

    @pytest.mark.parametrize(
        "group",
        [
            {"layer_indices": []},
            {"layer_indices": [0, 0]},
            {"layer_indices": [5]},
            {"layer_indices": [-1]},
            {"layer_indices": [0], "tokens_per_block": 7},
            {"layer_indices": [0], "tokens_per_block": -16},
            {"layer_indices": [0], "tokens_per_block": 512},
        ],
        ids=str,
    )
    def test_groups_that_cannot_be_are_refused(self, engine: EngineMemory, group: dict[str, Any]) -> None:
        described = decode([packed(engine.describe(each)) for each in range(2)])
        with pytest.raises(MemoryUnsupported):
            CpuShmCopier(described, [Group(**group)], None, "vllm")

    @pytest.mark.parametrize("others", [[1], [0, 1], []], ids=str)
    def test_groups_share_no_layer_and_have_some(self, engine: EngineMemory, others: list[int]) -> None:
        described = decode([packed(engine.describe(layer)) for layer in range(2)])
        groups = [Group(layer_indices=[0, 1], tokens_per_block=16), Group(layer_indices=others, tokens_per_block=16)]
        with pytest.raises(MemoryUnsupported, match="each once"):
            CpuShmCopier(described, groups, None, "vllm")

    def test_the_planes_of_all_tensors_are_bounded_before_they_are_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = 0

        def counted(*arguments: Any) -> Planes:
            nonlocal made
            planes = planes_of(*arguments)
            made += len(planes.starts)
            return planes

        monkeypatch.setattr(copies_module, "planes_of", counted)
        # 4096 planes each: a block is 64 x 64 pieces that are apart.
        tensor = Metadata("float16", (4, 64, 64, 1), (1 << 13, 1 << 7, 2, 1), 0)
        groups = [Group(layer_indices=list(range(half, half + 32)), tokens_per_block=64) for half in (0, 32)]
        with pytest.raises(MemoryUnsupported, match="pieces"):
            CpuShmCopier([CpuShm("/lmcache_kv_x", 1 << 20, tensor)] * 64, groups, None, "vllm")
        assert made <= MAX_REGISTERED_PLANES + 4096


class TestOverTheWire:
    def test_stored_chunks_are_retrieved_into_other_blocks(
        self, client: Client, gateway: Gateway, engine: EngineMemory
    ) -> None:
        engine.fill(5)
        client.ask("register_kv_cache", *engine.registration())
        old, new = list(range(1, 33)), list(range(32, 64))
        expected = engine.blocks(old)
        assert client.ask("store", key(prompt(2)), 7, [old], EVENT) == [b"", True]
        engine.items[:] = 0
        assert client.lookup(prompt(2)) == 2
        assert client.ask("retrieve", key(prompt(2)), 7, [new], EVENT, 0) == [b"", True]
        assert np.array_equal(engine.blocks(new), expected)
        assert gateway.leased() == 0

    def test_a_retrieve_of_missing_chunks_is_refused_and_copies_nothing(
        self, client: Client, gateway: Gateway, engine: EngineMemory
    ) -> None:
        client.ask("register_kv_cache", *engine.registration())
        assert client.ask("store", key(prompt(1)), 7, [list(range(1, 17))], EVENT) == [b"", True]
        assert client.ask("retrieve", key(prompt(2)), 7, [list(range(32))], EVENT) == [b"", False]
        assert gateway.leased() == 0

    def test_a_copy_that_fails_publishes_nothing(self, client: Client, gateway: Gateway, engine: EngineMemory) -> None:
        client.ask("register_kv_cache", *engine.registration())
        os.truncate(engine.path, 4096)
        assert client.ask("store", key(prompt(1)), 7, [list(range(40, 56))], EVENT) == [b"", False]
        assert client.lookup(prompt(1)) == 0
        assert gateway.bench.pool.used_bytes == 0

    @pytest.mark.parametrize(
        "changes",
        [
            {"wrappers": []},
            {"wrappers": [5]},
            pytest.param({"wrappers": [msgspec.msgpack.Ext(2, b"x")]}, id="{'wrappers': [Ext(2)]}"),
            pytest.param({"wrappers": [msgspec.msgpack.Ext(1, b"\x80\x04x")]}, id="{'wrappers': [Ext(1)]}"),
            {"world_size": 0},
            {"engine_type": "sglang"},
            {"groups": [5]},
            {"hints": 5},
        ],
        ids=str,
    )
    def test_a_registration_that_cannot_be_is_answered_and_its_stores_fail(
        self, client: Client, engine: EngineMemory, changes: dict[str, Any]
    ) -> None:
        assert client.call(1, *map(packed, engine.registration(**changes))) == []
        assert client.ask("store", key(prompt(1)), 7, [list(range(16))], EVENT) == [b"", False]
        assert client.ask("retrieve", key(prompt(1)), 7, [list(range(16))], EVENT, 0) == [b"", False]

    def test_a_worker_that_ends_while_its_copy_runs_publishes_nothing(
        self, client: Client, gateway: Gateway, engine: EngineMemory
    ) -> None:
        client.ask("register_kv_cache", *engine.registration())
        frames = [packed(each) for each in (key(prompt(2)), 7, [list(range(1, 33))], EVENT)]
        client.send([b"\x01", b"\x06", *frames])
        client.send([b"\x02", b"\x02", packed(7)])
        answers = sorted(client.receive() for _ in range(2))
        assert answers[1] == [b"\x02", b"\x02"]
        assert answers[0] in ([b"\x01", b"\x06", packed([b"", False])], [b"\x01", b"\x06", packed([b"", True])])
        if answers[0][2] == packed([b"", False]):
            assert gateway.bench.pool.used_bytes == 0

    def test_a_worker_that_unregisters_while_its_copy_runs_leaves_no_engine(
        self, client: Client, gateway: Gateway, engine: EngineMemory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client.ask("register_kv_cache", *engine.registration())
        (instance,) = gateway.server.registry
        unregistered, gather = threading.Event(), CpuShmCopier.gather

        def slow(self: CpuShmCopier, *arguments: Any) -> None:
            assert unregistered.wait(60)
            gather(self, *arguments)

        monkeypatch.setattr(CpuShmCopier, "gather", slow)
        frames = [packed(each) for each in (key(prompt(2)), 7, [list(range(1, 33))], EVENT)]
        client.send([b"\x01", b"\x06", *frames])
        gateway.until(lambda: instance.copying, "the copy waits")
        client.send([b"\x02", b"\x02", packed(7)])
        assert client.receive() == [b"\x02", b"\x02"]
        assert instance.client in gateway.bench.node.engines
        unregistered.set()
        assert client.receive() == [b"\x01", b"\x06", packed([b"", False])]
        assert instance.client not in gateway.bench.node.engines
        assert gateway.bench.pool.used_bytes == 0

    def test_a_worker_that_copies_by_itself_is_not_copied_for(self, client: Client) -> None:
        client.register()
        assert client.ask("store", key(prompt(1)), 7, [list(range(16))], EVENT) == [b"", False]

    def test_hidden_states_are_refused(self, client: Client, engine: EngineMemory) -> None:
        assert client.call(3, *map(packed, engine.registration())) == []
        assert client.call(4, packed(7)) == []
        assert client.ask("store_q", key(prompt(1)), 7, [[1]], EVENT) == [b"", False]

    def test_both_ways_of_copying_never_share_chunks(self, client: Client, engine: EngineMemory) -> None:
        client.register(1)
        client.ask("register_kv_cache", *engine.registration(2))
        client.store(prompt(1), instance=1)
        assert client.ask("lookup", lookup_key(prompt(1)), 1) is not None
        assert client.status("r") == 0

    def test_its_registration_outlives_a_restart(self, client: Client, gateway: Gateway, engine: EngineMemory) -> None:
        engine.fill(6)
        client.ask("register_kv_cache", *engine.registration())
        expected = engine.blocks(list(range(1, 17)))
        assert client.ask("store", key(prompt(1)), 7, [list(range(1, 17))], EVENT) == [b"", True]
        gateway.restart()
        assert client.ask("retrieve", key(prompt(1)), 7, [list(range(20, 36))], EVENT, 0) == [b"", True]
        assert np.array_equal(engine.blocks(list(range(20, 36))), expected)

    def test_it_is_not_restored_when_its_memory_is_gone(
        self, client: Client, gateway: Gateway, engine: EngineMemory
    ) -> None:
        client.ask("register_kv_cache", *engine.registration())
        engine.path.unlink()
        gateway.restart()
        assert len(gateway.server.registry) == 0
        assert client.ask("store", key(prompt(1)), 7, [list(range(16))], EVENT) == [b"", False]


@pytest.mark.parametrize("waits", [False, True], ids=["the copy ends", "its pages are there"])
def test_a_fault_after_a_wait_fails_only_the_store_that_waited(
    client: Client, gateway: Gateway, engine: EngineMemory, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    def fault(*arguments: object) -> None:
        raise RuntimeError("a fault")

    client.ask("register_kv_cache", *engine.registration())
    with monkeypatch.context() as faulty:
        if waits:
            faulty.setattr(gateway.pool, "lacking", lambda ranges: ranges)
            faulty.setattr(gateway.pool, "take", lambda ranges: None)
        faulty.setattr(Transfers, "grant" if waits else "publish", fault)
        assert client.ask("store", key(prompt(1)), 7, [list(range(16))], EVENT) == [b"", False]
    assert gateway.server.counters.of("store").failures == {"internal": 1}
    (instance,) = gateway.server.registry
    assert instance.copying == 0


@pytest.mark.parametrize("method", ["add", "log_other_layouts"])
def test_a_fault_of_a_registration_fails_it_and_closes_its_memory(
    client: Client, gateway: Gateway, engine: EngineMemory, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fault(*arguments: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(Registry, method, fault)
    assert client.call(1, *map(packed, engine.registration())) == []
    assert gateway.server.counters.of("register_kv_cache").failures == {"internal": 1}
    assert not gateway.server.instances._openings._copiers
    assert len(gateway.server.registry) == 0
    assert [each.group for each in gateway.bench.node.engines.values()] == ["lmcache:schedulers"]
