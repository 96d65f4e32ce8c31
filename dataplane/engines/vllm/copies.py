"""Copies between the pool and the blocks of one KV-cache group: in CPU memory, and on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from dataplane.client.client import Client
from dataplane.client.gpu import PagedCache
from dataplane.client.reservations import CommitResult, Reservation
from dataplane.devices.paged import I64, TensorGroup
from dataplane.devices.runtime import DeviceEvent
from dataplane.engines.pages import Pages
from dataplane.engines.vllm.messages import GroupLayout
from dataplane.protocol.keys import KEY_BYTES


class Job(Protocol):
    """A load or save, which the engine's thread may cancel."""

    @property
    def cancelled(self) -> bool: ...


class GroupCopies(Protocol):
    """Copies of one KV-cache group of one worker. All calls but `mark` are made on the connector's threads."""

    layout: GroupLayout

    @property
    def group(self) -> TensorGroup:
        """The group's tensors."""

    def open(self, client: Client, space: int) -> None:
        """Use the client, and its space at position `space`, for all copies. Raise DeviceError."""

    def mark(self) -> DeviceEvent | None:
        """Return an event that follows the work that the engine has enqueued; None in CPU memory. Raise DeviceError."""

    def load(self, keys: bytes, first: int, blocks: I64, after: DeviceEvent | None, job: Job) -> tuple[int, int]:
        """Copy the chunks of `keys`, from block `first` of the first chunk on, into the engine's blocks.

        Blocks with the number 0 are skipped. Return the number of leading entries of `blocks` that were loaded or
        skipped, and the number of bytes that were copied.
        """

    def save(
        self, reservation: Reservation, blocks: Sequence[int], after: DeviceEvent | None, job: Job
    ) -> CommitResult | None:
        """Copy the engine's blocks into a reservation and commit it. Return None, or a result without blocks, if the
        job was cancelled before all were copied."""

    def close(self) -> None:
        """Wait for copies that are under way, and release their resources."""


class CpuCopies:
    """A group in CPU memory. The engine has finished a step when it calls the connector, so copies need no event."""

    def __init__(self, pages: Pages, layout: GroupLayout) -> None:
        self.layout = layout
        self._pages = pages
        self._client: Client | None = None
        self._space = 0

    @property
    def group(self) -> TensorGroup:
        return self._pages.group

    def open(self, client: Client, space: int) -> None:
        self._client, self._space = client, space

    def mark(self) -> DeviceEvent | None:
        return None

    def load(self, keys: bytes, first: int, blocks: I64, after: DeviceEvent | None, job: Job) -> tuple[int, int]:
        assert self._client is not None
        pages, nbytes = self._pages, 0
        per_chunk = pages.blocks_per_chunk
        for begin, end in present(blocks):
            low, last = first + begin, -(-(first + end) // per_chunk)
            chunk = low // per_chunk
            chunk_keys = keys[chunk * KEY_BYTES : last * KEY_BYTES]
            with self._client.acquire(chunk_keys, space=self._space, verify=False) as lease:
                for at in range(last - chunk):
                    if job.cancelled:
                        return low - first, nbytes
                    self._client.examine(lease, slice(at, at + 1))  # one at a time: it may take longer than the copy
                    if at >= len(lease) or lease.nbytes(at) != pages.chunk_bytes:
                        return low - first, nbytes
                    high = min(first + end, (chunk + at + 1) * per_chunk)
                    source = lease.array(at)
                    pages.scatter(source, blocks[low - first : high - first], low - (chunk + at) * per_chunk)
                    nbytes += (high - low) * pages.chunk_bytes // per_chunk
                    low = high
                    del source
        return min(len(blocks), max(0, len(keys) // KEY_BYTES * per_chunk - first)), nbytes

    def save(
        self, reservation: Reservation, blocks: Sequence[int], after: DeviceEvent | None, job: Job
    ) -> CommitResult | None:
        per_chunk = self._pages.blocks_per_chunk
        for at in reservation.writable:
            if job.cancelled:
                return None
            self._pages.gather(blocks[at * per_chunk : (at + 1) * per_chunk], reservation.array(at))
        return None if job.cancelled else reservation.commit()

    def close(self) -> None:
        self._client = None


class DeviceCopies:
    """A group on a device. Its copies follow the work on the engine's stream."""

    def __init__(
        self,
        group: TensorGroup,
        layout: GroupLayout,
        cache_of: Callable[[Client], PagedCache],
        record: Callable[[PagedCache, DeviceEvent], None],
    ) -> None:
        """`cache_of` makes the paged cache of a client; `record` records an event on the engine's current stream."""
        self.layout = layout
        self._group = group
        self._cache_of = cache_of
        self._record = record
        self._client: Client | None = None
        self._cache: PagedCache | None = None
        self._space = 0

    @property
    def group(self) -> TensorGroup:
        return self._group

    def open(self, client: Client, space: int) -> None:
        self._client, self._space, self._cache = client, space, self._cache_of(client)

    def mark(self) -> DeviceEvent | None:
        assert self._cache is not None
        event = self._cache.event()
        self._record(self._cache, event)
        return event

    def load(self, keys: bytes, first: int, blocks: I64, after: DeviceEvent | None, job: Job) -> tuple[int, int]:
        assert self._client is not None
        assert self._cache is not None
        per_chunk, nbytes = self._group.blocks_per_chunk, 0
        for begin, end in present(blocks):
            chunk = (first + begin) // per_chunk
            last = -(-(first + end) // per_chunk)
            lease = self._client.acquire(keys[chunk * KEY_BYTES : last * KEY_BYTES], space=self._space)
            within = first + begin - chunk * per_chunk
            complete_chunks = 0
            while complete_chunks < len(lease) and lease.nbytes(complete_chunks) == self._group.chunk_bytes:
                complete_chunks += 1
            count = max(0, min(end - begin, complete_chunks * per_chunk - within))
            cancelled = job.cancelled  # a copy that has begun ends
            if count and not cancelled:
                numbers = blocks[begin : begin + count].tolist()
                if not self._cache.load(lease, numbers, first=within, after=after).finish():
                    return begin, nbytes
                nbytes += count * self._group.chunk_bytes // per_chunk
            else:
                lease.release()
            if count < end - begin or cancelled:
                return begin + (0 if cancelled else count), nbytes
        return len(blocks), nbytes

    def save(
        self, reservation: Reservation, blocks: Sequence[int], after: DeviceEvent | None, job: Job
    ) -> CommitResult | None:
        assert self._cache is not None
        if job.cancelled:
            return None
        needed = len(reservation.outcomes) * self._group.blocks_per_chunk
        store = self._cache.store(reservation, [int(block) for block in blocks[:needed]])
        return store.all(after=after).finish(lambda: not job.cancelled)

    def close(self) -> None:
        cache, self._cache, self._client = self._cache, None, None
        if cache is not None:
            cache.close()


def present(blocks: I64) -> list[tuple[int, int]]:
    """Return runs (begin, end) of blocks that are not 0."""
    if len(blocks) and blocks.all():
        return [(0, len(blocks))]
    edges = np.flatnonzero(np.diff(np.concatenate(([False], blocks != 0, [False])).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
