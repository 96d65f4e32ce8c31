"""fp8: each element as one byte of the format e4m3, with a scale for each head of each token. Lossy.

The stored bytes are the scales, one byte for each group of `Encoding.group` consecutive elements, and then the
elements. A scale is the exponent of the smallest power of two by which the largest element of the group must be divided
to be at most 448. An element is rounded to the nearest value with four significant bits (half to even), so its relative
error is at most 1/16. Elements below 2^-6 of the scale have an absolute error of at most 2^-10 of the scale. Encoding
decoded elements again changes nothing. `Encoding.element` is the number of the data type in `_TYPES`.
"""

from typing import Any

import numpy as np

from dataplane.base.dtypes import ITEM_BYTES, canonical
from dataplane.protocol.stored_blocks import FP8, BlockForm, Buffer, Encoding
from dataplane.tiers.codecs.codec import DecodeError, EncodedBlock, NotEncoded

_TYPES = {1: "bfloat16", 2: "float16", 3: "float32"}
_NUMBERS = {name: number for number, name in _TYPES.items()}
_MAX_FINITE = {
    "bfloat16": np.array([0x7F7F0000], np.uint32).view(np.float32)[0],
    "float16": np.float32(np.finfo(np.float16).max),
    "float32": np.finfo(np.float32).max,
}
_MAX_BITS = 0x43E00000
"""Bits of 448, the largest value of e4m3, as a float32."""
_LEAST_SCALE, _GREATEST_SCALE = -100, 120
_SMALLEST_EXPONENT = 127 - 6
"""Exponent field of a float32 of the smallest normal value of e4m3."""
_ROUNDING_EXPONENT, _HALF = 20, 0x400000
_TO_CODE = np.float32(2.0**-120)
"""Shifts the exponent of e4m3 to the lowest bits of a float32's exponent; subnormal values become subnormal."""
_STEP_ELEMENTS = 1 << 16
"""Number of elements that are encoded at a time, so that they stay in the processor's cache."""

Array = np.ndarray[Any, np.dtype[Any]]


class Fp8Codec:
    """Stores each element of bfloat16, float16 or float32 as one byte. See `BlockCodec` for the methods."""

    number = FP8
    lossless = False

    def encode(self, data: Buffer, form: BlockForm) -> EncodedBlock:
        dtype = canonical(form.dtype) or ""
        group, nbytes = form.head_size, memoryview(data).nbytes
        if dtype not in _NUMBERS:
            raise NotEncoded("dtype")
        count, remainder = divmod(nbytes, ITEM_BYTES[dtype])
        if not 0 < group <= 0xFFFF or remainder or not count or count % group:
            raise NotEncoded("heads")
        encoded = np.empty(count // group + count, np.uint8)
        if encoded.nbytes >= nbytes:
            raise NotEncoded("size")
        scales = encoded[: count // group].view(np.int8)
        codes = encoded[count // group :].reshape(-1, group)
        elements = _elements(data, dtype).reshape(-1, group)
        rows = max(1, _STEP_ELEMENTS // group)
        for at in range(0, len(codes), rows):
            part = slice(at, at + rows)
            _encode(_as_float32(elements[part], dtype), scales[part], codes[part])
        return EncodedBlock(Encoding(self.number, _NUMBERS[dtype], group, encoded.nbytes), encoded)

    def decode(self, encoding: Encoding, data: Buffer, into: memoryview) -> None:
        dtype = _TYPES.get(encoding.element)
        if dtype is None:
            raise DecodeError(f"expected a type of 1 to {len(_TYPES)}, got {encoding.element}")
        group, stored = encoding.group, np.frombuffer(data, np.uint8)
        count, remainder = divmod(into.nbytes, ITEM_BYTES[dtype])
        if remainder or not group or count % group or len(stored) != count // group + count:
            raise DecodeError(
                f"expected {into.nbytes} bytes of {dtype} with heads of {group}, got {len(stored)} encoded bytes"
            )
        scales = stored[: count // group].view(np.int8).astype(np.intp)
        if len(scales) and not _LEAST_SCALE <= scales.min() <= scales.max() <= _GREATEST_SCALE:
            raise DecodeError(f"expected scales of {_LEAST_SCALE} to {_GREATEST_SCALE}")
        codes = stored[count // group :].reshape(-1, group)
        elements = _elements(into, dtype).reshape(-1, group)
        least = int(scales.min())
        table = _table(np.arange(least, int(scales.max()) + 1), dtype)
        rows = max(1, _STEP_ELEMENTS // group)
        for at in range(0, len(codes), rows):
            part = slice(at, at + rows)
            table_rows = ((scales[part] - least) << 8)[:, None] + codes[part]
            elements[part] = table.take(table_rows, mode="clip")


def _encode(values: Array, scales: Array, codes: Array) -> None:
    """Encode rows of float32, which are overwritten. Raises NotEncoded for values that are not finite."""
    largest = np.abs(values).max(axis=1)
    if not np.isfinite(largest).all():
        raise NotEncoded("values")
    exponents = (largest.view(np.int32) - _MAX_BITS + 0x7FFFFF) >> 23
    scales[:] = exponents = np.maximum(exponents, _LEAST_SCALE)
    values *= np.exp2(-exponents.astype(np.float32))[:, None]
    bits = values.view(np.uint32)
    signs = ((bits >> 24) & 0x80).astype(np.uint8)
    bits &= 0x7FFFFFFF
    # Adding and subtracting 1.5 * 2^23 times the distance of two neighbours rounds to one of them.
    magic = (np.maximum(bits >> 23, _SMALLEST_EXPONENT) + _ROUNDING_EXPONENT) << 23 | _HALF
    values += magic.view(np.float32)
    values -= magic.view(np.float32)
    values *= _TO_CODE
    np.bitwise_or((bits >> 20).astype(np.uint8), signs, out=codes)


def _table(exponents: Array, dtype: str) -> Array:
    """Return the decoded values of all codes for each of the scales, as bits of the type."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    values = np.where(exponent > 0, 8 + mantissa, mantissa) * np.exp2(np.maximum(exponent, 1) - 10.0)
    values = np.where(codes & 0x80, -values, values)
    limit = float(_MAX_FINITE[dtype])
    scaled: Array = np.clip(np.ldexp(values[None, :], exponents[:, None]), -limit, limit).astype(np.float32)
    bits: Array = scaled.view(np.uint32)
    if dtype == "bfloat16":
        bits = (bits >> 16).astype(np.uint16)
    elif dtype == "float16":
        bits = scaled.astype(np.float16).view(np.uint16)
    return bits.ravel()


def _elements(data: Buffer, dtype: str) -> Array:
    """Return the elements as unsigned integers, without a copy."""
    return np.frombuffer(data, np.uint32 if dtype == "float32" else np.uint16)


def _as_float32(elements: Array, dtype: str) -> Array:
    """Return a copy of the elements as float32."""
    values: Array
    if dtype == "bfloat16":
        values = (elements.astype(np.uint32) << 16).view(np.float32)
    else:
        values = elements.view(np.float16 if dtype == "float16" else np.float32).astype(np.float32)
    return values
