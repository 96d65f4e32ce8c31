"""Values come back as they were put, arrays without a copy, and damaged bytes are errors."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from dataplane.ipc.store import ShmObjectStore, StoreCorrupted, StoreError
from dataplane.ipc.store.layout import H_CHANGES, H_NEXT_SEQUENCE, H_READERS_EVER
from tests.ipc.store.conftest import WAIT_S

MakeStore = Callable[..., ShmObjectStore]
ARRAYS = [
    np.arange(6, dtype=np.int16).reshape(2, 3),
    np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    np.arange(40, dtype=np.uint8)[::-3],
    np.array(3.5),
    np.zeros((0, 4), np.float32),
    np.array(["2026-01-01"], "datetime64[D]"),
    np.array([1 + 2j], np.complex64),
    np.array([b"ab", b"c"]),
    np.arange(4, dtype=">i4"),
    np.ones((2, 2), bool),
]
TENSORS = [
    torch.arange(10, dtype=torch.bfloat16),
    torch.zeros((), dtype=torch.float16),
    torch.arange(6).reshape(2, 3).t(),
    torch.zeros((0, 3)),
    torch.ones(3, requires_grad=True),
    torch.tensor([True, False]),
    torch.ones(2, dtype=torch.float8_e4m3fn),
]


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype}{array.shape}")
def test_an_array_comes_back(store: ShmObjectStore, array: np.ndarray) -> None:
    store.put("a", array)
    found = store.get("a")
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert (found == array).all()
    assert not found.flags.writeable


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype}{tuple(tensor.shape)}")
def test_a_tensor_comes_back(store: ShmObjectStore, tensor: torch.Tensor) -> None:
    store.put("a", tensor)
    found = store.get("a")
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(found.float(), tensor.detach().float())


def test_a_tensor_holds_its_object(store: ShmObjectStore) -> None:
    store.put("a", torch.arange(1000))
    value = store.get("a")[5:10]
    store.clear()
    assert store.stats().leased_objects == 1
    assert value.tolist() == [5, 6, 7, 8, 9]
    del value
    assert store.stats().leased_objects == 0


class Image(msgspec.Struct):
    name: str
    sizes: list[int]


def test_arrays_inside_of_other_values_are_views(store: ShmObjectStore) -> None:
    pixels, mask = np.arange(1000.0), torch.arange(7)
    store.put("a", {"pixels": [pixels, 3], "mask": mask, "name": "cat"})
    found = store.get("a")
    assert found["name"] == "cat"
    assert found["pixels"][1] == 3
    assert (found["pixels"][0] == pixels).all()
    assert torch.equal(found["mask"], mask)
    assert not found["pixels"][0].flags.owndata
    del found["mask"]
    store.clear()
    assert store.stats().leased_objects == 1


def test_a_struct_comes_back_as_its_type(store: ShmObjectStore) -> None:
    image = Image("cat", [1, 2])
    store.put("a", image)
    assert store.get("a", type=Image) == image
    assert store.get("a") == {"name": "cat", "sizes": [1, 2]}
    with pytest.raises(msgspec.ValidationError):
        store.get("a", type=int)


@pytest.mark.parametrize("value", [b"bytes", bytearray(b"array"), memoryview(b"view"), memoryview(b"a-b-c-")[::2], b""])
def test_bytes_come_back_as_a_view(store: ShmObjectStore, value: bytes) -> None:
    store.put("a", value)
    found = store.get("a")
    assert isinstance(found, memoryview)
    assert found.readonly
    assert bytes(found) == bytes(value)


@pytest.mark.parametrize(
    "value",
    [object(), np.array([object()]), np.zeros(2, "i4,f8"), {"a": {1j}}, np.float32(1), np.ma.masked_equal([1, 2], 2)],
)
def test_a_value_that_cannot_be_stored_is_refused(store: ShmObjectStore, value: object) -> None:
    with pytest.raises(TypeError, match="expected an array, bytes, or what msgspec encodes"):
        store.put("a", value)
    assert store.stats().used_bytes == 0


def nested(make: Callable[[Any], Any]) -> Any:
    value: Any = make(1)
    for _ in range(100_000):
        value = make(value)
    return value


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("make", [lambda value: [value], lambda value: {"in": value}], ids=["list", "dict"])
def test_a_deeply_nested_value_is_refused(make_store: MakeStore, make: Callable[[Any], Any], pickled: bool) -> None:
    store = make_store(trust_pickle=pickled)
    with pytest.raises(TypeError, match="expected a value that is less deeply nested"):
        store.put("a", nested(make))
    assert not store.is_cached("a")


def test_a_deeply_nested_object_of_a_hostile_writer_is_an_error(store: ShmObjectStore) -> None:
    body = b"\x91" * 100_000 + b"\x01"
    store.put_pieces("a", [bytes(100_200)])
    offset = int(tables_of(store).offset[store.get_cached("a").slot])
    head = struct.pack("<IIQ", 1, len(body), 100_160) + body
    memory_of(store)[offset : offset + len(head)] = np.frombuffer(head, np.uint8)
    with pytest.raises(StoreCorrupted, match="recursion"):
        store.get("a")


def test_nothing_is_unpickled_unless_both_sides_ask(make_store: MakeStore) -> None:
    store = make_store(trust_pickle=True)
    store.put("a", {"complex": 1j, "array": np.arange(1000)})
    found = store.get("a")
    assert found["complex"] == 1j
    assert not found["array"].flags.owndata
    with (
        ShmObjectStore.attach(store.handle(), timeout_s=WAIT_S) as reader,
        pytest.raises(StoreError, match="trust_pickle"),
    ):
        reader.get("a")
    careful = make_store()
    writer = ShmObjectStore.attach(careful.handle(), writer=True, trust_pickle=True)
    with writer, pytest.raises(TypeError):
        writer.put("a", 1j)


def test_a_checksum_finds_a_changed_byte(make_store: MakeStore) -> None:
    store = make_store(checksums=True)
    store.put("a", np.zeros(1000, np.uint8))
    assert not store.get("a").any()
    data = memory_of(store)
    data[500] ^= 1
    with pytest.raises(StoreCorrupted, match=r"checksum of its \d+ bytes"):
        store.get("a")
    assert store.stats().leased_objects == 0


def memory_of(store: ShmObjectStore) -> Any:
    """Return the bytes of a store's data, writable."""
    assert store._parts is not None
    memory = store._parts[0].writable
    assert memory is not None
    return memory.array()


