"""Copies of many blocks at once. Neighbours in the pool become one copy, and no copy holds the interpreter lock."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from dataplane.client.memory import SharedMapping
from dataplane.protocol.checksums import Checksum, checksum
from dataplane.protocol.layout import I64

PIECE_BYTES = 512 << 10
"""Bytes copied, then summed, in turn: the bytes are then still in the core's own cache when they are summed."""

Buffer = memoryview | bytearray | npt.NDArray[np.generic]


def address_of(buffer: bytes | Buffer, nbytes: int, *, writable: bool) -> tuple[int, npt.NDArray[np.uint8]]:
    """Return a contiguous buffer's address, and an array that keeps it alive. Raise ValueError if it is too small."""
    flat = np.frombuffer(buffer, np.uint8)
    if len(flat) < nbytes:
        raise ValueError(f"expected a buffer of at least {nbytes} bytes, got {len(flat)}")
    if writable and not flat.flags.writeable:
        raise ValueError("expected a writable buffer")
    return flat.ctypes.data, flat


def addresses(segments: Mapping[int, SharedMapping], numbers: I64, offsets: I64) -> I64:
    """Return the addresses of blocks in this process's address space."""
    bases = np.empty(len(numbers), np.int64)
    for number in np.unique(numbers).tolist():
        bases[numbers == number] = segments[number].address
    return bases + offsets


def copy(targets: I64, sources: I64, sizes: I64) -> None:
    """Copy pieces. Join pieces that are adjacent on both sides."""
    if not len(sizes):
        return
    joined = (targets[:-1] + sizes[:-1] == targets[1:]) & (sources[:-1] + sizes[:-1] == sources[1:])
    starts = np.concatenate(([0], np.flatnonzero(~joined) + 1))
    lengths = np.add.reduceat(sizes, starts)
    for target, source, length in zip(
        targets[starts].tolist(), sources[starts].tolist(), lengths.tolist(), strict=True
    ):
        ctypes.memmove(target, source, length)


def copy_summed(targets: list[int], base: int, source: memoryview, starts: list[int], nbytes: int) -> list[bytes]:
    """Copy blocks of `nbytes` that lie at `starts` of `source`, whose address is `base`. Return their checksums."""
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
            while end < last and _follows(targets, first, end, nbytes) and _follows(starts, first, end, nbytes):
                end += 1
            ctypes.memmove(targets[first], base + starts[first], (end - first) * nbytes)
            sums += [checksum(source[start : start + nbytes]) for start in starts[first:end]]
            first = end
    return sums


def copy_pieces_summed(target: npt.NDArray[np.uint8], sources: list[int], sizes: list[int]) -> bytes:
    """Copy pieces of memory, one after another, into a block. Return the block's checksum."""
    state = Checksum()
    address, begin, end = target.ctypes.data, 0, 0
    for source, nbytes in zip(sources, sizes, strict=True):
        at = 0
        while at < nbytes:
            part = min(nbytes - at, PIECE_BYTES - (end - begin))
            ctypes.memmove(address + end, source + at, part)
            at, end = at + part, end + part
            if end - begin == PIECE_BYTES:
                state.update(target[begin:end])
                begin = end
    state.update(target[begin:end])
    return state.digest()


def _copy_summed(target: int, address: int, source: memoryview) -> bytes:
    state = Checksum()
    for at in range(0, len(source), PIECE_BYTES):
        piece = source[at : at + PIECE_BYTES]
        ctypes.memmove(target + at, address + at, len(piece))
        state.update(piece)
    return state.digest()


def _follows(addresses: list[int], first: int, at: int, nbytes: int) -> bool:
    """Return whether the piece at position `at` continues a run of neighbours that starts at `first`."""
    return addresses[at] == addresses[first] + (at - first) * nbytes
