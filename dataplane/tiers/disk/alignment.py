"""Reads and writes of a header and its data. O_DIRECT needs memory, offsets and sizes in multiples of 4 KiB.

Data whose memory is aligned moves without a copy, except for its last partial page. Other data goes through a bounce
buffer of the thread.
"""

import errno
import mmap
import os
import threading
from collections.abc import Callable, Sequence

import numpy as np

from dataplane.tiers.disk.parameters import PAGE_BYTES
from dataplane.tiers.header import HEADER_BYTES

_CACHED_BYTES = 64 << 20
"""A thread keeps a bounce buffer of up to this size."""
_ZEROS = bytes(PAGE_BYTES)
MAX_ADJACENT = 64
"""Slots of one call; a slot has at most three parts, and a call at most 1024."""


def round_up(length: int) -> int:
    """Return the length rounded up to whole pages."""
    return -(-length // PAGE_BYTES) * PAGE_BYTES


class _Scratch(threading.local):
    """Page-aligned memory of one thread."""

    def __init__(self) -> None:
        self._pages = memoryview(mmap.mmap(-1, 2 * PAGE_BYTES))

    def take(self, length: int) -> memoryview:
        """Return aligned memory that is valid until the thread's next call."""
        if length <= len(self._pages):
            return self._pages[:length]
        memory = memoryview(mmap.mmap(-1, round_up(length)))
        if length <= _CACHED_BYTES:
            self._pages = memory
        return memory[:length]


_scratch = _Scratch()


def is_aligned(data: memoryview) -> bool:
    """Return whether the memory begins at a page."""
    if not data.nbytes:
        return True
    address = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return bool(address % PAGE_BYTES == 0)


def write_page(fd: int, offset: int, page: bytes) -> None:
    """Write one page of 4096 bytes. Raises OSError."""
    memory = _scratch.take(PAGE_BYTES)
    memory[:] = page
    _all(os.pwritev, fd, [memory], offset)


def read_page(fd: int, offset: int) -> memoryview:
    """Return one page, which is valid until the thread's next call; shorter at the end of the file. Raises OSError."""
    memory = _scratch.take(PAGE_BYTES)
    return memory[: _all(os.preadv, fd, [memory], offset)]


def write_slots(
    fd: int, offset: int, slots: Sequence[tuple[bytes, memoryview]], slot_bytes: int, *, direct: bool
) -> None:
    """Write the headers and data of adjacent slots of one size, at most MAX_ADJACENT, with one call where the memory of
    all data allows it. Raises OSError; then any of them may be incomplete."""
    if direct and not all(is_aligned(data) for _, data in slots):
        for at, (header, data) in enumerate(slots):
            memory = _scratch.take(slot_bytes)
            memory[:HEADER_BYTES] = header
            end = HEADER_BYTES + data.nbytes
            memory[HEADER_BYTES:end] = data
            memory[end:] = _ZEROS[: slot_bytes - end]
            _all(os.pwritev, fd, [memory], offset + at * slot_bytes)
        return
    memory = _scratch.take(2 * PAGE_BYTES * len(slots))
    parts = []
    for at, (header, data) in enumerate(slots):
        page, rest_page = (memory[number * PAGE_BYTES : (number + 1) * PAGE_BYTES] for number in (2 * at, 2 * at + 1))
        page[:] = header
        paged_bytes = data.nbytes // PAGE_BYTES * PAGE_BYTES
        parts += [page, data[:paged_bytes]]
        if rest_bytes := data.nbytes - paged_bytes:
            rest_page[:rest_bytes] = data[paged_bytes:]
            rest_page[rest_bytes:] = _ZEROS[rest_bytes:]
            parts.append(rest_page)
    _all(os.pwritev, fd, parts, offset)


def read_slot(fd: int, offset: int, into: memoryview, *, direct: bool) -> memoryview | None:
    """Read the data of a slot, and return its header, which is valid until the thread's next call.

    Returns None if the file ends before the data does. Raises OSError.
    """
    length = into.nbytes
    if direct and not is_aligned(into):
        memory = _scratch.take(HEADER_BYTES + round_up(length))
        if _all(os.preadv, fd, [memory], offset) < HEADER_BYTES + length:
            return None
        into[:] = memory[HEADER_BYTES : HEADER_BYTES + length]
        return memory[:HEADER_BYTES]
    memory = _scratch.take(2 * PAGE_BYTES)
    paged_bytes = length // PAGE_BYTES * PAGE_BYTES
    parts = [memory[:HEADER_BYTES], into[:paged_bytes]]
    if rest_bytes := length - paged_bytes:
        parts.append(memory[HEADER_BYTES:])
    if _all(os.preadv, fd, parts, offset) < HEADER_BYTES + length:
        return None
    if rest_bytes:
        into[paged_bytes:] = memory[HEADER_BYTES : HEADER_BYTES + rest_bytes]
    return memory[:HEADER_BYTES]


def _all(move: Callable[[int, Sequence[memoryview], int], int], fd: int, parts: list[memoryview], offset: int) -> int:
    """Read or write all parts, and return the bytes moved: fewer only where a file that is read ends. Raises OSError
    with ENOSPC where a write stops."""
    total = sum(part.nbytes for part in parts)
    done = 0
    while done < total:
        moved = move(fd, parts, offset + done)
        if moved == 0:
            if move is os.pwritev:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            break
        done += moved
        if done < total:
            parts = _after(parts, moved)
    return done


def _after(parts: list[memoryview], moved: int) -> list[memoryview]:
    """Return what is left of the parts."""
    remaining = []
    for part in parts:
        if moved < part.nbytes:
            remaining.append(part[moved:])
        moved = max(moved - part.nbytes, 0)
    return remaining
