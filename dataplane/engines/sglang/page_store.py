"""The pages of one rank of an engine in Larder: look up, load and store.

This module does not import SGLang. SGLang calls from its own threads: one looks up, one loads, one stores.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any

from dataplane.client.attaching import attach
from dataplane.client.client import Client
from dataplane.client.reservations import CommitResult
from dataplane.engines.guards import ErrorLog
from dataplane.engines.sglang.host_pages import HostPages
from dataplane.engines.sglang.page_keys import PageKeys
from dataplane.engines.sglang.settings import BackendSettings
from dataplane.protocol.engine import MAX_KEYS_PER_REQUEST, SpaceRequest
from dataplane.protocol.keys import KEY_BYTES
from dataplane.protocol.layout import I64
from dataplane.protocol.spaces import Space

BATCH_BYTES = 64 << 20
"""Bytes of one reservation: a long prompt becomes readable piece by piece."""
SHARE_BYTES = 1 << 20
"""Fewest bytes for which another thread copies."""
JOIN_S = 5.0
MAINTENANCE_S = 0.25
"""Interval at which an idle engine looks for a new data plane."""
LOOK_AGAIN_S = 0.005
"""Time between two look-ups while tiers load pages."""
DROPPED_S = 60.0
"""Time after a look-up when pages that were found and not loaded count as not used. SGLang drops prefetches that are
short, have no room in the host pool, or lost their request, without notice."""
NAMESPACE_BYTES = 16

_log = logging.getLogger("larder.sglang")


class PageStore:
    """Pages of one host pool."""

    def __init__(
        self,
        settings: BackendSettings,
        space: Space,
        pages: HostPages,
        *,
        writes: bool = True,
        errors: ErrorLog | None = None,
    ) -> None:
        """Attach, and start the threads. `writes`: whether this rank stores pages. Raise ValueError or
        UnsupportedMachine."""
        self._settings = settings
        self._pages = pages
        self._errors = errors or ErrorLog(_log)
        self._keys = PageKeys(settings.tenant)
        self._counted = (space.rank, space.pipeline_stage) == (0, 0) and writes
        """Whether look-ups count in the tenant's hit ratio: those of one rank of an engine do."""
        self._uncounted: deque[tuple[float, int]] = deque()
        """Pages that were found and are in no count yet, with the times at which they count as dropped."""
        self._uncounted_lock = threading.Lock()
        self._batch = max(1, min(MAX_KEYS_PER_REQUEST, BATCH_BYTES // pages.page_bytes))
        self._client: Client = attach(
            settings.socket,
            [SpaceRequest(space, writes=writes)],
            group=f"sglang-{os.getpid()}",
            engine=f"sglang rank {space.rank}",
            timeout_s=settings.timeout_s,
            checksums=settings.checksums,
            keep_trying=True,
            verify=settings.verify,
        )
        self._copiers = ThreadPoolExecutor(settings.copy_threads, thread_name_prefix="larder-copies")
        self._closed = threading.Event()
        self._maintenance = threading.Thread(target=self._maintain, name="larder-maintenance", daemon=True)
        self._maintenance.start()

    def _maintain(self) -> None:
        while not self._closed.wait(MAINTENANCE_S):
            try:
                self._client.maintain()
            except Exception:  # noqa: BLE001  the thread must go on
                self._errors.note("maintain")

    def exists(self, names: Sequence[str]) -> int:
        """Return how many leading pages are in memory.

        If tiers hold the next pages, or shared tiers may hold them, wait for them for at most `tier_timeout_s`. Without
        tiers, or if memory has all pages, no message is sent.
        """
        keys = self._keys.of(names)
        if self._settings.tier_timeout_s:
            self._wait_for_tiers(keys)
        cached_pages = self._client.lookup(keys, counted=False)
        if self._counted:
            self._count_found(len(names), cached_pages)
        return cached_pages

    def _count_found(self, pages: int, cached_pages: int) -> None:
        """Count the pages of a look-up that were not found, and those of earlier ones that SGLang has dropped. The
        found ones count when they are loaded."""
        now = time.monotonic()
        not_used = pages - cached_pages
        with self._uncounted_lock:
            while self._uncounted and self._uncounted[0][0] <= now:
                not_used += self._uncounted.popleft()[1]
            if cached_pages:
                self._uncounted.append((now + DROPPED_S, cached_pages))
        self._count(not_used, 0)

    def _count_loaded(self, pages: int, loaded: int) -> None:
        """Count pages that SGLang asked for after it found them, at most as many as were found."""
        counted = 0
        with self._uncounted_lock:
            while self._uncounted and counted < pages:
                deadline, cached_pages = self._uncounted.popleft()
                if cached_pages > pages - counted:
                    self._uncounted.appendleft((deadline, cached_pages - (pages - counted)))
                counted += min(cached_pages, pages - counted)
        self._count(counted, min(loaded, counted))

    def _count(self, requested: int, hits: int) -> None:
        if requested:
            self._client.count_lookup(requested, hits, tenant=self._settings.tenant)

    def _wait_for_tiers(self, keys: bytes) -> None:
        """Ask tiers for the pages that memory lacks, and wait until these are in memory, no tier has them, or they are
        late."""
        timeout_s = self._settings.tier_timeout_s
        deadline = time.monotonic() + timeout_s
        hits = self._client.lookup_tiers(keys, counted=False)
        first = max(0, hits.ready - 1)  # a block is stored with the key of the one before
        end = min(hits.ready + hits.coming + hits.unknown, first + MAX_KEYS_PER_REQUEST)
        requested_spaces = 0
        while hits.ready < end and (hits.coming or hits.unknown) and hits.estimate_s <= timeout_s:
            if not requested_spaces:  # the link may have had no room
                requested_spaces = self._client.prefetch(keys[first * KEY_BYTES : end * KEY_BYTES], wait_s=timeout_s)
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._closed.wait(min(LOOK_AGAIN_S, left_s)):
                return
            hits = self._client.lookup_tiers(keys, counted=False)

    def load(self, names: Sequence[str], indices: Any) -> list[bool]:
        """Copy the leading cached pages into the host pool, at the tokens with these indices. Return for each page
        whether it was copied."""
        targets = self._pages.addresses(indices, len(names))
        with self._client.acquire(self._keys.of(names)) as lease:
            copied = self._in_shares(
                len(lease), lambda first, end: lease.copy_pieces_to(targets[first:end], self._pages.sizes, first)
            )
        if self._counted:
            self._count_loaded(len(names), copied)
        return [at < copied for at in range(len(names))]

    def keys_of(self, names: Sequence[str]) -> bytes:
        """Return the keys of pages until the next `clear`."""
        return self._keys.of(names)

    def save(self, keys: bytes, indices: Any, parent: bytes = b"") -> list[bool]:
        """Copy pages out of the host pool and publish them with these keys. `parent`: the key of the page before them,
        if there is one and it is known. Return for each page whether it is cached now, or is being stored by another
        engine."""
        pages = len(keys) // KEY_BYTES
        sources = self._pages.addresses(indices, pages)
        saved: list[bool] = []
        for first in range(0, pages, self._batch):
            last = min(first + self._batch, pages)
            part = keys[first * KEY_BYTES : last * KEY_BYTES]
            saved += self._saved(self._save(part, sources[first:last], parent), last - first)
            parent = part[-KEY_BYTES:]
        return saved

    def _saved(self, result: CommitResult, count: int) -> list[bool]:
        """Log the pages that were refused. Return for each page whether it was accepted."""
        for code, pages in result.refused.items():
            if self._errors.due(f"refused {code.name}"):
                _log.warning("%d of %d pages were not stored: %s", pages, count, code.name.lower())
        refused = result.refused_blocks
        return [at not in refused for at in range(count)]

    def _save(self, keys: bytes, sources: I64, parent: bytes) -> CommitResult:
        sizes = self._pages.sizes

        def copy(first: int, end: int) -> int:
            reservation.copy_pieces_from(sources[first:end], sizes, first)
            return end - first

        with self._client.reserve(
            keys, self._pages.page_bytes, tenant=self._settings.tenant, parent=parent
        ) as reservation:
            if reservation.number:
                self._in_shares(len(sources), copy)
            return reservation.commit()

    def _in_shares(self, count: int, copy: Callable[[int, int], int]) -> int:
        """Call `copy(first, end)` for shares of `count` pages at once, which return how many leading pages they have
        copied. Return the number of leading pages that all of them have copied."""
        shares = min(self._settings.copy_threads, count, 1 + count * self._pages.page_bytes // SHARE_BYTES)
        bounds = list(pairwise(count * at // shares for at in range(shares + 1))) if count else []
        futures = [self._copiers.submit(copy, first, end) for first, end in bounds[1:]]
        try:
            copied = [copy(*bounds[0])] if bounds else []
        finally:
            wait(futures)  # the copies that were begun end by themselves; the pages are free only then
        copied += [future.result() for future in futures]
        leading = 0
        for (first, end), pages in zip(bounds, copied, strict=True):
            leading += pages
            if pages < end - first:
                break
        return leading

    def clear(self) -> None:
        """Make everything stored so far a miss for this rank. Other engines keep it."""
        self._keys = PageKeys(self._settings.tenant, os.urandom(NAMESPACE_BYTES))

    def close(self) -> None:
        """Wait for copies, and disconnect."""
        self._closed.set()
        self._maintenance.join(JOIN_S)
        self._copiers.shutdown()
        self._client.close()
