"""Stores and loads that the data plane drives, from the request to the end. This module runs on the loop; the copies do
not.

A store combines reserve, copy and commit: only this module ends its reservation, and publishes it only if its engine is
still there. When an engine ends, its running copies are stopped, and the end waits for them: until they have
stopped, this process itself is accessing the engine's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dataplane.copies.copying import CopyFailed, CopyThreads
from dataplane.copies.devices import Devices
from dataplane.copies.driven.caches import CachePart, EngineCache
from dataplane.copies.driven.copy_requests import checked_blocks, parts_of, sums_of
from dataplane.copies.driven.host_pools import MappedSegments, OpenHostPool
from dataplane.copies.driven.registrations import Registration, check
from dataplane.copies.gpu_copies import GpuCopyReader, GpuCopyService
from dataplane.core.inprocess import DrivenCore
from dataplane.devices.paged import I64
from dataplane.io.loop import Loop
from dataplane.ipc.processes import Peer, has_exited
from dataplane.memory.shared_file import SharedFile
from dataplane.protocol.codes import Code, ProtocolError, ReserveOutcome
from dataplane.protocol.engine import (
    CacheRegistered,
    CacheUnregistered,
    Commit,
    CopyEnded,
    LoadBegun,
    LoadInto,
    Refused,
    RegisterCache,
    RegisterHostPool,
    Reserve,
    StoreBegun,
    StoreFrom,
    UnregisterCache,
)
from dataplane.protocol.spaces import Space

MAX_CACHES = 64
"""Limit per engine."""
MAX_HOST_POOLS = 4
"""Limit per engine."""
MAX_HOST_POOL_FILES = 256
"""Limit of all engines together: each file is a file descriptor of this process."""
MAX_COPIES = 64
"""Limit of copies in progress per engine."""
_WRITE = int(ReserveOutcome.WRITE)


class CopySession(GpuCopyReader, Protocol):
    """Interface of a session that its copies need."""

    peer: Peer

    @property
    def closed_by_peer(self) -> bool:
        """Whether the peer has closed the connection, according to the kernel."""


@dataclass(eq=False, slots=True)
class _RegisteredCache:
    """One registered cache."""

    cache: EngineCache | OpenHostPool
    running: int = 0
    when_idle: Callable[[], None] | None = None
    """Called when its last copy has ended."""


class DrivenCopyService:
    """State that all engines share: threads, devices, and the open caches."""

    def __init__(
        self,
        loop: Loop,
        core: DrivenCore,
        devices: Devices,
        gpu_copies: GpuCopyService,
        segments: Mapping[int, SharedFile],
        clock: Callable[[], float],
    ) -> None:
        """`segments` is the live mapping of the pool's segments."""
        self.core = core
        self.devices = devices
        self.gpu_copies = gpu_copies
        self.clock = clock
        self.copying = CopyThreads(loop)
        self._segments = MappedSegments(segments)
        self._caches: set[EngineCache | OpenHostPool] = set()
        self._engines: dict[int, EngineCopies] = {}

    def of(self, connection: CopySession) -> EngineCopies:
        """Return the copies of an engine; they are created on first use."""
        known = self._engines.get(connection.client)
        if known is None:
            known = self._engines[connection.client] = EngineCopies(self, connection)
        return known

    def known(self, client: int) -> EngineCopies | None:
        return self._engines.get(client)

    def ending(self, pid: int) -> EngineCopies | None:
        """Return the copies that still run for a process whose connection is gone."""
        for each in self._engines.values():
            if each.is_ending and not each.connection.open and each.connection.peer.pid == pid:
                return each
        return None

    def drives(self, client: int, reservation: int) -> bool:
        """Return whether this process fills a reservation."""
        known = self._engines.get(client)
        return known is not None and reservation in known.reservations

    def end(self, client: int, then: Callable[[], None], *, gone: bool = False) -> None:
        """End an engine: stop its copies, then call `then`. `gone`: the engine's process is gone."""
        known = self._engines.get(client)
        if known is None:
            then()
        else:
            known.end(then, gone=gone)

    def forget(self, client: int) -> None:
        self._engines.pop(client, None)

    def open(self, registration: Registration, done: Callable[[EngineCache | ProtocolError], None]) -> None:
        """Open a cache off the loop. Raises ProtocolError if too much work is waiting."""
        box: list[EngineCache | ProtocolError] = []

        def work() -> None:
            try:
                box.append(EngineCache(registration, self.devices))
            except ProtocolError as error:
                box.append(error)

        def ended(failed: CopyFailed | None) -> None:
            made = box[0] if box else ProtocolError(Code.DEVICE_REFUSED, str(failed), "device")
            if isinstance(made, EngineCache):
                self._caches.add(made)
            done(made)

        if not self.copying.submit(work, ended, self.devices):
            raise ProtocolError(Code.TOO_MANY_COPIES, "too many copies are queued on this node; try again later")

    def open_host_pool(self, message: RegisterHostPool, space: Space, fds: Sequence[int]) -> OpenHostPool:
        """Check and open a host pool, at once. The caller closes the given descriptors. Raises ProtocolError."""
        files = sum(each.files for each in self._caches if isinstance(each, OpenHostPool))
        if files + len(fds) > MAX_HOST_POOL_FILES:
            raise ProtocolError(
                Code.TOO_MANY_COPIES, f"at most {MAX_HOST_POOL_FILES} files of host pools are open", "files"
            )
        made = OpenHostPool(message, space, fds, self._segments)
        self._caches.add(made)
        return made

    def retired(self, number: int) -> None:
        """Release a segment of the pool that has no block that is being copied."""
        self.devices.retired(number)
        self._segments.retired(number)

    def close_cache(self, cache: EngineCache | OpenHostPool, then: Callable[[], None]) -> None:
        """Close an unused cache off the loop."""

        def ended(failed: CopyFailed | None) -> None:
            self._caches.discard(cache)
            if not any(isinstance(each, OpenHostPool) for each in self._caches):
                self._segments.clear()
            then()

        if not self.copying.submit(cache.close, ended, self.devices):
            cache.close()
            ended(None)

    def close(self) -> None:
        """Wait for running copies, and close all caches."""
        for each in self._engines.values():
            each.is_ending = True
        self.copying.close()
        for cache in self._caches:
            cache.close()
        self._caches.clear()
        self._segments.clear()


