"""An engine's pages in a memfd, which the data plane copies."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dataplane.client import Space, attach
from dataplane.client.engine_memory import HostPool
from dataplane.protocol.engine import HostPiece

PAGES = 12
PIECE_BYTES = 40_000
PAGE_BYTES = 2 * PIECE_BYTES
SPACE = Space(model="host", layout="test:pages", block_bytes=PAGE_BYTES, block_tokens=16)
PIECES = [HostPiece(0, at * PAGES * PIECE_BYTES, PIECE_BYTES, PIECE_BYTES) for at in range(2)]
"""Keys and values of a page, each in its own half of the file."""


class HostMemory:
    """Pages of two pieces."""

    def __init__(self) -> None:
        self.nbytes = -(-PAGES * PAGE_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE
        self.fd = os.memfd_create("host-pool", os.MFD_CLOEXEC)
        os.posix_fallocate(self.fd, 0, self.nbytes)
        self._mapping = mmap.mmap(self.fd, self.nbytes)
        self.bytes: npt.NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8)
        self.pages = self.bytes[: PAGES * PAGE_BYTES].reshape(2, PAGES, PIECE_BYTES)
        self.pool = HostPool([self.fd], PIECES, PAGES)

    def fill(self, seed: int) -> None:
        """Write noise into all pages."""
        self.pages[:] = np.random.default_rng(seed).integers(0, 256, self.pages.shape, np.uint8)

    def content(self, numbers: Sequence[int]) -> list[bytes]:
        """Return the bytes of pages."""
        return [self.pages[:, number].tobytes() for number in numbers]

    def close(self) -> None:
        os.close(self.fd)


class HostEngine(HostMemory):
    """An engine with registered pages."""

    def __init__(self, socket: str, **options: Any) -> None:
        super().__init__()
        self.client = attach(socket, [SPACE], **{"timeout_s": 30.0, **options})

    def register(self) -> Any:
        return self.client.register_host_pool(self.pool)

    def close(self) -> None:
        self.client.close()
        super().close()
