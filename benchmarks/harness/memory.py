"""The ceiling: copies between two shared mappings of this process, with the C library's memcpy."""

import ctypes
import mmap
import os
from contextlib import suppress

MiB = 1 << 20


class Mapping:
    """Anonymous shared memory (a memfd), mapped once."""

    def __init__(self, nbytes: int, *, prefault: bool = True) -> None:
        descriptor = os.memfd_create("larder-bench", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, nbytes)
            flags = mmap.MAP_SHARED | (mmap.MAP_POPULATE if prefault else 0)
            self._map = mmap.mmap(descriptor, nbytes, flags=flags)
        finally:
            os.close(descriptor)
        self.view = memoryview(self._map)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        if prefault:
            for at in range(0, nbytes, mmap.PAGESIZE):
                self.view[at] = 1

    def close(self) -> None:
        """Unmap; remaining views keep the memory alive."""
        self.view.release()
        with suppress(BufferError):
            self._map.close()


class Memcpy:
    """Copies a batch from one mapping to the next part of another that is as large as the pool it is compared with,
    so that both find as little in the CPU's caches."""

    def __init__(self, batch_bytes: int, arena_bytes: int, piece_bytes: int = 0) -> None:
        """`piece_bytes`: of each call of memcpy, which copies large pieces in another way than small ones; default all
        of a batch."""
        self._pieces = range(0, batch_bytes, piece_bytes or batch_bytes)
        self._piece_bytes = piece_bytes or batch_bytes
        self.engine = Mapping(batch_bytes)
        """Stands for engine memory."""
        self.batch_bytes = batch_bytes
        self._arena = Mapping(arena_bytes)
        self._slots = arena_bytes // batch_bytes
        self._turn = 0

    def into_arena(self) -> None:
        """One batch, engine to arena."""
        arena, engine = self._next_offset(), self.engine.address
        for at in self._pieces:
            ctypes.memmove(arena + at, engine + at, self._piece_bytes)

    def out_of_arena(self) -> None:
        """One batch, arena to engine."""
        arena, engine = self._next_offset(), self.engine.address
        for at in self._pieces:
            ctypes.memmove(engine + at, arena + at, self._piece_bytes)

    def close(self) -> None:
        """Unmap both."""
        self.engine.close()
        self._arena.close()

    def _next_offset(self) -> int:
        self._turn = (self._turn + 1) % self._slots
        return self._arena.address + self._turn * self.batch_bytes
