"""The engine's client: the hot path uses shared memory, everything else uses the link."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from math import inf
from time import perf_counter_ns

import numpy as np

from dataplane.base.tracing import NO_SPAN, Span
from dataplane.client import checks
from dataplane.client.attachment import AttachedMemory, Attachment
from dataplane.client.events import ClientEvent
from dataplane.client.gpu_copies import GpuCopies
from dataplane.client.integrity import IntegrityChecks, Verify
from dataplane.client.leases import Lease
from dataplane.client.link import EngineLink
from dataplane.client.memory import SharedMapping
from dataplane.client.reservations import Reservation
from dataplane.client.tiers import ClientTiers, TierHits, check_wait
from dataplane.devices.runtime import Device, DeviceRuntime
from dataplane.protocol import engine as wire
from dataplane.protocol.codes import Code, ProtocolError, ReserveOutcome, code_of
from dataplane.protocol.keys import KEY_BYTES, tenant_fingerprint
from dataplane.protocol.layout import ACQUIRE, HOT_WORDS, I64, LOOKUP, RESERVE, U64, longest_prefix, pack_keys
from dataplane.protocol.salts import check_salt
from dataplane.protocol.sessions import EXPECTED_SESSION, is_session
from dataplane.protocol.spaces import MAX_BLOCK_BYTES

Keys = Sequence[bytes] | bytes | U64

_fingerprint = lru_cache(maxsize=4096)(tenant_fingerprint)
_check_salt = lru_cache(maxsize=4096)(check_salt)
_WRITE = int(ReserveOutcome.WRITE)


class Client:
    """Access of one engine process to the cache. Created by `dataplane.client.attach`."""

    def __init__(self, link: EngineLink, memory: AttachedMemory, *, checksums: bool, verify: Verify) -> None:
        """`memory` is what the link attaches."""
        self._link = link
        self._memory = memory
        self._checksums = checksums
        self._integrity = IntegrityChecks(verify)
        self._closed = False
        self._tails = [request.space.tail_blocks for request in link.spaces]
        self._tiers = ClientTiers(link, link.spaces)
        self._reservations: weakref.WeakSet[Reservation] = weakref.WeakSet()
        self._gpu_copies: dict[str, GpuCopies] = {}
        """GPU copies by device UUID. Entries stay: a cache that was dropped without `close` has open extents."""
        _clients.add(self)

    @property
    def connected(self) -> bool:
        """Whether the client is attached to a data plane, as far as it knows."""
        return self._link.attached

    @property
    def spaces(self) -> int:
        """Number of this client's spaces."""
        return len(self._link.spaces)

    @property
    def mapped(self) -> list[SharedMapping]:
        """Segments that are currently mapped. Excludes segments that the data plane has retired."""
        attachment = self._memory.current
        return [] if attachment is None else list(attachment.segments.values())

    @property
    def epoch(self) -> int:
        """Epoch (start number) of the data plane that wrote the readable memory; 0 if there is none."""
        attachment = self._memory.current  # read once: another thread may drop it
        return 0 if attachment is None else attachment.epoch

    def request(self, traceparent: str = "", name: str = "larder.request") -> AbstractContextManager[Span]:
        """Run the calls of one request in a span, which continues the trace of `traceparent` (W3C), or else of the
        current OpenTelemetry context. Does nothing if the client does not trace."""
        return NO_SPAN

    # ---- reading

    def lookup(self, keys: Keys, *, tenant: str = "", counted: bool = True) -> int:
        """Return the number of blocks in the longest prefix of a chain that is cached in every space of this client. In
        a space with `tail_blocks`, a prefix is cached if its last blocks are. Sends no message.

        The blocks may be evicted at any time: only `acquire` and `hold` prevent that. To look a request up again, set
        `counted` to False; the look-up then does not count in the tenant's hit ratio.
        """
        started = perf_counter_ns()
        words = pack_keys(keys)
        with self._link.lock:
            attachment = self._attached()
            if attachment is None:
                return 0
            hits = attachment.hits(words, self._tails)
            if counted:
                attachment.note_lookup(_fingerprint(tenant), len(words), hits)
            attachment.count(LOOKUP, started)
            return hits

    def lookup_tiers(self, keys: Keys, *, tenant: str = "", counted: bool = True) -> TierHits:
        """Look up a chain in memory, as `lookup` does, and what is missing there in the tiers behind it and among the
        blocks that engines are writing. Sends no message for that.

        A block that a tier seems to hold may turn out to be missing when it is loaded.
        """
        started = perf_counter_ns()
        words = pack_keys(keys)
        with self._link.lock:
            attachment = self._attached()
            if attachment is None:
                return TierHits(0, 0, 0.0)
            flags = [attachment.ready_and_writing(words, number) for number in attachment.spaces]
            ready = [each for each, _ in flags]
            hits = longest_prefix(ready, self._tails)
            writing = longest_prefix([each for _, each in flags], self._tails) - hits
            if counted:
                attachment.note_lookup(_fingerprint(tenant), len(words), hits)
            found = self._tiers.look(words, ready, hits, writing)
            attachment.count(LOOKUP, started)
        return found

    def count_lookup(self, requested: int, hits: int, *, tenant: str = "") -> None:
        """Count a look-up of `requested` blocks in the tenant's hit ratio, which was made with `counted` False because
        it was not known yet whether its `hits` would be used."""
        with self._link.lock:
            attachment = self._attached()
            if attachment is not None:
                attachment.note_lookup(_fingerprint(tenant), requested, hits)

    def report_request(
        self, make: Callable[[int], wire.ReportRequest], answered: Callable[[wire.RequestReported], None]
    ) -> bool:
        """Report what a request got, without waiting. `make` returns the report with the number that it is given.
        `answered` is called when a later call, such as `receive`, reads the answer; never if the connection is lost
        before, or if the data plane refuses the report.

        Returns False if the report could not be sent: there is no data plane, it keeps no records of requests, or an
        answer is outstanding.
        """

        def take(answer: wire.EngineReply, fds: list[int]) -> None:
            checks.answers(wire.RequestReported)(answer)
            if isinstance(answer, wire.RequestReported):
                answered(answer)
            self._link.emit_refused("report_request_refused", answer)

        with self._link.lock:
            return self._attached() is not None and self._link.terms.requests and bool(self._link.post(make, take))

    def receive(self) -> None:
        """Take the answers that have arrived, without waiting."""
        with self._link.lock:
            self._link.receive()

    def prefetch(self, keys: Keys, *, wait_s: float = 5.0, first_space: int = 0) -> int:
        """Ask for the blocks of a chain that tiers hold and memory does not, in every space of this client from
        position `first_space` on, and return without waiting. A later look-up finds the blocks that were loaded. Loads
        that have not begun after `wait_s` seconds are cancelled.

        Returns `spaces`, or the position of the first space for which the request could not be sent: there is no data
        plane, it has no tiers, an answer is outstanding, or there is no room for more requests now. A later call can
        continue there. Raises ValueError for wrong arguments.
        """
        check_wait(wait_s)
        return self._prefetch(keys, wait_s, first_space)

    def cancel_prefetch(self, keys: Keys) -> bool:
        """Cancel an earlier `prefetch` of exactly these keys, except loads that have begun or that others need, and
        return without waiting.

        Returns False if not all requests could be sent. Raises ValueError for wrong keys.
        """
        return self._prefetch(keys, 0.0) == self.spaces

    def _prefetch(self, keys: Keys, wait_s: float, first_space: int = 0) -> int:
        words = pack_keys(keys)
        if not 1 <= len(words) <= wire.MAX_KEYS_PER_REQUEST:
            raise ValueError(f"expected 1 to {wire.MAX_KEYS_PER_REQUEST} keys, got {len(words)}")
        with self._link.lock:
            attachment = self._attached()
            if attachment is None:
                return first_space
            return self._tiers.prefetch(words, attachment.spaces, wait_s, first_space)

    def hold(self, keys: Keys) -> Lease:
        """Lease the leading blocks of a chain that are cached in every space of this client, without reading them; in a
        space with `tail_blocks`, only the last blocks of the chain.

        Unlike `acquire`, this method neither maps the blocks nor reports that they are used. It is for a process that
        decides which blocks another process of its engine group reads. The lease has a length, but its blocks cannot be
        read. If the kernel has membarrier, this method sends no message.
        """
        words = leading_words = pack_keys(keys)
        lease = self._new_lease()
        with self._link.lock:
            attachment = self._attached()
            if attachment is None:
                return lease
            for number, tail in zip(attachment.spaces, self._tails, strict=True):
                part = words[-tail:] if tail else leading_words
                descriptors, rows = self._lease_blocks(attachment, part, number)
                lease.add(attachment, descriptors, rows, {})
                if not tail:
                    leading_words = part[: len(descriptors)]
        return lease

    def acquire(self, keys: Keys, *, space: int | None = None, tenant: str = "", verify: bool = True) -> Lease:
        """Lease the leading cached blocks of a chain, in all spaces of this client or in the one at position `space`.

        `len(lease)` may be less than a look-up returned, and may be 0. Sends no message unless a segment has to be
        mapped for the first time. With `verify` False, pass each block to `examine` before reading it.
        """
        started = perf_counter_ns()
        words = pack_keys(keys)
        if space is not None:
            self._check_position(space)
        lease = self._new_lease()
        with self._link.lock:
            attachment = self._attached()
            if attachment is None:
                return lease
            for number in attachment.spaces if space is None else [attachment.spaces[space]]:
                if not self._hold(attachment, lease, words, number):
                    break
        if verify and self._integrity.active(attachment):
            self.examine(lease, slice(None))
        with self._link.lock:
            attachment.count(ACQUIRE, started)
        return lease

    def _new_lease(self) -> Lease:
        return Lease()

    def examine(self, lease: Lease, part: slice) -> None:
        """Verify a part of the leased blocks against their checksums, as far as the client verifies blocks. Truncate
        the lease at a corrupt block, and report the block."""
        for corrupt in lease.examine(self._integrity.count_intact, part):
            if not self._integrity.take_report(corrupt.descriptor, corrupt.control):
                continue
            fields = {"descriptor": corrupt.descriptor, "control": corrupt.control}
            problem = f"a block of {corrupt.nbytes} bytes does not match its checksum"
            self._link.emit(ClientEvent("corrupt", problem, fields))
            with self._link.lock:
                if self._memory.current is corrupt.attachment:
                    descriptor, control = (
                        corrupt.descriptor.to_bytes(4, "little"),
                        corrupt.control.to_bytes(8, "little"),
                    )
                    request = partial(wire.Report, descriptors=descriptor, controls=control)
                    self._link.emit_refused("report_refused", self._link.request(request, checks.reported))

    def _hold(self, attachment: Attachment, lease: Lease, words: U64, space: int) -> int:
        descriptors, rows = self._lease_blocks(attachment, words, space)
        segments = attachment.segments_of(rows)
        if segments is None:
            self._map(attachment, attachment.unmapped(rows))
            trusted = not attachment.distrusted
            readable, segments = attachment.mapped_prefix(rows)
            if readable < len(rows):
                attachment.drop(descriptors[readable:])
                descriptors, rows = descriptors[:readable], rows[:readable]
            if trusted and attachment.distrusted:
                self._link.emit(ClientEvent("fault", "a block of the index lies outside of its segment"))
        lease.add(attachment, descriptors, rows, segments)
        attachment.note_touches(descriptors, rows)
        return len(descriptors)

    def _lease_blocks(self, attachment: Attachment, words: U64, space: int) -> tuple[I64, U64]:
        """Lease the leading hits of a chain: by message on kernels without membarrier. Return descriptors and rows."""
        if attachment.membarrier:
            return attachment.hold(words, space)
        words = words[: wire.MAX_KEYS_PER_REQUEST]
        attachment.begin_asking()
        answer = self._link.request(
            lambda number: wire.LeaseRequest(number, space, words.tobytes()),
            checks.leased(len(words), attachment.index.max_blocks),
        )
        if not self._link.waiting:  # otherwise asking ends with the late answer
            attachment.end_asking()
        if isinstance(answer, wire.Leased) and self._memory.current is attachment:
            return attachment.take_over(checks.descriptors_of(answer), words, space)
        self._link.emit_refused("lease_refused", answer)
        return np.empty(0, np.int64), np.empty((0, HOT_WORDS), np.uint64)

    def _map(self, attachment: Attachment, numbers: list[int]) -> None:
        """Map segments that are not mapped yet. Segments that cannot be obtained stay unmapped."""
        while numbers and self._link.attached and self._memory.current is attachment:
            part, numbers = numbers[: wire.MAX_FDS_PER_DATAGRAM], numbers[wire.MAX_FDS_PER_DATAGRAM :]
            answer = self._link.request(partial(wire.Map, segments=part), checks.answers(wire.SegmentsMapped))
            self._link.emit_refused("map_refused", answer)
            if not attachment.segments.keys() >= set(part):
                return

    # ---- writing

    @property
    def hint_max_s(self) -> float:
        """Longest `ttl_s` and `pin_s` that `reserve` can ask for, in seconds; 0 if the data plane takes no hints."""
        return self._link.terms.hint_max_s

    @property
    def knows_sessions(self) -> bool:
        """Whether the data plane knows sessions; otherwise the `session` of `reserve` has no effect."""
        return self._link.terms.sessions

    def reserve(
        self,
        keys: Keys,
        nbytes: int,
        *,
        tenant: str = "",
        space: int = 0,
        parent: bytes = b"",
        ttl_s: float = 0.0,
        pin_s: float = 0.0,
        session: str = "",
    ) -> Reservation:
        """Request room for the missing blocks of a chain, each of `nbytes` bytes, charged to `tenant`.

        Pass the whole chain of the request, ancestors first: blocks that are already cached are touched too, so that
        ancestors outlive their descendants. Or pass a piece of the chain and, as its `parent`, the key before the first
        one (32 bytes). Takes one round trip. Raises ValueError for wrong arguments; every other failure is reported as
        an outcome.

        `ttl_s` and `pin_s` are hints in seconds, 0 for none; longer ones than `hint_max_s` are shortened. The data
        plane drops the blocks that are stored now after `ttl_s` without use. For `pin_s`, it evicts the chain's blocks,
        also those that are cached already, after the tenant's other blocks. `session` names the conversation that the
        chain belongs to; empty for none.
        """
        started = perf_counter_ns()
        if not (0 <= ttl_s < inf and 0 <= pin_s < inf):
            raise ValueError(f"expected ttl_s and pin_s of 0 or more seconds, got {ttl_s} and {pin_s}")
        words = pack_keys(keys)
        if not 1 <= len(words) <= wire.MAX_KEYS_PER_REQUEST:
            raise ValueError(f"expected 1 to {wire.MAX_KEYS_PER_REQUEST} keys, got {len(words)}")
        if not 1 <= nbytes <= MAX_BLOCK_BYTES:
            raise ValueError(f"expected nbytes from 1 to {MAX_BLOCK_BYTES}, got {nbytes}")
        if len(parent) not in (0, KEY_BYTES):
            raise ValueError(f"expected a parent of {KEY_BYTES} bytes, or none, got {len(parent)}")
        self._check_position(space)
        _check_tenant(tenant)
        if session and not is_session(session):
            raise ValueError(f"session: {EXPECTED_SESSION}")
        reservation = self._new_reservation(len(words), nbytes)
        with self._link.lock:
            self._reservations.add(reservation)
            attachment = self._attached()
            if attachment is None:
                return reservation
            make: Callable[..., wire.Reserve] = wire.Reserve
            if session and self._link.terms.sessions:
                make = partial(wire.SessionReserve, ttl_s=float(ttl_s), pin_s=float(pin_s), session=session)
            elif (ttl_s or pin_s) and self._link.terms.hint_max_s:
                make = partial(wire.HintedReserve, ttl_s=float(ttl_s), pin_s=float(pin_s))
            request = partial(
                make, space=attachment.spaces[space], tenant=tenant, keys=words.tobytes(), nbytes=nbytes, parent=parent
            )
            answer = self._link.request(request, checks.reserved(len(words)))
            if isinstance(answer, wire.Reserved):
                self._grant(reservation, attachment, answer)
            elif isinstance(answer, wire.Refused):
                reservation.refuse(code_of(answer.code))
                self._link.emit_refused("reserve_refused", answer)
            elif isinstance(answer, Code):
                reservation.refuse(answer)
            attachment.count(RESERVE, started)
        return reservation

    def _new_reservation(self, keys: int, nbytes: int) -> Reservation:
        return Reservation(keys, nbytes, self._link, self._memory, checksums=self._checksums)

    def _grant(self, reservation: Reservation, attachment: Attachment, answer: wire.Reserved) -> None:
        numbers = memoryview(answer.segments).cast("I")
        segments = {number for code, number in zip(answer.outcomes, numbers, strict=True) if code == _WRITE}
        if answer.reservation:
            attachment.writing.add(answer.reservation)
        if not segments <= attachment.segments.keys():
            self._map(attachment, sorted(segments - attachment.segments.keys()))
            if not segments <= attachment.segments.keys():
                attachment.writing.discard(answer.reservation)
                self._link.send_abort(answer.reservation)
                reservation.refuse(Code.UNAVAILABLE)
                return
        try:
            reservation.grant(attachment, answer)
        except ProtocolError as error:
            self._link.protocol_failed(error.message)

    # ---- GPU copies

    def gpu_copies(self, runtime: DeviceRuntime, device: Device) -> GpuCopies:
        """Return the GPU copies of leased blocks on a device, shared by all paged caches of this client there."""
        with self._link.lock:
            gpu_copies = self._gpu_copies.get(device.uuid)
            if gpu_copies is None:
                gpu_copies = self._gpu_copies[device.uuid] = GpuCopies(self._link, self._memory, runtime, device)
            return gpu_copies

    # ---- keeping the connection

    def map_tiers(self, timeout_s: float) -> None:
        """Wait for the directory of tiers for at most `timeout_s` seconds. `attach` calls this; after a reconnection,
        `maintain` and look-ups ask for the directory without waiting."""
        with self._link.lock:
            self._tiers.map(timeout_s)

    def maintain(self) -> None:
        """Detect a lost connection and continue to establish a new one, without waiting. Ask a new data plane for the
        directory of its tiers.

        Every other call looks after the connection too. Call this method periodically if the client may be idle for
        long and must be attached when it is needed.
        """
        with self._link.lock:
            if self._attached() is not None:
                self._tiers.refresh()

    # ---- closing

    def _check_position(self, space: int) -> None:
        if not 0 <= space < len(self._link.spaces):
            raise ValueError(f"expected the position of one of {len(self._link.spaces)} spaces, got {space}")

    def _attached(self) -> Attachment | None:
        if self._closed:
            return None
        self._link.maintain()
        if not self._link.attached:
            self._tiers.release()
        return self._memory.current

    def close(self) -> None:
        """Release everything. Leases and views that are still in use stay valid until they are collected."""
        gpu_copies = list(self._gpu_copies.values())
        for copies in gpu_copies:  # waits for threads that may need the client's lock
            copies.close()
        with self._link.lock:
            if self._closed:
                return
            self._closed = True
            attachment = self._memory.current
            writing = any(reservation.number for reservation in self._reservations)
            reading = any(copies.reading for copies in gpu_copies)
            if self._link.attached and attachment is not None and attachment.idle and not writing and not reading:
                self._link.request(lambda number: wire.Detach(number), checks.answers(wire.Detached))
            self._link.close()

    def abandon(self) -> None:
        """Forget everything without sending a message. For a forked child: the parent owns the connection."""
        self._closed = True
        self._gpu_copies = {}  # what they wait for is done by threads of the parent
        self._link.abandon()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_tenant(tenant: str) -> None:
    try:
        _check_salt(tenant)
    except ProtocolError as error:
        raise ValueError(f"tenant: {error.message}") from None


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client.abandon()


os.register_at_fork(after_in_child=_after_fork_in_child)
