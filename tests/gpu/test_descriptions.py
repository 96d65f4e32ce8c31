"""What LMCache's own encoder says of CUDA tensors, and descriptions that are refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from dataplane.gateways.lmcache.wire.ipc import DeviceTensor, MemoryUnsupported, decode
from tests.lmcache.client import packed

CUDA = bytes.fromhex(
    "84a474797065a463756461a668616e646c659800c4420363000102030405060708090a0b0c0d0e0f10111213141516171819"
    "1a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3fce00020000cd0200c40c2f74"
    "6f7263685f315f325f3300c44000000000000000000000000000000000000000000000000000000000000000000000000000"
    "000000000000000000000000000000000000000000000000000000c3a776657273696f6e01a86d6574616461746185a56474"
    "797065a862666c6f61743136a57368617065950240100208a673747269646595cd4000cd0100100801ae73746f726167655f"
    "6f6666736574cd8000ab6465766963655f75756964d92437373137636135652d303030302d343030302d383030302d303030"
    "303030303030303030"
)
EXPANDABLE = bytes.fromhex(
    "84a474797065a463756461a668616e646c659800c41603650000000000000000000000000000000000000000ce00020000cd"
    "0200c000c0c2a776657273696f6e01a86d6574616461746185a56474797065a862666c6f61743136a5736861706595024010"
    "0208a673747269646595cd4000cd0100100801ae73746f726167655f6f6666736574cd8000ab6465766963655f75756964d9"
    "2437373137636135652d303030302d343030302d383030302d303030303030303030303030"
)
RAW = bytes.fromhex(
    "86a474797065a8637564615f726177aa6970635f68616e646c65c440000102030405060708090a0b0c0d0e0f101112131415"
    "161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3fac616c6c6f635f6f"
    "6666736574cd0200a66e6279746573ce00020000a776657273696f6e01a86d6574616461746185a56474797065a862666c6f"
    "61743136a57368617065950240100208a673747269646595cd4000cd0100100801ae73746f726167655f6f6666736574cd80"
    "00ab6465766963655f75756964d92437373137636135652d303030302d343030302d383030302d3030303030303030303030"
    "30"
)
VMM = bytes.fromhex(
    "89a474797065a8637564615f766d6da96578706f72745f6964c41000000000000000000000000000000000a46b696e64a870"
    "6f7369785f6664ab6661627269635f626c6f62c0aa616c6c6f635f73697a65ce00100000ac616c6c6f635f6f666673657400"
    "a66e6279746573ce00020000a776657273696f6e01a86d6574616461746185a56474797065a862666c6f61743136a5736861"
    "7065950240100208a673747269646595cd4000cd0100100801ae73746f726167655f6f6666736574cd8000ab646576696365"
    "5f75756964d92437373137636135652d303030302d343030302d383030302d303030303030303030303030"
)
"""Made by LMCache 0.5.6 (`ipc_wire`): 2 x 64 blocks of bfloat16, 512 bytes into the allocation."""


@pytest.mark.parametrize(("body", "kind"), [(CUDA, "cuda"), (RAW, "cuda_raw")])
def test_tensors_of_cuda_are_understood(body: bytes, kind: str) -> None:
    (tensor,) = decode([body])
    assert isinstance(tensor, DeviceTensor)
    assert (tensor.type, tensor.body, tensor.offset, tensor.nbytes) == (kind, bytes(range(64)), 512, 131_072)
    assert (tensor.metadata.dtype, tensor.metadata.shape) == ("bfloat16", (2, 64, 16, 2, 8))
    assert tensor.metadata.device_uuid == "7717ca5e-0000-4000-8000-000000000000"


@pytest.mark.parametrize("body", [EXPANDABLE, VMM])
def test_memory_without_a_handle_is_refused_with_the_setting(body: bytes) -> None:
    with pytest.raises(MemoryUnsupported, match="expandable_segments:False"):
        decode([body])


def changed(body: bytes, **changes: Any) -> bytes:
    described = msgspec.msgpack.decode(body)
    metadata = changes.pop("metadata", {})
    return packed({**described, **changes, "metadata": {**described["metadata"], **metadata}})


HANDLE = [0, b"\x03c" + bytes(64), 131_072, 512, b"", 0, b"", False]


@pytest.mark.parametrize(
    "body",
    [
        changed(CUDA, handle=[]),
        changed(CUDA, handle=None),
        changed(CUDA, handle=HANDLE[:7]),
        changed(CUDA, handle=[*HANDLE[:1], None, *HANDLE[2:]]),
        changed(CUDA, handle=[*HANDLE[:1], b"\x03c" + bytes(63), *HANDLE[2:]]),
        changed(CUDA, handle=[*HANDLE[:1], b"\x03x" + bytes(64), *HANDLE[2:]]),
        changed(CUDA, handle=[*HANDLE[:2], -1, *HANDLE[3:]]),
        changed(CUDA, handle=[*HANDLE[:2], 131_071, *HANDLE[3:]]),
        changed(CUDA, handle=[*HANDLE[:3], -512, *HANDLE[4:]]),
        changed(CUDA, handle=[*HANDLE[:3], 1 << 60, *HANDLE[4:]]),
        changed(CUDA, version=2),
        changed(CUDA, metadata={"stride": [1]}),
        changed(CUDA, metadata={"storage_offset": 32_769}),
        changed(CUDA, metadata={"storage_offset": 1 << 40, "shape": [2, 64, 16, 2, 0]}),
        changed(CUDA, metadata={"dtype": "object"}),
        changed(RAW, ipc_handle=b""),
        changed(RAW, ipc_handle=5),
        changed(RAW, alloc_offset=-1),
        changed(RAW, nbytes=1),
    ],
    ids=range(19),
)
def test_an_invalid_tensor_description_is_refused(body: bytes) -> None:
    with pytest.raises(MemoryUnsupported, match="tensor 0"):
        decode([body])
