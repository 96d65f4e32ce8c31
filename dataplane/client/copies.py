"""Copies of many blocks at once: neighbours in the arena are one copy, and none holds the interpreter's lock."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dataplane.client.memory import Memory
from dataplane.protocol.checksums import Checksum, checksum
from dataplane.protocol.layout import I64

PIECE_BYTES = 512 << 10
"""Copied and summed by turns: what was just copied is still in the core's own cache when it is summed."""

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


def copy_summed(
    targets: list[int], base: int, source: memoryview, starts: list[int], nbytes: int
) -> list[bytes]:
    """Copy blocks of `nbytes` that lie at `starts` of `source`, which is at address `base`; their checksums."""
    if nbytes > PIECE_BYTES:
        return [
            _copy_summed(target, base + start, source[start : start + nbytes])
            for target, start in zip(targets, starts, strict=True)
        ]
    sums: list[bytes] = []
    turn = PIECE_BYTES // nbytes
    for first in range(0, len(targets), turn):
        last = min(first + turn, len(targets))
        while first < last:
            end = first + 1
            while (
                end < last and _follows(targets, first, end, nbytes) and _follows(starts, first, end, nbytes)
            ):
                end += 1
            ctypes.memmove(targets[first], base + starts[first], (end - first) * nbytes)
            sums += [checksum(source[start : start + nbytes]) for start in starts[first:end]]
            first = end
    return sums


def _copy_summed(target: int, address: int, source: memoryview) -> bytes:
    state = Checksum()
    for at in range(0, len(source), PIECE_BYTES):
        piece = source[at : at + PIECE_BYTES]
        ctypes.memmove(target + at, address + at, len(piece))
        state.update(piece)
    return state.digest()


def _follows(places: list[int], first: int, at: int, nbytes: int) -> bool:
    """The piece at position `at` lies where a run of neighbours from `first` on goes on."""
    return places[at] == places[first] + (at - first) * nbytes