def tables_of(store: ShmObjectStore) -> Any:
    assert store._parts is not None
    return store._parts[0].tables


def test_damaged_objects_are_errors(store: ShmObjectStore) -> None:
    """Every bit of a small object's head is flipped: an answer or StoreCorrupted, nothing else."""
    store.put("a", {"x": np.arange(10), "y": torch.arange(3), "z": ["text", 1]})
    handle = store.get_cached("a")
    offset = int(tables_of(store).offset[handle.slot])
    data = memory_of(store)
    corrupt = 0
    for bit in range(8 * 160):
        at = offset + bit // 8
        data[at] ^= 1 << bit % 8
        try:
            store.get(handle)
        except StoreCorrupted:
            corrupt += 1
        data[at] ^= 1 << bit % 8
    assert corrupt > 300
    assert store.get(handle)["z"] == ["text", 1]
    assert store.stats().leased_objects == 0


@pytest.mark.parametrize("value", [1 << 63, 1 << 40, (1 << 20) + 64, 1])
@pytest.mark.parametrize("column", ["offset", "nbytes"])
def test_an_object_outside_of_the_data_is_an_error(store: ShmObjectStore, column: str, value: int) -> None:
    handle = store.put("a", np.arange(1000))
    getattr(tables_of(store), column)[handle.slot] = value
    with pytest.raises(StoreCorrupted):
        store.get("a")


@pytest.mark.parametrize(("column", "value"), [("offset", 1 << 50), ("nbytes", 1 << 63), ("offset", 0)])
def test_a_writer_does_not_trust_a_damaged_table(store: ShmObjectStore, column: str, value: int) -> None:
    for key in "abc":
        handle = store.put(key, np.arange(1000))
    getattr(tables_of(store), column)[handle.slot] = value
    with (
        ShmObjectStore.attach(store.handle(), writer=True, timeout_s=WAIT_S) as other,
        pytest.raises(StoreCorrupted, match="table: expected objects"),
    ):
        other.put("d", b"")


def test_handles_of_elsewhere_are_refused(make_store: MakeStore) -> None:
    store, other = make_store(), make_store()
    handle = store.put("a", b"")
    with pytest.raises(ValueError, match="handle: expected store"):
        other.get(handle)
    for slot in (-1, 64, 1 << 70):
        with pytest.raises(ValueError, match="expected a slot below 64"):
            store.get(msgspec.structs.replace(handle, slot=slot))


def test_a_damaged_header_is_an_error(store: ShmObjectStore) -> None:
    header = tables_of(store).header
    for word in range(9):
        word_before = int(header[word])
        for value in {0, word_before ^ 1, word_before ^ 1 << 32, (1 << 64) - 1} - {word_before}:
            header[word] = value
            with pytest.raises(StoreCorrupted, match="header: "):
                ShmObjectStore.attach(store.fileno(), timeout_s=WAIT_S)
        header[word] = word_before
    ShmObjectStore.attach(store.fileno(), timeout_s=WAIT_S).close()


@pytest.mark.parametrize("word", [H_CHANGES, H_NEXT_SEQUENCE, H_READERS_EVER])
def test_a_count_that_is_garbage_is_an_error(store: ShmObjectStore, word: int) -> None:
    tables_of(store).header[word] = (1 << 64) - 1
    ever = word == H_READERS_EVER
    with pytest.raises(StoreCorrupted, match=f"header: expected at most .* in word {word}"):
        ShmObjectStore.attach(store.fileno(), timeout_s=WAIT_S).close() if ever else store.put("a", b"")


def test_other_files_are_refused(tmp_path: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(8192))
    with path.open("r+b") as file, pytest.raises(StoreCorrupted, match="expected a memfd"):
        ShmObjectStore.attach(file.fileno())


def test_the_library_needs_numpy_and_msgspec_alone() -> None:
    script = """
import sys
for name in ("torch", "xxhash", "zmq", "structlog", "click"):
    sys.modules[name] = None
from dataplane.ipc.store import ShmObjectStore
import numpy
with ShmObjectStore.create(4096) as store:
    store.put("a", [numpy.arange(3)])
    assert store.get("a")[0].tolist() == [0, 1, 2]
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("key", [b"bytes", 7, None])
def test_a_key_that_is_not_text_is_refused(store: ShmObjectStore, key: Any) -> None:
    for use in (store.is_cached, store.touch, store.get, lambda each: store.put(each, 1)):
        with pytest.raises(TypeError, match="expected a key of the type str"):
            use(key)
