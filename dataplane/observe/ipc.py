"""Samples the counters of the queues and stores in shared memory of this user, on a thread.

Other processes write these counters: they are copied, checked and bounded, and their memory is never mapped.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from dataplane.ipc import memory
from dataplane.ipc.memory import MemoryGone, OpenMemory, TooManyDescriptors
from dataplane.ipc.queue import stats as queues
from dataplane.ipc.queue.errors import QueueGone
from dataplane.ipc.store import stats as stores
from dataplane.ipc.store.errors import StoreCorrupted
from dataplane.protocol.stats.ipc import IpcQueueStats, IpcStats, IpcStoreStats

MAX_LISTED = 16
"""Maximum number of queues, and of stores, that are listed."""
MAX_READ = 64
"""Maximum number of queues and stores together that one sample reads."""
MAX_DESCRIPTORS = 20_000
"""Maximum number of open descriptors that one sample searches; each takes about 2 us."""
BUSY_SHARE = 0.01
"""Largest share of a CPU that samples take: a slow sample is followed by a longer pause."""
MAX_COUNT = (1 << 53) - 1
"""Larger counters are reported as this number, which every reader of JSON represents exactly."""
STOP_S = 30.0
_QUEUE_COUNTS = ("capacity_bytes", "messages", "bytes", "waits", "dropped", "dead_readers", "remote_readers")
_STORE_COUNTS = ("hits", "misses", "puts", "put_bytes", "evictions", "dead_processes")

log = structlog.stdlib.get_logger()


class IpcSampler:
    """Samples of all queues and stores, and totals over all samples."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._before: dict[str, tuple[float, int, int, int]] = {}
        """By identity: time, messages or puts, bytes, dead processes at the previous sample."""
        self._messages = self._message_bytes = self._put_bytes = self._dead = 0

    def sample(self) -> IpcStats:
        """Read the counters of the live queues and stores."""
        now = self._clock()
        stats_by_identity: dict[str, IpcQueueStats | IpcStoreStats] = {}
        problem = ""
        try:
            for opened in memory.find(most=MAX_DESCRIPTORS):
                if len(stats_by_identity) >= MAX_READ:
                    problem = f"there are more than {MAX_READ} queues and stores"
                    break
                if opened.kind in ("queue", "store") and opened.identity not in stats_by_identity:
                    read = self._read(opened)
                    if read is not None:
                        stats_by_identity[opened.identity] = read
        except TooManyDescriptors as error:
            problem = str(error)
        counts = {identity: self._count(now, stats) for identity, stats in stats_by_identity.items()}
        self._before = counts
        live_queues = [stats for stats in stats_by_identity.values() if isinstance(stats, IpcQueueStats)]
        live_stores = [stats for stats in stats_by_identity.values() if isinstance(stats, IpcStoreStats)]
        return IpcStats(
            at=now,
            queues=sorted(live_queues, key=_busiest)[:MAX_LISTED],
            stores=sorted(live_stores, key=_busiest)[:MAX_LISTED],
            queues_total=len(live_queues),
            stores_total=len(live_stores),
            messages=self._messages,
            message_bytes=self._message_bytes,
            put_bytes=self._put_bytes,
            dead_peers=self._dead,
            problem=problem,
        )

    def _read(self, opened: OpenMemory) -> IpcQueueStats | IpcStoreStats | None:
        try:
            fd = memory.open_through(opened.pid, opened.fd)
        except MemoryGone:
            return None
        try:
            return _queue(fd, opened) if opened.kind == "queue" else _store(fd, opened)
        except (QueueGone, StoreCorrupted, OSError):  # of another release, being created, or other memory
            return None
        finally:
            os.close(fd)

    def _count(self, now: float, stats: IpcQueueStats | IpcStoreStats) -> tuple[float, int, int, int]:
        """Set the rates of a queue or store, and add the counts since the previous sample to the totals."""
        if isinstance(stats, IpcQueueStats):
            count, nbytes, dead = stats.messages, stats.bytes, stats.dead_readers
        else:
            count, nbytes, dead = stats.puts, stats.put_bytes, stats.dead_processes
        at, count_before, bytes_before, dead_before = self._before.get(stats.identity, (now, count, nbytes, dead))
        added, added_bytes = max(count - count_before, 0), max(nbytes - bytes_before, 0)
        self._dead += max(dead - dead_before, 0)
        passed = now - at
        if isinstance(stats, IpcQueueStats):
            self._messages += added
            self._message_bytes += added_bytes
            stats.messages_per_s = added / passed if passed > 0 else 0.0
        else:
            self._put_bytes += added_bytes
            stats.puts_per_s = added / passed if passed > 0 else 0.0
        stats.bytes_per_s = added_bytes / passed if passed > 0 else 0.0
        return now, count, nbytes, dead


class IpcWatcher:
    """Samples every `interval_s` seconds, or less often if samples are slow. `latest` is None before the first one."""

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        self.latest: IpcStats | None = None
        self._interval_s = interval_s
        self._sampler = IpcSampler(clock)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ipc", daemon=True)
        if interval_s > 0:
            self._thread.start()

    def _run(self) -> None:
        pause_s = self._interval_s
        while not self._stop.wait(pause_s):
            began = time.thread_time()
            try:
                self.latest = self._sampler.sample()
            except Exception:  # a sample that fails must not end the thread
                log.exception("ipc.sample_failed")
            pause_s = max(self._interval_s, (time.thread_time() - began) / BUSY_SHARE)

    def close(self) -> None:
        """Stop sampling."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)


def _queue(fd: int, opened: OpenMemory) -> IpcQueueStats:
    read = queues.read_stats(fd, opened.name, opened.identity)
    running = [reader for reader in read.readers if reader.alive]
    return IpcQueueStats(
        identity=opened.identity[:64],
        name=opened.name,
        writer=read.writer,
        readers=len(running),
        lag_bytes=min(max((reader.lag_bytes for reader in running), default=0), MAX_COUNT),
        **_bounded(read, _QUEUE_COUNTS),
    )


def _store(fd: int, opened: OpenMemory) -> IpcStoreStats:
    read = stores.read_stats(fd, opened.name, opened.identity)
    return IpcStoreStats(
        identity=opened.identity[:64],
        name=opened.name,
        processes=len(read.pids),
        data_bytes=read.data_bytes,
        objects=read.objects,
        used_bytes=None if read.used_bytes is None else min(read.used_bytes, MAX_COUNT),
        **_bounded(read, _STORE_COUNTS),
    )


def _bounded(stats: object, names: Iterable[str]) -> dict[str, Any]:
    return {name: min(getattr(stats, name), MAX_COUNT) for name in names}


def _busiest(stats: IpcQueueStats | IpcStoreStats) -> tuple[float, str, str]:
    return -stats.bytes_per_s, stats.name, stats.identity
