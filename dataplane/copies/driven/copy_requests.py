"""What a store or a load asks for: the blocks of the engine's cache, and the memory of the chunks."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from dataplane.copies.copying import CopyFailed
from dataplane.copies.driven.caches import CachePart, EngineCache
from dataplane.copies.driven.host_pools import OpenHostPool
from dataplane.core.packed_keys import check_keys
from dataplane.devices.paged import I64
from dataplane.protocol.checksums import checksum
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import HANDLE_BYTES, LoadInto, StoreFrom


def checked_blocks(message: StoreFrom | LoadInto, cache: EngineCache | OpenHostPool) -> tuple[I64, int]:
    """Return the blocks of a request (one row per chunk), and the number of given blocks. Raises ProtocolError."""
    if len(message.event) not in (0, HANDLE_BYTES):
        raise ProtocolError(
            Code.BAD_EVENT, f"expected {HANDLE_BYTES} bytes, or none, got {len(message.event)}", "event"
        )
    if message.event and isinstance(cache, OpenHostPool):
        raise ProtocolError(Code.BAD_EVENT, "expected none: host memory has no events", "event")
    chunks = len(check_keys(message.keys))
    group = cache.group
    wanted = chunks * group.blocks_per_chunk
    count, rest = divmod(len(message.blocks), 4)
    # A load may end inside its last chunk.
    least = wanted - group.blocks_per_chunk + 1 if isinstance(message, LoadInto) else wanted
    if rest or not least <= count <= wanted:
        raise ProtocolError(
            Code.BAD_BLOCKS,
            f"expected {4 * wanted} bytes of {group.blocks_per_chunk} blocks for each of {chunks} keys, "
            f"got {len(message.blocks)}",
            "blocks",
        )
    blocks = np.zeros(wanted, np.int64)
    blocks[:count] = np.frombuffer(message.blocks, "<u4")
    highest = int(blocks.max())
    if highest >= group.blocks:
        raise ProtocolError(Code.BAD_BLOCKS, f"expected blocks from 0 to {group.blocks - 1}, got {highest}", "blocks")
    return blocks.reshape(chunks, group.blocks_per_chunk), count


def parts_of(cache: EngineCache | OpenHostPool, chunks: I64, segments: I64, offsets: I64) -> list[CachePart]:
    """Group chunks by segment. Raises ProtocolError."""
    parts = []
    try:
        for number in np.unique(segments).tolist():
            at = np.flatnonzero(segments == number)
            parts.append(CachePart(cache.segment(number), chunks[at], offsets[at]))
    except CopyFailed as error:
        raise ProtocolError(Code.COPY_FAILED, str(error)) from None
    return parts


def sums_of(parts: Sequence[CachePart], nbytes: int) -> list[bytes]:
    """Return the checksums of the chunks, in their order."""
    found: dict[int, bytes] = {}
    for part in parts:
        assert part.memory is not None  # stores always go to the pool
        for chunk, offset in zip(part.chunks.tolist(), part.offsets.tolist(), strict=True):
            found[chunk] = checksum((ctypes.c_uint8 * nbytes).from_address(part.memory.address + offset))
    return [found[chunk] for chunk in sorted(found)]
