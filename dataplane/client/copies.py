"""Copies of many blocks at once: neighbours in the arena are one copy, and none holds the interpreter's lock."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dataplane.client.memory import Memory
from dataplane.protocol.layout import I64

Buffer = memoryview | bytearray | npt.NDArray[np.generic]


def address_of(buffer: bytes | Buffer, nbytes: int, *, writable: bool) -> tuple[int, npt.NDArray[np.uint8]]:
    """Address of a contiguous buffer of at least `nbytes`, and an array that keeps it alive. Raises ValueError."""
    flat = np.frombuffer(buffer, np.uint8)
    if len(flat) < nbytes:
        raise ValueError(f"expected a buffer of at least {nbytes} bytes, got {len(flat)}")
    if writable and not flat.flags.writeable:
        raise ValueError("expected a writable buffer")
    return flat.ctypes.data, flat


def addresses(segments: Mapping[int, Memory], numbers: I64, offsets: I64) -> I64:
    """Where blocks are in this process's address space."""
    bases = np.empty(len(numbers), np.int64)
    for number in np.unique(numbers).tolist():
        bases[numbers == number] = segments[number].address
    return bases + offsets


def copy(targets: I64, sources: I64, sizes: I64) -> None:
    """Copy pieces, joining those that follow each other on both sides."""
    if not len(sizes):
        return
    joined = (targets[:-1] + sizes[:-1] == targets[1:]) & (sources[:-1] + sizes[:-1] == sources[1:])
    starts = np.concatenate(([0], np.flatnonzero(~joined) + 1))
    lengths = np.add.reduceat(sizes, starts)
    for target, source, length in zip(
        targets[starts].tolist(), sources[starts].tolist(), lengths.tolist(), strict=True
    ):
        ctypes.memmove(target, source, length)
