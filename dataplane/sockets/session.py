"""One connection to the engine socket: decode a datagram, call the core, send the answer with the memory that it names.

Every datagram is answered or ends the connection; no exception leaves `Session`.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from dataplane.base import tracing
from dataplane.copies.gpu_copies import GpuCopyService
from dataplane.core.node import Node
from dataplane.devices.errors import ELSEWHERE
from dataplane.io.peers import IN_FLIGHT, started_at
from dataplane.ipc.processes import Peer
from dataplane.memory.memory import NodeMemory
from dataplane.observe.trace import RequestSpans
from dataplane.protocol import engine as wire
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import Code, ProtocolError
from dataplane.protocol.engine import MAX_WAIT_S
from dataplane.protocol.events import EngineRefused
from dataplane.protocol.layout import H_MEMORY
from dataplane.tiering.service import TierService

DATAGRAMS_PER_TURN = 32
MAX_RETIRED_PER_ANSWER = 4096

# Plain integers, because an operation on enumeration flags costs as much as the system call.
_NO_WAIT = int(socket.MSG_DONTWAIT)
_SEND_FLAGS = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_decoder = decoder(wire.EngineRequest)
log = structlog.stdlib.get_logger()


@dataclass(frozen=True, slots=True)
class EngineServices:
    """What serves the requests of engines."""

    node: Node
    memory: NodeMemory
    clock: Callable[[], float]
    membarrier: bool
    gpu_copies: GpuCopyService
    tiers: TierService
    spans: RequestSpans


class Session:
    """One connection: an engine, or a peer that has not attached."""

    def __init__(
        self,
        services: EngineServices,
        connection: socket.socket,
        peer: Peer,
        attached: Callable[[int, int], None],
        detached: Callable[[int], None],
        closed: Callable[[int, str], None],
    ) -> None:
        """`attached` is called with the client number and the pidfd of an engine before the engine learns that it is
        attached, `detached` with its client number, and `closed` once with the number of the connection's file
        descriptor and a reason."""
        self._services = services
        self._node = services.node
        self._memory = services.memory
        self.connection = connection
        self.peer = peer
        self._attached, self._detached, self._closed = attached, detached, closed
        self.client = 0
        self._sent: set[int] = set()
        """Segments whose fd the engine has."""
        self._retired: list[int] = []
        """Retired segments that the engine has not been notified of yet."""
        self.open = True

    def on_readable(self) -> None:
        """Answer waiting datagrams, a bounded number per turn."""
        for _ in range(DATAGRAMS_PER_TURN):
            if not self.open:
                return
            try:
                data = self.connection.recv(wire.MAX_DATAGRAM_BYTES + 1, _NO_WAIT)
            except BlockingIOError:
                return
            except OSError as error:
                self.close(error.strerror or "connection failed")
                return
            if not data:
                self.close("connection closed")
                return
            self._answer(data)

    def _answer(self, data: bytes) -> None:
        request_id = 0
        try:
            if len(data) > wire.MAX_DATAGRAM_BYTES:
                raise ProtocolError(Code.MALFORMED, f"expected at most {wire.MAX_DATAGRAM_BYTES} bytes in a datagram")
            request: wire.EngineRequest = decode(_decoder, data)
            request_id = request.id
            self._serve(request)
        except ProtocolError as error:
            if error.code is Code.MALFORMED:
                self._node.totals.malformed_messages += 1
            self.send(wire.Refused(request_id, int(error.code), error.message, error.field))
        except Exception:  # a bug triggered by one engine must not take the cache from the others
            log.exception("engine.request_failed", pid=self.peer.pid)
            self.close("the data plane failed on a request")

    def _serve(self, request: wire.EngineRequest) -> None:
        now = self._services.clock()
        if isinstance(request, wire.Attach):
            self._attach(request, now)
        elif isinstance(request, wire.Ping):
            self._ping(request)
        elif not self.client:
            raise ProtocolError(Code.NOT_ATTACHED, "attach first")
        elif isinstance(request, wire.Reserve):
            self._reserve(request, now)
        elif isinstance(request, wire.Commit):
            self.send(wire.BlocksCommitted(request.id, self._node.commit(self.client, request, now)))
        elif isinstance(request, wire.Abort):
            self._node.abort(self.client, request, now)
            self.send(wire.Aborted(request.id))
        elif isinstance(request, wire.LeaseRequest):
            descriptors = self._node.lease(self.client, request)
            self.send(wire.Leased(request.id, b"".join(number.to_bytes(4, "little") for number in descriptors)))
        elif isinstance(request, wire.Report):
            self.send(wire.Reported(request.id, self._node.report(self.client, request, now)))
        elif isinstance(request, wire.Map):
            self._map(request)
        elif isinstance(request, wire.Detach):
            self._detach(request)
        elif isinstance(request, wire.MapGpuCopies):
            self._check_kin()
            self._services.gpu_copies.map(self, request)
        elif isinstance(request, wire.MapTiers):
            self._map_tiers(request)
        elif isinstance(request, wire.Prefetch):
            self._prefetch(request, now)
        elif isinstance(request, wire.ReportRequest):
            self.send(self._node.report_request(self.client, request, now))
        else:
            self._traced(request)

    def _traced(self, request: wire.Traced) -> None:
        """Serve a request in a span of the engine's trace."""
        if request.request.id != request.id:
            raise ProtocolError(
                Code.BAD_FIELD, f"expected the id of the request, {request.request.id}, got {request.id}", "id"
            )
        if not tracing.trace_id_of(request.traceparent):
            raise ProtocolError(
                Code.BAD_FIELD, f"expected a W3C traceparent, got {request.traceparent[:64]!r}", "traceparent"
            )
        with self._services.spans.engine_request(request, self._node.totals):
            self._serve(request.request)

    def _check_kin(self) -> None:
        """Raise ProtocolError unless the peer has this process's uid, and so could open device handles itself."""
        if self.peer.uid != os.geteuid():
            raise ProtocolError(
                Code.NOT_ALLOWED,
                f"the engine is of uid {self.peer.uid} and the data plane of {os.geteuid()}: "
                "memory of devices is opened for processes of one user; run both as one",
            )
        if self.peer.pid <= 0:
            raise ProtocolError(Code.DEVICE_REFUSED, f"another PID namespace: {ELSEWHERE}")

    def _map_tiers(self, request: wire.MapTiers) -> None:
        file = self._services.tiers.directory_file
        if not self.send(wire.TiersMapped(request.id, file.nbytes), [file.read_only_fd]):
            raise ProtocolError(Code.OUT_OF_MEMORY, IN_FLIGHT)

    def _prefetch(self, request: wire.Prefetch, now: float) -> None:
        tiering = self._node.tiering
        if not 0 <= request.wait_s <= MAX_WAIT_S:
            raise ProtocolError(Code.BAD_FIELD, f"expected 0 to {MAX_WAIT_S:g} seconds, got {request.wait_s}", "wait_s")
        if request.space not in self._node.engines[self.client].spaces:
            raise ProtocolError(Code.UNKNOWN_SPACE, f"space {request.space} is not attached", "space")
        if tiering is not None and request.wait_s:
            tiering.loads.request(self.client, request.space, request.keys, now + request.wait_s)
        elif tiering is not None:
            tiering.loads.withdraw(self.client, request.space, request.keys)
        self.send(wire.Prefetching(request.id))

    def _detach(self, request: wire.Detach) -> None:
        self._detach_cleanly(self._services.clock())
        self.send(wire.Detached(request.id))

    def _attach(self, request: wire.Attach, now: float) -> None:
        if self.client:
            raise ProtocolError(Code.ALREADY_ATTACHED, "this connection attached before")
        membarrier = self._services.membarrier and request.membarrier
        try:
            started = started_at(self.peer.pid)
            engine, spaces = self._node.attach(request, self.peer.pid, now, started)
        except ProtocolError as error:
            self._node.emit(EngineRefused(now, self.peer.pid, self.peer.uid, error.code.name.lower(), error.message))
            raise
        self.client = engine.client
        options = self._node.options
        area = self._memory.areas[self.client]
        self._attached(self.client, self.peer.pidfd)
        sent = self.send(
            wire.Attached(
                id=request.id,
                client=self.client,
                node=options.name,
                epoch=int(options.epoch, 16),
                spaces=spaces,
                membarrier=membarrier,
                reservation_ttl_s=options.reservation_ttl_s,
                memory=self._memory.index.cells[H_MEMORY],
                resumed=engine.resumed,
                traces=tracing.on(),
                hint_max_s=options.hint_max_s,
                tiers=True,
                requests=True,
                sessions=True,
            ),
            [] if engine.resumed else [self._memory.index_file.read_only_fd, area.fd],
        )
        if not sent:
            self._detach_cleanly(now)
            raise ProtocolError(Code.OUT_OF_MEMORY, IN_FLIGHT)

    def _detach_cleanly(self, now: float) -> None:
        self._node.detach_cleanly(self.client, now)
        self._detached(self.client)
        self.client = 0

    def _reserve(self, request: wire.Reserve, now: float) -> None:
        granted = self._node.reserve(self.client, request, now)
        grants, fds = self._grants(sorted(set(granted.segments.tolist()) - {0}))
        answer = wire.Reserved(
            id=request.id,
            reservation=granted.reservation,
            outcomes=granted.outcomes.tobytes(),
            segments=granted.segments.tobytes(),
            offsets=granted.offsets.tobytes(),
            grants=grants,
            retired=self._take_retired(),
        )
        if self.send(answer, fds):
            self._granted(grants)
        else:  # the engine asks for the segments that it lacks
            answer.grants = []
            self.send(answer)

    def _map(self, request: wire.Map) -> None:
        grants, fds = self._grants(request.segments)
        if not self.send(wire.SegmentsMapped(request.id, grants, self._retired[:MAX_RETIRED_PER_ANSWER]), fds):
            raise ProtocolError(Code.OUT_OF_MEMORY, IN_FLIGHT)
        self._granted(grants)
        self._take_retired()

    def _grants(self, segments: list[int]) -> tuple[list[wire.SegmentGrant], list[int]]:
        """Return grants and fds for segments that this engine may map and has not got yet, as many as fit in a
        datagram."""
        grants: list[wire.SegmentGrant] = []
        fds: list[int] = []
        missing = [number for number in segments if number not in self._sent][: wire.MAX_FDS_PER_DATAGRAM]
        for number, nbytes, writable in self._node.segments_for(self.client, missing):
            file = self._memory.segments[number]
            grants.append(wire.SegmentGrant(number, nbytes, writable))
            fds.append(file.fd if writable else file.read_only_fd)
        return grants, fds

    def _granted(self, grants: list[wire.SegmentGrant]) -> None:
        """Record grants that were sent to the engine."""
        self._sent.update(grant.segment for grant in grants)

    def segment_retired(self, number: int) -> None:
        """If the engine has the segment, notify it with the next answer."""
        if number in self._sent:
            self._sent.remove(number)
            self._retired.append(number)

    def _take_retired(self) -> list[int]:
        retired, self._retired = (self._retired[:MAX_RETIRED_PER_ANSWER], self._retired[MAX_RETIRED_PER_ANSWER:])
        return retired

    def _ping(self, request: wire.Ping) -> None:
        if request.version != wire.VERSION:
            raise ProtocolError(
                Code.VERSION_MISMATCH, f"this data plane speaks {wire.VERSION}, got {request.version}", "version"
            )
        self.send(wire.Serving(request.id, int(self._node.options.epoch, 16)))

    # ---- the connection

    def send(self, reply: wire.EngineReply, fds: list[int] | None = None) -> bool:
        """Send an answer without blocking. A peer that does not drain its socket loses the connection.

        Return False if nothing was sent because too many descriptors are in flight to processes that do not receive
        them.
        """
        if not self.open:
            return True
        try:
            if fds:
                socket.send_fds(self.connection, [encode(reply)], fds, _SEND_FLAGS)
            else:
                self.connection.send(encode(reply), _SEND_FLAGS)
        except BlockingIOError:
            self.close("the engine does not read its answers")
        except OSError as error:
            if error.errno == errno.ETOOMANYREFS and fds:
                return False
            self.close(error.strerror or "connection failed")
        return True

    def close(self, reason: str) -> None:
        """End the connection. The core settles the engine's leases and reservations."""
        if self.open:
            self.open = False
            self._closed(self.connection.fileno(), reason)
