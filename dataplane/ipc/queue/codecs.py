"""How messages become bytes: msgspec, or pickle between processes that trust each other.

Both copy large arrays beside the serialised part. The msgspec codec carries what `msgspec.msgpack` encodes, and numpy
arrays of numbers. Pickle is never used for messages that arrive over a socket.
"""

from __future__ import annotations

import copyreg
import io
import math
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np

from dataplane.ipc.queue.errors import CorruptMessage
from dataplane.ipc.queue.payload import Payload

BUFFER_BYTES = 4096
"""Arrays and buffers of at least this size are copied beside the serialised part."""
_ARRAY = 1
"""Code of the msgpack extension for an array: its dtype, shape, and the number of its buffer or its bytes."""
_KINDS = "biufc"
_DTYPE = re.compile(r"[<>|=]?[biufc]\d{1,2}", re.ASCII)
"""The form of `dtype.str` for these kinds. Numpy also accepts other texts, and evaluates some as Python literals."""

Reducers = Mapping[type, Callable[[Any], Any]]


class Codec(Protocol):
    """Encodes and decodes messages. One thread at a time."""

    def encode(self, message: object) -> Payload: ...

    def decode(self, body: memoryview | bytes, buffers: Sequence[memoryview], owned: bool) -> Any: ...


class _ArrayHeader(msgspec.Struct, frozen=True, array_like=True):
    dtype: str
    shape: tuple[int, ...]
    buffer: int
    content: bytes = b""


class MsgspecCodec:
    """Messages as MessagePack."""

    def __init__(self, expected: Any = Any) -> None:
        """`expected`: the type that messages are decoded as."""
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_array)
        self._decoder = msgspec.msgpack.Decoder(expected, ext_hook=self._decode_array, dec_hook=_accept_array)
        self._header = msgspec.msgpack.Decoder(_ArrayHeader)
        self._encoded: list[memoryview] = []
        self._buffers: Sequence[memoryview] = ()
        self._owned = False

    def encode(self, message: object) -> Payload:
        """Raises TypeError for a value that has no MessagePack form."""
        try:
            return Payload(self._encoder.encode(message), self._encoded)
        except RecursionError:
            raise TypeError(f"{type(message).__name__}: expected a value that is less deeply nested") from None
        finally:
            if self._encoded:
                self._encoded = []

    def decode(self, body: memoryview | bytes, buffers: Sequence[memoryview], owned: bool) -> Any:
        """Raises CorruptMessage."""
        if buffers:
            self._buffers, self._owned = buffers, owned
        try:
            return self._decoder.decode(body)
        except (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise CorruptMessage(f"a message cannot be decoded: {error}") from None
        finally:
            if buffers:
                self._buffers = ()

    def _encode_array(self, value: object) -> msgspec.msgpack.Ext:
        if not isinstance(value, np.ndarray) or value.dtype.kind not in _KINDS:
            raise TypeError(
                f"{type(value).__name__} has no form in a message: pass what msgspec encodes or an array of numbers "
                f"(tensor.numpy(), scalar.item()), or pickle messages with trusted=True"
            )
        flat = np.ascontiguousarray(value)
        raw = flat.reshape(-1).view(np.uint8).data if flat.size else memoryview(b"")
        if raw.nbytes < BUFFER_BYTES:
            header = _ArrayHeader(value.dtype.str, value.shape, -1, bytes(raw))
        else:
            header = _ArrayHeader(value.dtype.str, value.shape, len(self._encoded))
            self._encoded.append(raw)
        return msgspec.msgpack.Ext(_ARRAY, msgspec.msgpack.encode(header))

    def _decode_array(self, code: int, data: memoryview) -> Any:
        if code != _ARRAY:
            raise ValueError(f"expected MessagePack extension {_ARRAY}, got {code}")
        header = self._header.decode(data)
        if not _DTYPE.fullmatch(header.dtype) or min(header.shape, default=0) < 0:
            raise ValueError(f"expected an array of numbers, got {header.dtype!r:.40} of shape {header.shape}")
        dtype = np.dtype(header.dtype)
        if header.buffer >= 0:
            view = self._buffers[header.buffer] if header.buffer < len(self._buffers) else memoryview(b"")
            content: Any = view if self._owned else bytearray(view)
        else:
            content = bytearray(header.content)
        if len(content) != math.prod(header.shape) * dtype.itemsize:
            raise ValueError(
                f"expected {math.prod(header.shape) * dtype.itemsize} bytes for an array of shape {header.shape}, "
                f"got {len(content)}"
            )
        return np.frombuffer(content, np.uint8).view(dtype).reshape(header.shape)


def _accept_array(expected: type, value: Any) -> Any:
    if isinstance(value, expected):
        return value
    raise NotImplementedError(f"{expected.__name__} has no form in a message")


class PickleCodec:
    """Messages as pickles of protocol 5. A process that writes them can run code in their readers."""

    def __init__(self, reducers: Reducers | None = None) -> None:
        """`reducers`: functions that replace `__reduce__` of these types."""
        self._reducers = {**copyreg.dispatch_table, **reducers} if reducers else None
        self._encoded: list[memoryview] = []

    def encode(self, message: object) -> Payload:
        """Raises what `pickle` raises, and TypeError in place of RecursionError."""
        try:
            if self._reducers is None:
                body = pickle.dumps(message, 5, buffer_callback=self._keep)
            else:
                with io.BytesIO() as file:
                    pickler = pickle.Pickler(file, 5, buffer_callback=self._keep)
                    pickler.dispatch_table = self._reducers
                    pickler.dump(message)
                    body = file.getvalue()
            return Payload(body, self._encoded)
        except RecursionError:
            raise TypeError(f"{type(message).__name__}: expected a value that is less deeply nested") from None
        finally:
            if self._encoded:
                self._encoded = []

    def _keep(self, buffer: pickle.PickleBuffer) -> bool:
        """Return whether a buffer is part of the pickle, instead of being copied beside it."""
        raw = buffer.raw()
        if raw.nbytes < BUFFER_BYTES:
            return True
        self._encoded.append(raw)
        return False

    def decode(self, body: memoryview | bytes, buffers: Sequence[memoryview], owned: bool) -> Any:
        """Raises what `pickle` raises."""
        if not buffers:
            return pickle.loads(body)
        return pickle.loads(body, buffers=buffers if owned else [bytearray(buffer) for buffer in buffers])
