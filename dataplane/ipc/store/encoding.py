"""Values as bytes of an object, and back without copying arrays.

An object is a prefix, a body, and buffers, each aligned to 64 bytes. The body is msgpack, in which an array is an
extension that names its buffer; so arrays may be anywhere inside dicts, lists and msgspec structs. The body of a
pickled object is the pickle, whose out-of-band buffers are the buffers.
"""

from __future__ import annotations

import math
import pickle
import re
import struct
import sys
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from dataplane.ipc.store.errors import StoreCorrupted, StoreError
from dataplane.ipc.store.layout import ALIGNMENT, up
from dataplane.protocol.mappings import Bytes, view

_PREFIX = struct.Struct("<IIQ")
"""Kind, size of the body, number of the bytes up to the first buffer."""
_MSGPACK, _BYTES, _PICKLE = range(1, 4)
_NUMPY, _TORCH = 1, 2
_DTYPE = re.compile(r"[<>|][biufcmMSUV]\d{1,10}(\[\d{0,10}[A-Za-z]{1,2}\])?", re.ASCII)
_BYTES_TYPES = (bytes, bytearray, memoryview)


class Encoded(NamedTuple):
    """A value that is ready to be copied into `nbytes` bytes of a store."""

    nbytes: int
    parts: list[tuple[int, npt.NDArray[Any]]]
    """Arrays, and where their bytes start."""

    def copy_to(self, target: Bytes) -> None:
        """Copy every part. Large copies release the GIL."""
        for offset, part in self.parts:
            target_part = target[offset : offset + part.nbytes]
            if part.flags.c_contiguous:
                target_part[:] = part.reshape(-1).view(np.uint8)
            else:
                np.copyto(target_part.view(part.dtype).reshape(part.shape), part)


class _Buffer(msgspec.Struct, array_like=True, frozen=True):
    """Where the bytes of an array are, and what they mean."""

    offset: int
    """From the first buffer, in bytes."""
    nbytes: int
    dtype: str
    shape: tuple[int, ...]


def encode(value: object, *, with_pickle: bool) -> Encoded:
    """Prepare a value for storing.

    Arrays of numpy and tensors of torch (copied to the CPU), alone or inside what msgspec encodes; bytes. Anything else
    needs `with_pickle`. Raise TypeError for a value that cannot be stored.
    """
    buffers = _Buffers()
    if isinstance(value, _BYTES_TYPES):
        if isinstance(value, memoryview) and not value.c_contiguous:
            value = bytes(value)
        buffers.add(np.frombuffer(value, np.uint8))
        return buffers.encoded(_BYTES, b"")
    try:
        parts = _parts_of(value)
        if parts is not None:
            code, array, dtype, shape = parts
            head = _head_of_one(code, array.nbytes, dtype, shape)
            return Encoded(len(head) + array.nbytes, [(0, head), (len(head), array)])
        body = msgspec.msgpack.encode(value, enc_hook=buffers.extension)
    except RecursionError:
        raise TypeError(f"{type(value).__name__}: expected a value that is less deeply nested") from None
    except (TypeError, ValueError, OverflowError) as error:
        if not with_pickle:
            raise TypeError(
                f"{type(value).__name__}: expected an array, bytes, or what msgspec encodes ({error})"
            ) from None
        return _pickled(value)
    return buffers.encoded(_MSGPACK, body)


def encode_pieces(pieces: Sequence[bytes | memoryview]) -> Encoded:
    """Prepare bytes that are in several pieces, which come back as one memoryview."""
    first = up(_PREFIX.size, ALIGNMENT)
    at, parts = first, [(0, np.frombuffer(_PREFIX.pack(_BYTES, 0, first), np.uint8))]
    for piece in pieces:
        array = np.frombuffer(piece, np.uint8)
        parts.append((at, array))
        at += len(array)
    return Encoded(at, parts)


def decode(data: Bytes, *, with_pickle: bool, type: Any = Any) -> Any:  # noqa: A002 as msgspec has it
    """Return the value of an object's bytes; its arrays are views of them.

    Raise StoreCorrupted if they are none of an object, StoreError for a pickle without `with_pickle`, and
    msgspec.ValidationError if the value is not of the type.
    """
    try:
        kind, size, first = _PREFIX.unpack_from(data.data)
        if first > len(data) or size > first - _PREFIX.size:
            raise ValueError(f"a body of {size} and buffers from {first} in {len(data)} bytes")
        body, buffers = data[_PREFIX.size : _PREFIX.size + size].data, data[first:]
        if kind == _BYTES:
            return buffers.data
        if kind == _MSGPACK:
            return msgspec.msgpack.decode(body, type=type, ext_hook=lambda code, ext: _array(code, ext, buffers))
        if kind != _PICKLE:
            raise ValueError(f"kind {kind}")
        stream, parts_of = msgspec.msgpack.decode(body, type=tuple[bytes, list[_Buffer]])
        parts = [_bytes_of(target_part, buffers) for target_part in parts_of]
    except (
        msgspec.DecodeError,
        struct.error,
        ValueError,
        TypeError,
        OverflowError,
        AttributeError,
        RecursionError,
    ) as error:
        if type is not Any and isinstance(error, msgspec.ValidationError):
            raise
        raise StoreCorrupted(f"object: {error}") from None
    if not with_pickle:
        raise StoreError("the object is a pickle: attach with trust_pickle=True to load it")
    return pickle.loads(stream, buffers=parts)