@dataclass(eq=False)
class EngineCopies:
    """Copies of one engine, for one of its connections."""

    shared: DrivenCopyService
    connection: CopySession
    is_ending: bool = False
    """Ending: no copy is started, and running ones stop soon."""
    reservations: set[int] = field(default_factory=set)
    """Reservations that are being filled."""
    _gone: bool = False
    _caches: dict[int, _RegisteredCache] = field(default_factory=dict)
    _last_cache: int = 0
    _last_copy: int = 0
    _running: int = 0
    _opening: int = 0
    _when_idle: list[Callable[[], None]] = field(default_factory=list)

    # ---- caches

    def register(self, message: RegisterCache) -> None:
        """Open a cache, then answer. Copies for an earlier connection of the process have ended by then.

        Raises ProtocolError.
        """
        shared, connection = self.shared, self.connection
        self._check_open()
        if len(self._caches) + self._opening >= MAX_CACHES:
            raise ProtocolError(Code.TOO_MANY_COPIES, f"at most {MAX_CACHES} caches of one engine are served")
        before = shared.ending(connection.peer.pid)
        if before is not None:
            self._opening += 1
            before.end(lambda: self._register_later(message), gone=False)
            return
        registration = check(message, shared.core.space(connection.client, message.space))

        def done(made: EngineCache | ProtocolError) -> None:
            self._opening -= 1
            if isinstance(made, ProtocolError):
                connection.send(Refused(message.id, int(made.code), made.message, made.field))
            elif self.is_ending:
                shared.close_cache(made, lambda: None)
            else:
                self._last_cache += 1
                self._caches[self._last_cache] = _RegisteredCache(made)
                group = made.group
                shared.gpu_copies.read_by(connection.client, made.device_uuid, made.space)
                connection.send(CacheRegistered(message.id, self._last_cache, group.blocks, group.blocks_per_chunk))
            self._settle()

        shared.open(registration, done)
        self._opening += 1

    def _register_later(self, message: RegisterCache) -> None:
        self._opening -= 1
        try:
            self.register(message)
        except ProtocolError as error:
            self.connection.send(Refused(message.id, int(error.code), error.message, error.field))
            self._settle()

    def register_host_pool(self, message: RegisterHostPool, fds: Sequence[int]) -> None:
        """Open a host pool, then answer. Copies for an earlier connection of the process have ended by then. The caller
        closes the given descriptors.

        Raises ProtocolError.
        """
        self._check_open()
        opened = sum(isinstance(each.cache, OpenHostPool) for each in self._caches.values())
        if opened + self._opening >= MAX_HOST_POOLS:
            raise ProtocolError(Code.TOO_MANY_COPIES, f"at most {MAX_HOST_POOLS} host pools of one engine are served")
        shared, connection = self.shared, self.connection
        pool = shared.open_host_pool(message, shared.core.space(connection.client, message.space), fds)
        self._opening += 1

        def answer() -> None:
            self._opening -= 1
            if self.is_ending:
                shared.close_cache(pool, lambda: None)
            else:
                self._last_cache += 1
                self._caches[self._last_cache] = _RegisteredCache(pool)
                connection.send(CacheRegistered(message.id, self._last_cache, pool.group.blocks, 1))
            self._settle()

        before = shared.ending(connection.peer.pid)
        if before is None:
            answer()
        else:
            before.end(answer, gone=False)

    def unregister(self, message: UnregisterCache) -> None:
        """Close a cache when its copies have ended, then answer. Raises ProtocolError."""
        known = self._cache(message.cache)
        del self._caches[message.cache]

        def answer() -> None:
            self.connection.send(CacheUnregistered(message.id))

        known.when_idle = lambda: self.shared.close_cache(known.cache, answer)
        self._leave(known)

    def _cache(self, number: int) -> _RegisteredCache:
        known = self._caches.get(number)
        if known is None:
            raise ProtocolError(Code.UNKNOWN_CACHE, f"no cache {number} is registered on this connection", "cache")
        return known

    def _check_open(self) -> None:
        if self.is_ending:
            raise ProtocolError(Code.NOT_ATTACHED, "this engine is leaving")

    # ---- stores

    def store(self, message: StoreFrom, now: float) -> None:
        """Reserve, answer, and start the copy. Raises ProtocolError; then nothing was done."""
        core, client = self.shared.core, self.connection.client
        known, blocks, block_count = self._checked(message)
        space, chunk_bytes = known.cache.space, known.cache.group.chunk_bytes
        granted = core.node.reserve(
            client, Reserve(0, space, message.tenant, message.keys, chunk_bytes, message.parent), now
        )
        number = granted.reservation
        outcomes = granted.outcomes.tobytes()
        if not number:
            self.connection.send(StoreBegun(message.id, 0, outcomes))
            return
        to_write: I64 = np.flatnonzero(granted.outcomes == _WRITE)
        self.reservations.add(number)
        sums: list[bytes] = []

        def end(failed: str) -> tuple[int, int, str]:
            self.reservations.discard(number)
            at = self.shared.clock()
            if not failed and not self._is_connected():
                failed = "the engine is gone"
            if failed:
                self._give_up(number, at)
                return 0, Code.COPY_FAILED, failed
            return core.node.commit(client, Commit(0, number, b"", b"".join(sums)), at), 0, ""

        try:
            parts = parts_of(
                known.cache,
                to_write,
                granted.segments[to_write].astype(np.int64),
                granted.offsets[to_write].astype(np.int64),
            )
            copy = self._begin(
                known, message, parts, blocks, range(block_count), end, sums if message.checksums else None
            )
        except ProtocolError:
            self.reservations.discard(number)
            self._give_up(number, now)
            raise
        self.connection.send(StoreBegun(message.id, copy, outcomes))

    def _is_connected(self) -> bool:
        """Return whether the engine is known to be alive and connected.

        An engine that no longer waits for a store closes its connection, and may then change the blocks. So the kernel
        is asked: the loop may not have seen the end of the connection yet.
        """
        connection = self.connection
        return (
            connection.open
            and not connection.closed_by_peer
            and not self._gone
            and not has_exited(connection.peer.pidfd)
        )

    def _give_up(self, reservation: int, now: float) -> None:
        try:
            self.shared.core.give_up(self.connection.client, reservation, now)
        except ProtocolError as error:
            if error.code is not Code.UNKNOWN_RESERVATION:
                raise

    # ---- loads

    def load(self, message: LoadInto, now: float) -> None:
        """Lease the leading cached blocks, answer, and start the copy. Raises ProtocolError; then nothing was done."""
        core, client = self.shared.core, self.connection.client
        known, blocks, count = self._checked(message)
        if not 0 <= message.skip_blocks <= count:
            raise ProtocolError(Code.BAD_BLOCKS, f"expected 0 to {count}, got {message.skip_blocks}", "skip_blocks")
        chunk_bytes = known.cache.group.chunk_bytes
        leased = core.hold(client, known.cache.space, message.keys, chunk_bytes, now)
        hits = len(leased)
        if not hits:
            self.connection.send(LoadBegun(message.id, 0, 0))
            return

        def end(failed: str) -> tuple[int, int, str]:
            core.release(leased.descriptors)
            return (0, Code.COPY_FAILED, failed) if failed else (hits, 0, "")

        try:
            gpu_addresses = self.shared.gpu_copies.addresses(known.cache.device_uuid, leased.descriptors)
            on_gpu = gpu_addresses != 0
            parts = parts_of(
                known.cache,
                np.flatnonzero(~on_gpu),
                np.array(leased.segments, np.int64)[~on_gpu],
                np.array(leased.offsets, np.int64)[~on_gpu],
            )
            if on_gpu.any():
                parts.append(CachePart(None, np.flatnonzero(on_gpu), gpu_addresses[on_gpu]))
            copy = self._begin(known, message, parts, blocks, range(message.skip_blocks, count), end, None)
        except ProtocolError:
            core.release(leased.descriptors)
            raise
        self.connection.send(LoadBegun(message.id, copy, hits))

    # ---- start a copy

    def _checked(self, message: StoreFrom | LoadInto) -> tuple[_RegisteredCache, I64, int]:
        """Return the cache of a request, its blocks (one row per chunk), and the number of given blocks. Raises
        ProtocolError."""
        self._check_open()
        known = self._cache(message.cache)
        if self._running >= MAX_COPIES:
            raise ProtocolError(Code.TOO_MANY_COPIES, f"at most {MAX_COPIES} copies of one engine are under way")
        blocks, count = checked_blocks(message, known.cache)
        return known, blocks, count

    def _begin(
        self,
        known: _RegisteredCache,
        message: StoreFrom | LoadInto,
        parts: Sequence[CachePart],
        blocks: I64,
        positions: range,
        end: Callable[[str], tuple[int, int, str]],
        sums: list[bytes] | None,
    ) -> int:
        """Start a copy off the loop and return its number. `end` settles it on the loop: it takes the failure, or "",
        and returns the number of blocks, a code and a message. `sums` gets the checksums of the copied chunks. Raises
        ProtocolError."""
        cache, to_device = known.cache, isinstance(message, LoadInto)

        def stop() -> bool:
            return self.is_ending or self.shared.copying.closing

        def work() -> None:
            if message.event:
                cache.wait(message.event, stop)
            if sums is not None and isinstance(cache, OpenHostPool):
                sums.extend(cache.read_summed(parts, blocks, stop))
                return
            cache.copy(parts, blocks, positions, stop, to_device=to_device)
            if sums is not None:
                sums.extend(sums_of(parts, cache.group.chunk_bytes))

        self._last_copy += 1
        copy = self._last_copy

        def ended(failed: CopyFailed | None) -> None:
            try:
                done, code, sentence = end("" if failed is None else str(failed) or "the copy failed")
            except ProtocolError as error:
                done, code, sentence = 0, error.code, error.message
            self.connection.send(CopyEnded(message.id, copy, done, int(code), sentence))
            self._running -= 1
            known.running -= 1
            self._leave(known)
            self._settle()

        if not self.shared.copying.submit(work, ended, cache):
            raise ProtocolError(Code.TOO_MANY_COPIES, "too many copies are queued on this node; try again later")
        self._running += 1
        known.running += 1
        return copy

    # ---- the end

    def end(self, then: Callable[[], None], *, gone: bool) -> None:
        """Stop, and call `then` when no copy runs."""
        self._gone = self._gone or gone
        self.is_ending = True
        self._when_idle.append(then)
        self._settle()

    @staticmethod
    def _leave(known: _RegisteredCache) -> None:
        if known.when_idle is not None and not known.running:
            when_idle, known.when_idle = known.when_idle, None
            when_idle()

    def _settle(self) -> None:
        """If this engine is ending and its last copy has ended, close its caches and continue its end."""
        if not self.is_ending or self._running or self._opening or not self._when_idle:
            return
        caches, self._caches = self._caches, {}
        for known in caches.values():
            self.shared.close_cache(known.cache, lambda: None)
        self.shared.forget(self.connection.client)
        waiting, self._when_idle = self._when_idle, []
        for call in waiting:
            call()
