"""The client that engines hold: the hot path in shared memory, the rest over the link."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dataplane.client import checks
from dataplane.client.driven import CacheTensor, Copy, Driven
from dataplane.client.integrity import VERIFY, Integrity, Verify
from dataplane.client.leases import Corrupt, Lease
from dataplane.client.link import ClientEvent, Link
from dataplane.client.memory import Memory
from dataplane.client.replicas import Replicas
from dataplane.client.reservations import Committed, Reservation
from dataplane.client.world import World
from dataplane.devices.runtime import Device, Event, Runtime
from dataplane.protocol import barrier
from dataplane.protocol import engine as wire
from dataplane.protocol.codec import encode
from dataplane.protocol.codes import Code, Outcome, ProtocolError, code_of
from dataplane.protocol.keys import DEFAULT_CHUNK_TOKENS, KEY_BYTES, tenant_fingerprint
from dataplane.protocol.layout import HOT_WORDS, I64, U64, pack_keys
from dataplane.protocol.salts import check_salt
from dataplane.protocol.spaces import MAX_BLOCK_BYTES, Space, check_space

Keys = Sequence[bytes] | bytes | U64

_log = logging.getLogger("larder.client")
_fingerprint = lru_cache(maxsize=4096)(tenant_fingerprint)
_check_salt = lru_cache(maxsize=4096)(check_salt)
_WRITE = int(Outcome.WRITE)
MAX_SPIN_S = 0.01


def attach(
    path: str | os.PathLike[str],
    spaces: Sequence[Space | wire.SpaceRequest],
    *,
    group: str = "",
    engine: str = "",
    timeout_s: float = 1.0,
    spin_s: float = 0.0,
    on_event: Callable[[ClientEvent], None] | None = None,
    checksums: bool = True,
    verify: Verify = "off",
) -> Client:
    """A client of the data plane at an engine socket, attached if one is there.

    `spaces` are the KV spaces of this process, written unless wrapped in `SpaceRequest(space, writes=False)`. `group`
    names the engine group (default: this process alone). `timeout_s` bounds every wait; for the first `spin_s` seconds
    of it (0.0003 is plenty) an answer is looked for without going to sleep: faster to reserve and commit where
    this thread has a core to itself, slower for everybody where it has not. `on_event` hears of lost and regained
    connections and of refusals (default: the log "larder.client").

    With `checksums` a commit carries the checksum of every block it publishes. `verify` says which blocks an acquire
    holds against theirs before it gives the lease: none ("off"), one of 64 at random ("sample"), or all ("always");
    blocks that lived through a crash of the data plane are looked at once in any case. A corrupt block is a miss.

    Raises ValueError for wrong arguments, AttachRefused when the data plane refuses the engine, and
    `barrier.UnsupportedMachine` off x86-64. A missing data plane raises nothing: the client misses until one comes.
    """
    barrier.check_machine()
    if not spaces:
        raise ValueError("expected at least one space")
    if timeout_s <= 0:
        raise ValueError(f"timeout_s must be positive, got {timeout_s}")
    if not 0 <= spin_s <= MAX_SPIN_S:
        raise ValueError(f"expected spin_s from 0 to {MAX_SPIN_S}, got {spin_s}")
    if verify not in VERIFY:
        raise ValueError(f"verify must be one of {', '.join(VERIFY)}, got {verify!r}")
    requests = [each if isinstance(each, wire.SpaceRequest) else wire.SpaceRequest(each) for each in spaces]
    for at, request in enumerate(requests):
        try:
            check_space(request.space, f"spaces[{at}]")
        except ProtocolError as error:
            raise ValueError(f"{error.field}: {error.message}") from None
    group = group or f"pid-{os.getpid()}"
    size = len(encode(wire.Attach(0, wire.VERSION, group, requests, engine)))
    if size > wire.MAX_DATAGRAM_BYTES - 16:
        raise ValueError(
            f"expected an attach of at most {wire.MAX_DATAGRAM_BYTES} bytes, got {size}: fewer spaces"
        )
    link = Link(str(Path(path)), group, engine, requests, timeout_s, on_event or _log_event, spin_s)
    link.attach()
    return Client(link, len(requests), checksums=checksums, verify=verify)


def _log_event(event: ClientEvent) -> None:
    level = logging.INFO if event.name == "attached" else logging.WARNING
    _log.log(level, "larder.%s %s", event.name, event.detail)


class Client:
    """One engine process's access to the cache. Made by `attach`."""

    def __init__(self, link: Link, spaces: int, *, checksums: bool, verify: Verify) -> None:
        self._link = link
        self._spaces = spaces
        self._checksums = checksums
        self._integrity = Integrity(verify)
        self._lock = threading.RLock()
        self._closed = False
        self._driven = Driven(link, self._lock)
        self._reservations: weakref.WeakSet[Reservation] = weakref.WeakSet()
        self._replicas: dict[str, Replicas] = {}
        """By device. Kept: a cache that was let go without an end has left extents open."""
        _clients.add(self)

    @property
    def connected(self) -> bool:
        """Attached to a data plane, as far as known."""
        return self._link.attached

    @property
    def mapped(self) -> list[Memory]:
        """Segments that are mapped now; those that the data plane gave up are not among them."""
        world = self._link.world
        return [] if world is None else list(world.segments.values())

    @property
    def epoch(self) -> int:
        """Which start of a data plane the readable memory is of; 0 for none."""
        return self._link.world.epoch if self._link.world is not None else 0

    # ---- reading

    def lookup(self, keys: Keys, *, tenant: str = "") -> int:
        """Leading blocks of a chain that are cached now, in every space of this client. Sends no message.

        The answer is a promise of nothing: only `acquire` holds blocks.
        """
        words = pack_keys(keys)
        with self._lock:
            world = self._world()
            if world is None:
                return 0
            hits = len(words)
            for number in world.spaces:
                hits = world.hits(words[:hits], number) if hits else 0
            world.note_lookup(_fingerprint(tenant), len(words), hits)
            return hits

    def acquire(self, keys: Keys, *, space: int | None = None, tenant: str = "") -> Lease:
        """Hold the leading cached blocks of a chain, in all spaces of this client (or the one at position `space`).

        `len(lease)` may be less than a look-up said, also 0. Sends no message, except for segments not seen before.
        """
        words = pack_keys(keys)
        if space is not None:
            self._check_position(space)
        lease = Lease()
        with self._lock:
            world = self._world()
            if world is None:
                return lease
            for number in world.spaces if space is None else [world.spaces[space]]:
                if not self._hold(world, lease, words, number):
                    break
        if self._integrity.wanted(world):
            self._examine(lease)
        return lease

    def _examine(self, lease: Lease) -> None:
        """Hold leased blocks against their checksums; what is corrupt ends the lease there and is reported."""
        for found in lease.examine(self._integrity.whole):
            if not self._integrity.take_report(found.descriptor, found.control):
                continue
            self._link.tell(
                ClientEvent(
                    "corrupt",
                    f"a block of {found.nbytes} bytes does not match its checksum",
                    {"descriptor": found.descriptor, "control": found.control},
                )
            )
            with self._lock:
                if self._link.world is found.world:
                    self._link.ask(partial(_report_request, found), checks.reported)

    def _hold(self, world: World, lease: Lease, words: U64, space: int) -> int:
        descriptors, rows = (
            world.hold(words, space) if world.membarrier else self._ask_hold(world, words, space)
        )
        segments = world.places(rows)
        if segments is None:
            self._map(world, world.unmapped(rows))
            trusted = not world.distrusted
            kept, segments = world.placed(rows)
            if kept < len(rows):
                world.drop(descriptors[kept:])
                descriptors, rows = descriptors[:kept], rows[:kept]
            if trusted and world.distrusted:
                self._link.tell(ClientEvent("fault", "a block of the index lies outside of its segment"))
        lease.add(world, descriptors, rows, segments)
        world.note_touches(descriptors, rows)
        return len(descriptors)

    def _ask_hold(self, world: World, words: U64, space: int) -> tuple[I64, U64]:
        """Lease by message, where the kernel has no membarrier."""
        words = words[: wire.MAX_KEYS_PER_REQUEST]
        world.begin_asking()
        answer = self._link.ask(
            lambda number: wire.Lease(number, space, words.tobytes()),
            checks.leased(len(words), world.index.max_blocks),
        )
        if not self._link.waiting:  # else until the late answer
            world.end_asking()
        if isinstance(answer, wire.Leased) and self._link.world is world:
            return world.take_over(checks.descriptors_of(answer), words, space)
        return np.empty(0, np.int64), np.empty((0, HOT_WORDS), np.uint64)

    def _map(self, world: World, wanted: list[int]) -> None:
        """Map segments that were not seen before; what cannot be had stays unmapped."""
        while wanted and self._link.attached and self._link.world is world:
            part, wanted = wanted[: wire.MAX_FDS_PER_DATAGRAM], wanted[wire.MAX_FDS_PER_DATAGRAM :]
            self._link.ask(partial(_map_request, part), checks.answers(wire.Mapped))
            if not world.segments.keys() >= set(part):
                return

    # ---- writing

    def reserve(self, keys: Keys, nbytes: int, *, tenant: str = "", space: int = 0) -> Reservation:
        """Ask for room for the missing blocks of a chain, each of `nbytes` bytes, charged to `tenant`.

        Give the whole chain of the request, ancestors first: blocks that are there already are touched with the rest,
        so that ancestors outlive their descendants. One round trip. Raises ValueError for wrong arguments; everything
        else is an outcome.
        """
        words = pack_keys(keys)
        if not 1 <= len(words) <= wire.MAX_KEYS_PER_REQUEST:
            raise ValueError(f"expected 1 to {wire.MAX_KEYS_PER_REQUEST} keys, got {len(words)}")
        if not 1 <= nbytes <= MAX_BLOCK_BYTES:
            raise ValueError(f"expected nbytes from 1 to {MAX_BLOCK_BYTES}, got {nbytes}")
        self._check_position(space)
        try:
            _check_salt(tenant)
        except ProtocolError as error:
            raise ValueError(f"tenant: {error.message}") from None
        reservation = Reservation(len(words), nbytes, self._commit, self._abort, checksums=self._checksums)
        self._reservations.add(reservation)
        with self._lock:
            world = self._world()
            if world is None:
                return reservation
            answer = self._link.ask(
                lambda number: wire.Reserve(number, world.spaces[space], tenant, words.tobytes(), nbytes),
                checks.reserved(len(words)),
            )
            if isinstance(answer, wire.Reserved):
                self._grant(reservation, world, answer)
            elif isinstance(answer, wire.Refused):
                reservation.refuse(code_of(answer.code))
                self._tell_refused("reserve", answer)
            elif isinstance(answer, Code):
                reservation.refuse(answer)
        return reservation

    def _grant(self, reservation: Reservation, world: World, answer: wire.Reserved) -> None:
        numbers = memoryview(answer.segments).cast("I")
        segments = {number for code, number in zip(answer.outcomes, numbers, strict=True) if code == _WRITE}
        if not segments <= world.segments.keys():
            self._map(world, sorted(segments - world.segments.keys()))
            if not segments <= world.segments.keys():
                self._link.send_abort(answer.reservation)
                reservation.refuse(Code.UNAVAILABLE)
                return
        try:
            reservation.grant(world, answer)
        except ProtocolError as error:
            self._link.distrust(error.message)

    def _commit(self, world: World, reservation: int, slots: bytes, checksums: bytes) -> Committed:
        with self._lock:
            if (
                self._link.world is not world
            ):  # its data plane is gone; numbers mean other things to the next one
                return Committed(0, Code.UNAVAILABLE)
            answer = self._link.ask(
                lambda number: wire.Commit(number, reservation, slots, checksums), checks.committed
            )
            if isinstance(answer, wire.Committed):
                return Committed(answer.blocks)
            if isinstance(answer, wire.Refused):
                self._tell_refused("commit", answer)
                return Committed(0, code_of(answer.code))
            if answer is Code.UNAVAILABLE:
                self._link.send_abort(reservation)
            return Committed(0, answer if isinstance(answer, Code) else Code.MALFORMED)

    def _abort(self, world: World, reservation: int) -> None:
        with self._lock:
            if self._link.world is world:
                answer = self._link.ask(
                    lambda number: wire.Abort(number, reservation), checks.answers(wire.Aborted)
                )
                if answer is Code.UNAVAILABLE:  # refused here: the data plane must hear of it all the same
                    self._link.send_abort(reservation)

    # ---- what the data plane copies by itself

    def register_cache(
        self,
        tensors: Sequence[CacheTensor],
        *,
        tokens_per_block: int,
        chunk_tokens: int = DEFAULT_CHUNK_TOKENS,
        space: int = 0,
    ) -> Code | None:
        """Let the data plane copy from and to this process's paged tensors, which share block numbers, for the space at
        position `space`; see `dataplane.client.driven`. It replaces the cache that was registered for that space.

        Waits up to 30 s, which the first one may need. Answers why it is not registered, None when it is; without a
        data plane (UNAVAILABLE) it is registered as soon as one is there. Raises ValueError for wrong arguments.
        """
        self._check_position(space)
        return self._driven.register(tensors, space, tokens_per_block, chunk_tokens)

    def unregister_cache(self, *, space: int = 0) -> None:
        """Nothing is copied for a space any more; waits for copies that run, within the time-out."""
        self._check_position(space)
        self._driven.unregister(space)

    def store_from(
        self,
        keys: Keys,
        blocks: Sequence[int] | npt.NDArray[np.integer],
        *,
        event: Event | bytes | None = None,
        tenant: str = "",
        space: int = 0,
        parent: bytes = b"",
    ) -> Copy:
        """Have missing blocks of a chain copied out of the registered cache and published, charged to `tenant`.

        Give the whole chain, as with `reserve`, and for every key as many numbers of the engine's blocks as a chunk
        has.
        `event` (or its handle) is waited for before anything is read. Answers when it is known what will be stored: one
        round trip; nothing of it is readable before all of it is there. Raises ValueError for wrong arguments;
        everything else is an outcome.
        """
        words = pack_keys(keys)
        self._check_position(space)
        if len(parent) not in (0, KEY_BYTES):
            raise ValueError(f"expected a parent of {KEY_BYTES} bytes, got {len(parent)}")
        try:
            _check_salt(tenant)
        except ProtocolError as error:
            raise ValueError(f"tenant: {error.message}") from None
        return self._driven.store(words, blocks, event, tenant, space, parent, checksums=self._checksums)

    def load_into(
        self,
        keys: Keys,
        blocks: Sequence[int] | npt.NDArray[np.integer],
        *,
        event: Event | bytes | None = None,
        space: int = 0,
        skip_blocks: int = 0,
    ) -> Copy:
        """Have the leading cached blocks of a chain copied into the registered cache: `Copy.hits` says how many, and
        what lies beyond is left as it is. The engine's first `skip_blocks` blocks are not written, and `blocks` may end
        within the last chunk: the rest of it is not copied.

        `event` (or its handle) is waited for before anything is written. Answers when it is known what is there; the
        blocks stay in the cache until the copy has ended. Raises ValueError for wrong arguments.
        """
        words = pack_keys(keys)
        self._check_position(space)
        return self._driven.load(words, blocks, event, space, skip_blocks)

    # ---- what lies on a device besides

    def replicas(self, runtime: Runtime, device: Device) -> Replicas:
        """Where leased blocks have a replica on a device, for all paged caches of this client there."""
        with self._lock:
            known = self._replicas.get(device.uuid)
            if known is None:
                known = self._replicas[device.uuid] = Replicas(self._link, self._lock, runtime, device)
            return known

    def _tell_refused(self, what: str, answer: wire.Refused) -> None:
        self._link.tell(
            ClientEvent(f"{what}_refused", answer.message, {"code": answer.code, "field": answer.field})
        )

    # ---- the end

    def _check_position(self, space: int) -> None:
        if not 0 <= space < self._spaces:
            raise ValueError(f"expected the position of one of {self._spaces} spaces, got {space}")

    def _world(self) -> World | None:
        if self._closed:
            return None
        self._link.maintain()
        return self._link.world

    def close(self) -> None:
        """Let everything go. Leases and views that are still in use stay valid until they are collected."""
        replicas = list(self._replicas.values())
        for each in replicas:  # it waits for threads that may need our lock
            each.close()
        with self._lock:
            if self._closed:
                return
            self._closed = True
            world = self._link.world
            writing = any(each.number for each in self._reservations)
            reading = any(each.reading for each in replicas)
            if self._link.attached and world is not None and world.idle and not writing and not reading:
                answer = self._link.ask(lambda number: wire.Detach(number), checks.answers(wire.Detached))
                if isinstance(answer, wire.Detached):
                    self._driven.left()
            self._link.close()

    def abandon(self) -> None:
        """In a forked child: forget everything without a word; the parent owns it."""
        self._closed = True
        self._lock = threading.RLock()
        self._link.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _map_request(segments: list[int], number: int) -> wire.Map:
    return wire.Map(number, segments)


def _report_request(found: Corrupt, number: int) -> wire.Report:
    return wire.Report(number, found.descriptor.to_bytes(4, "little"), found.control.to_bytes(8, "little"))


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
