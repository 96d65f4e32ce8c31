"""zstd over byte planes: the first bytes of all elements, then the second bytes, and so on.

The exponents of floating-point numbers are in their last bytes and vary little; the first bytes are nearly random.
Grouped by position, the bytes compress better than in their original order. Random bytes have no repetitions, so the
search for repetitions is as short as zstd allows. This is faster, and the result is smaller, because chance repetitions
are not encoded.

`Encoding.element` is the size of an element in bytes, `Encoding.group` is 0.
"""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import zstandard

from dataplane.base.dtypes import ITEM_BYTES, canonical
from dataplane.protocol.stored_blocks import ZSTD, BlockForm, Buffer, Encoding
from dataplane.tiers.codecs.codec import DecodeError, EncodedBlock, NotEncoded

_LEVEL, _HASH_LOG, _MIN_MATCH = 1, 6, 7
Array = np.ndarray[Any, np.dtype[np.uint8]]
_ELEMENTS = frozenset({1, 2, 4, 8})


class ZstdCodec:
    """Compresses blocks without loss. See `BlockCodec` for the methods."""

    number = ZSTD
    lossless = True

    def __init__(self) -> None:
        self._threads = threading.local()

    def encode(self, data: Buffer, form: BlockForm) -> EncodedBlock:
        raw = np.frombuffer(data, np.uint8)
        element = ITEM_BYTES.get(canonical(form.dtype) or "", 1)
        parameters = zstandard.ZstdCompressionParameters.from_level(
            _LEVEL, source_size=raw.nbytes, hash_log=_HASH_LOG, min_match=_MIN_MATCH, write_content_size=True
        )
        frame = zstandard.ZstdCompressor(compression_params=parameters).compressobj(size=raw.nbytes)
        parts: list[bytes] = []
        for plane in _planes(raw, element):  # each in separate zstd blocks, so that each has its own table
            parts += [frame.compress(plane), frame.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)]
        packed = b"".join([*parts, frame.flush()])
        if len(packed) >= raw.nbytes:
            raise NotEncoded("size")
        return EncodedBlock(Encoding(self.number, element, 0, len(packed)), packed)

    def decode(self, encoding: Encoding, data: Buffer, into: memoryview) -> None:
        if encoding.element not in _ELEMENTS or encoding.group:
            raise DecodeError(f"expected elements of 1, 2, 4 or 8 bytes, got {encoding.element}")
        try:
            # zstandard allocates what the frame claims, so its claims are compared first.
            claimed = zstandard.get_frame_parameters(data)
            if claimed.content_size != into.nbytes or claimed.window_size > into.nbytes:
                raise DecodeError(
                    f"expected a frame of {into.nbytes} bytes, got {claimed.content_size} with a window of "
                    f"{claimed.window_size}"
                )
            planes = self._decompressor().decompress(data, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise DecodeError(str(error)) from None
        if len(planes) != into.nbytes:
            raise DecodeError(f"expected {into.nbytes} bytes, got {len(planes)}")
        _join(np.frombuffer(planes, np.uint8), encoding.element, np.frombuffer(into, np.uint8))

    def _decompressor(self) -> zstandard.ZstdDecompressor:
        """Return the decompressor of this thread. Two threads must not use one at the same time."""
        decompressor: zstandard.ZstdDecompressor | None = getattr(self._threads, "decompressor", None)
        if decompressor is None:
            decompressor = self._threads.decompressor = zstandard.ZstdDecompressor()
        return decompressor


def _planes(data: Array, element: int) -> Iterator[Buffer]:
    """Yield the byte planes of the elements; the last plane also has the bytes after the last whole element."""
    count = len(data) // element
    for at in range(element - 1):
        yield np.ascontiguousarray(data[at : count * element : element])
    last = data[element - 1 : count * element : element]
    yield np.concatenate([last, data[count * element :]]) if element > 1 else data


def _join(planes: Array, element: int, into: Array) -> None:
    count = len(planes) // element
    for at in range(element):
        into[at : count * element : element] = planes[at * count : (at + 1) * count]
    into[count * element :] = planes[count * element :]