class _Buffers:
    """Arrays of a value, in the order in which they were found."""

    def __init__(self) -> None:
        self._buffers: list[tuple[int, npt.NDArray[Any]]] = []
        self.nbytes = 0

    def add(self, array: npt.NDArray[Any]) -> int:
        offset = up(self.nbytes, ALIGNMENT)
        self._buffers.append((offset, array))
        self.nbytes = offset + array.nbytes
        return offset

    def extension(self, value: object) -> msgspec.msgpack.Ext:
        """Add an array, which msgspec cannot encode. Raise TypeError for what is none."""
        parts = _parts_of(value)
        if parts is None:
            raise TypeError(f"{type(value).__name__} cannot be stored")
        code, array, dtype, shape = parts
        entry = _Buffer(self.add(array), array.nbytes, dtype, shape)
        return msgspec.msgpack.Ext(code, msgspec.msgpack.encode(entry))

    def encoded(self, kind: int, body: bytes) -> Encoded:
        head = _head(kind, body)
        first = len(head)
        return Encoded(first + self.nbytes, [(0, head), *((first + at, array) for at, array in self._buffers)])


def _head(kind: int, body: bytes) -> Bytes:
    """Return the bytes before the first buffer."""
    first = up(_PREFIX.size + len(body), ALIGNMENT)
    return np.frombuffer((_PREFIX.pack(kind, len(body), first) + body).ljust(first, b"\0"), np.uint8)


@lru_cache(64)
def _head_of_one(code: int, nbytes: int, dtype: str, shape: tuple[int, ...]) -> Bytes:
    """Return the bytes before the buffer of an array or a tensor that is the whole value."""
    entry = _Buffer(0, nbytes, dtype, shape)
    return _head(_MSGPACK, msgspec.msgpack.encode(msgspec.msgpack.Ext(code, msgspec.msgpack.encode(entry))))


def _parts_of(value: object) -> tuple[int, npt.NDArray[Any], str, tuple[int, ...]] | None:
    """Return the extension code, the array, the dtype and the shape of an array or a tensor; None for another value.
    Raise TypeError for an array or a tensor that cannot be stored."""
    if isinstance(value, np.ndarray):
        dtype = value.dtype
        if not _DTYPE.fullmatch(dtype.str) or dtype.names is not None:
            raise TypeError(f"an array of dtype {dtype} cannot be stored")
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError("a masked array cannot be stored: store its data and its mask")
        return _NUMPY, value, dtype.str, value.shape
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _TORCH, *_of_tensor(value)
    return None


def _pickled(value: object) -> Encoded:
    buffers, parts_of = _Buffers(), []

    def out_of_band(buffer: pickle.PickleBuffer) -> None:
        raw = np.frombuffer(buffer.raw(), np.uint8)
        parts_of.append(_Buffer(buffers.add(raw), raw.nbytes, "|u1", raw.shape))

    try:
        stream = pickle.dumps(value, protocol=5, buffer_callback=out_of_band)
    except RecursionError:
        raise TypeError(f"{type(value).__name__}: expected a value that is less deeply nested") from None
    return buffers.encoded(_PICKLE, msgspec.msgpack.encode((stream, parts_of)))


def _array(code: int, extension: memoryview, buffers: Bytes) -> Any:
    entry = msgspec.msgpack.decode(extension, type=_Buffer)
    flat = _bytes_of(entry, buffers)
    if code == _NUMPY:
        if not _DTYPE.fullmatch(entry.dtype):  # numpy would parse more than it ever writes
            raise ValueError(f"dtype {entry.dtype!r}")
        dtype = np.dtype(entry.dtype)
        _check_size(entry, dtype.itemsize)
        return flat.view(dtype).reshape(entry.shape)
    if code == _TORCH:
        return _to_tensor(flat, entry)
    raise ValueError(f"extension {code}")


def _bytes_of(entry: _Buffer, buffers: Bytes) -> Bytes:
    if not 0 <= entry.offset <= len(buffers) - entry.nbytes or entry.nbytes < 0:
        raise ValueError(f"{entry.nbytes} bytes at {entry.offset} of {len(buffers)}")
    return buffers[entry.offset : entry.offset + entry.nbytes]


def _check_size(entry: _Buffer, itemsize: int) -> None:
    if min(entry.shape, default=0) < 0 or math.prod(entry.shape) * itemsize != entry.nbytes:
        raise ValueError(f"{entry.nbytes} bytes for shape {entry.shape} of {entry.dtype}")


def _of_tensor(tensor: Any) -> tuple[npt.NDArray[Any], str, tuple[int, ...]]:
    torch: Any = sys.modules["torch"]
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"a tensor of layout {tensor.layout} cannot be stored")
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy(), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def _to_tensor(flat: Bytes, entry: _Buffer) -> Any:
    torch: Any = sys.modules.get("torch") or import_module("torch")  # by name: the package does not import torch
    dtype = getattr(torch, entry.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype {entry.dtype}")
    _check_size(entry, dtype.itemsize)
    if not len(flat):
        return torch.empty(entry.shape, dtype=dtype)
    # Torch has no read-only tensors and warns of arrays that are: the memory is protected, whatever the flag says.
    unflagged = view(flat, flat.ctypes.data, len(flat), writable=True)
    return torch.from_numpy(unflagged).view(dtype).reshape(entry.shape)
