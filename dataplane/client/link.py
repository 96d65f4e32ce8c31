"""Connection to the data plane: attach, send requests, detect a loss, attach again. Every wait is bounded."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count

from dataplane.client import checks
from dataplane.client.attachment import AttachedMemory
from dataplane.client.events import AttachRefused, ClientEvent
from dataplane.client.link_state import LinkState, LinkStep, RetrySchedule, advance
from dataplane.protocol import barrier
from dataplane.protocol import engine as wire
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import Code, ProtocolError, code_of
from dataplane.protocol.layout import LayoutError

RECEIVE_BYTES = 256 * 1024
CHECK_INTERVAL_S = 0.1
MAX_LATE_ANSWERS = 1024
"""Unexpected answers that one call reads: more than the socket of a data plane that was merely slow can hold."""
MAX_LATE_S = 0.005
ATTACH_S = 10.0
"""Longest wait for the answer to an attach request, unless the time-out is longer. Then the client connects again. A
data plane that is merely slow answers earlier."""

AnswerCallback = Callable[[wire.EngineReply, list[int]], None]
"""Handles an answer and the file descriptors that came with it. The caller closes the descriptors. Raises ProtocolError
if the answer does not match the request."""

NO_TERMS = wire.Attached(0, 0, "", 0, [], False, 0.0)
"""The terms before the first answer: the data plane accepts nothing that is optional."""
_decoder = decoder(wire.EngineReply)


class EngineLink:
    """Connection of one engine process. Callers hold `lock`."""

    def __init__(
        self,
        memory: AttachedMemory,
        path: str,
        group: str,
        engine: str,
        spaces: list[wire.SpaceRequest],
        timeout_s: float,
        emit: Callable[[ClientEvent], None],
        spin_s: float,
        traceparent: Callable[[], str] | None,
    ) -> None:
        """`memory` gets what the answers of the data plane bring. `traceparent` returns the current span as a W3C
        traceparent; None if the client does not trace."""
        self.lock = threading.RLock()
        """Serialises the calls of one client. A forked child has a new one."""
        self._memory = memory
        self._state = LinkState.DETACHED
        self._retries = RetrySchedule()
        self.attachments = 0
        """Number of times that this process has attached."""
        self._path = path
        self._group = group
        self._engine = engine
        self.spaces = spaces
        self._timeout_s = timeout_s
        self._spin_s = spin_s
        self.emit = emit
        self._socket: socket.socket | None = None
        self._ids = count(1)
        self._pending: set[int] = set()
        """Requests that timed out. New requests are refused at once until their answers arrive."""
        self._posted: dict[int, AnswerCallback] = {}
        """Handlers of the answers to posted requests, by request number."""
        self._full = False
        """Whether the socket had no room for the last request."""
        self._unsent_aborts: deque[int] = deque()
        """Reservations to abort, for whose messages the socket has had no room."""
        self._refusals: dict[str, str] = {}
        """The last refusal that was reported of each name, since the last attach."""
        self._check_at = 0.0
        self._attach_until = 0.0
        """When the answer to the attach request is not waited for any more."""
        self._membarrier = barrier.register()
        self._traceparent = traceparent
        self.terms = NO_TERMS
        """What the data plane accepts: its last answer to an attach request."""

    @property
    def attached(self) -> bool:
        return self._state is LinkState.ATTACHED

    @property
    def waiting(self) -> bool:
        """Whether an answer is outstanding whose request has timed out."""
        return bool(self._pending)

    # ---- keeping the connection

    def attach(self, *, keep_trying: bool) -> None:
        """Connect and attach, waiting at most the time-out. Without `keep_trying`, raise AttachRefused when the data
        plane refuses."""
        self._begin()
        if self._state is LinkState.ATTACHING:
            self._finish(time.monotonic() + self._timeout_s, first=not keep_trying)

    def maintain(self) -> None:
        """Detect a lost connection and make progress on a new one, without waiting. Cheap when the connection is up."""
        now = time.monotonic()
        if self._state is LinkState.ATTACHED:
            self._send_aborts()
            if now >= self._check_at:
                self._check_at = now + CHECK_INTERVAL_S
                self.receive()
        elif self._state is LinkState.ATTACHING:
            self._finish(now, first=False)
        elif self._state is LinkState.DETACHED:
            self._memory.look()
            if self._retries.due(now):
                self._begin()

    def _begin(self) -> None:
        connection: socket.socket | None = None
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
            connection.setblocking(False)
            connection.connect(self._path)
            request = wire.Attach(
                next(self._ids), wire.VERSION, self._group, self.spaces, self._engine, self._membarrier
            )
            self._memory.ask_to_resume(request)
            with suppress(BrokenPipeError):  # refused already: the socket holds the reason
                connection.send(encode(request))
        except OSError as error:
            if connection is not None:
                connection.close()
            self._retries.failed(time.monotonic())
            not_running = (errno.ENOENT, errno.ECONNREFUSED, errno.EAGAIN)  # or its backlog is full
            if error.errno not in not_running:
                self._emit_refusal(ClientEvent("refused", f"cannot attach: {error}"))
            return
        self._step(LinkStep.CONNECT)
        self._socket = connection
        self._attach_until = time.monotonic() + max(ATTACH_S, self._timeout_s)

    def _step(self, step: LinkStep) -> LinkState:
        """Advance the state, and return the one before."""
        before, self._state = self._state, advance(self._state, step)
        return before

    def _finish(self, deadline: float, *, first: bool) -> None:
        try:
            answer, fds = self._receive(deadline)
        except TimeoutError:
            if time.monotonic() >= self._attach_until:
                self.drop("no answer to attach")
            return
        except ProtocolError as error:
            self.protocol_failed(error.message)
            return
        except OSError as error:
            self.drop(str(error))
            return
        if isinstance(answer, wire.Attached):
            self._enter(answer, fds)
            return
        _close(fds)
        if not isinstance(answer, wire.Refused):
            self.protocol_failed(f"answered {type(answer).__name__.lower()} to an attach")
            return
        self.drop("attach refused")
        if answer.code == Code.EXPELLED:
            self._memory.forget()  # its leases no longer count
        self.emit_refused("refused", answer)
        if first:
            raise AttachRefused(code_of(answer.code), answer.message, answer.field)

    def _enter(self, answer: wire.Attached, fds: list[int]) -> None:
        try:
            self._memory.attach(answer, fds, len(self.spaces))
        except (LayoutError, ProtocolError, OSError, ValueError) as error:
            self.protocol_failed(f"cannot attach: {error}")
            return
        finally:
            _close(fds)
        self._step(LinkStep.ATTACH)
        self._refusals.clear()
        self.attachments += 1
        self.terms = answer
        self._full = False
        self._retries.attached()
        self._pending.clear()
        self._posted.clear()
        self.emit(ClientEvent("attached", answer.node, {"client": answer.client, "epoch": answer.epoch}))

    def drop(self, reason: str) -> None:
        """End the connection, so that the data plane publishes no store that it still copies. Attach again later."""
        if self._socket is not None:
            with suppress(OSError):  # a forked child may have the socket too
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None
        before = self._step(LinkStep.DROP)
        self._pending.clear()
        self._posted.clear()
        self._unsent_aborts.clear()  # the next attach lists what is still being written
        self._memory.end_asking()
        self._memory.look()
        if before is LinkState.ATTACHED:
            self._retries.lost(time.monotonic())
            self.emit(ClientEvent("lost", reason))
        else:
            self._retries.failed(time.monotonic())

    def protocol_failed(self, fault: str) -> None:
        """Handle a protocol violation: report it, drop the connection and its memory, and retry later."""
        self._retries.violated()
        if self.attached:
            self._memory.forget()
        self.emit(ClientEvent("fault", fault))
        self.drop(fault)

    def emit_refused(self, name: str, answer: wire.EngineReply | Code) -> None:
        """Report an answer of the data plane, if it is a refusal and not a repetition of the last one of this name."""
        if isinstance(answer, wire.Refused):
            self._emit_refusal(ClientEvent(name, answer.message, {"code": answer.code, "field": answer.field}))

    def _emit_refusal(self, event: ClientEvent) -> None:
        if event.detail != self._refusals.get(event.name):
            self._refusals[event.name] = event.detail
            self.emit(event)

    # ---- requests

    def request(self, make: Callable[[int], wire.EngineRequest], check: checks.Check) -> wire.EngineReply | Code:
        """Send a request and wait at most the time-out for its answer; return a Code if there is none.

        `check` raises ProtocolError if the answer does not match the request.
        """
        if not self.attached or self._socket is None:
            return Code.UNAVAILABLE
        if self._pending:
            self.receive()
            if self._pending or not self.attached:
                return Code.UNAVAILABLE
        number = next(self._ids)
        deadline = time.monotonic() + self._timeout_s
        result: wire.EngineReply | Code = Code.UNAVAILABLE
        try:
            with self._failures():
                if self._send(encode(self._traced(make(number)))):
                    answer = self._answer(number, deadline)
                    check(answer)
                    self._retries.answered()
                    result = answer
        except TimeoutError:
            self._pending.add(number)
            self.emit(ClientEvent("timeout", f"no answer within {self._timeout_s} s"))
            return Code.TIMEOUT
        return result

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Run a block that talks to the data plane. End the connection if the block raises an OSError other than
        TimeoutError, or a ProtocolError; the error is not raised again."""
        try:
            yield
        except TimeoutError:
            raise
        except ProtocolError as error:
            self.protocol_failed(error.message)
        except OSError as error:
            self.drop(str(error))

    def _send(self, data: bytes) -> bool:
        """Send a request whose answer is awaited, and return whether the socket had room for it. Wait for room at most
        the time-out, and not again until there was some. Raise OSError."""
        assert self._socket is not None
        was_full, self._full = self._full, True
        self._socket.settimeout(0.0 if was_full else self._timeout_s)
        try:
            self._socket.send(data)
        except (BlockingIOError, TimeoutError):
            if not was_full:
                self.emit(ClientEvent("timeout", f"no room for a request within {self._timeout_s} s"))
            return False
        self._full = False
        return True

    def _traced(self, request: wire.EngineRequest) -> wire.EngineRequest:
        """Return the request with the current span, if that is sampled, the request can carry it, and the data plane
        makes spans, too."""
        if self._traceparent is None or not self.terms.traces:
            return request
        current = self._traceparent()
        if isinstance(request, wire.TraceableRequest) and current.endswith("1"):
            return wire.Traced(request.id, current, request)
        return request

    def post(self, make: Callable[[int], wire.EngineRequest], callback: AnswerCallback) -> int:
        """Send a request without waiting. Return its number, or 0 if it could not be sent now.

        `callback` handles the answer when any later call reads it from the socket. It is never called if the
        connection is lost before that.
        """
        if not self.attached or self._socket is None or self._pending:
            return 0
        number = next(self._ids)
        request = self._traced(make(number))
        with self._failures(), suppress(BlockingIOError):
            self._socket.settimeout(0.0)
            self._socket.send(encode(request))
            self._posted[number] = callback
        return number if number in self._posted else 0

    def wait_for(self, number: int, timeout_s: float) -> None:
        """Take answers until the one to a posted request is handled, for at most `timeout_s` and the time-out."""
        deadline = time.monotonic() + min(timeout_s, self._timeout_s)
        for _ in range(MAX_LATE_ANSWERS):
            if number not in self._posted or not self._take_one(deadline):
                return

    def _answer(self, number: int, deadline: float) -> wire.EngineReply:
        """Take answers until the one to request `number`. Raise as `_take` does."""
        for _ in range(MAX_LATE_ANSWERS):
            answer = self._take(deadline)
            if answer is not None and answer.id == number:
                return answer
            if answer is not None:
                self._late(answer)
            if time.monotonic() > deadline:
                raise TimeoutError
        raise checks.fault(f"{MAX_LATE_ANSWERS} answers to nothing")

    def _take(self, deadline: float) -> wire.EngineReply | None:
        """Take one answer. Unless a posted request has a handler for it, map the segments that came with it, and return
        it. Raise TimeoutError, OSError (also when the connection ended) or ProtocolError."""
        answer, fds = self._receive(deadline)
        try:
            number = answer.id
            if not number and isinstance(answer, wire.Refused):
                # A data plane that does not know a request type cannot read the request's number. It is of an older
                # release. Only posted requests can be unknown to it: every release knows all other requests.
                number = min(self._posted, default=0)
            callback = self._posted.pop(number, None)
            if callback is None:
                self._memory.take(answer, fds)
                return answer
            callback(answer, fds)
            return None
        finally:
            _close(fds)

    def _receive(self, deadline: float) -> tuple[wire.EngineReply, list[int]]:
        """Return the next answer. Raise TimeoutError, OSError (also when the connection ended) or ProtocolError."""
        assert self._socket is not None
        now = time.monotonic()
        awake_until = min(deadline, now + self._spin_s)
        self._socket.settimeout(0.0 if awake_until > now else max(0.0, deadline - now))
        while True:
            try:
                data, fds = self._receive_datagram()
                break
            except BlockingIOError:
                now = time.monotonic()
            if now >= deadline:
                raise TimeoutError from None
            if now >= awake_until:
                self._socket.settimeout(deadline - now)
        if not data:
            _close(fds)
            raise ConnectionResetError("the data plane closed the connection")
        try:
            answer: wire.EngineReply = decode(_decoder, data)
        except ProtocolError:
            _close(fds)
            raise
        return answer, fds

    def _receive_datagram(self) -> tuple[bytes, list[int]]:
        assert self._socket is not None
        receive = partial(
            socket.recv_fds, self._socket, RECEIVE_BYTES, wire.MAX_FDS_PER_DATAGRAM, socket.MSG_CMSG_CLOEXEC
        )
        try:
            data, fds, _, _ = receive()
        except ConnectionResetError:  # reported once, before the last datagrams of the data plane
            data, fds, _, _ = receive()
        return data, fds

    def _late(self, answer: wire.EngineReply) -> None:
        """Handle an answer whose request has timed out: give back what it reserved or leased. Raise ProtocolError."""
        self._pending.discard(answer.id)
        if isinstance(answer, wire.Reserved) and answer.reservation:
            self.send_abort(answer.reservation)
        self._memory.release_late(answer)
        if not self.waiting:
            self._memory.end_asking()

    def receive(self) -> None:
        """Take answers that are in the socket, without waiting. Detects a closed connection. The next call reads what
        is left after MAX_LATE_S."""
        if not self.attached:
            return
        until = time.monotonic() + MAX_LATE_S
        for _ in range(MAX_LATE_ANSWERS):
            if time.monotonic() > until or not self._take_one(0.0):
                return

    def _take_one(self, deadline: float) -> bool:
        """Take one answer. Return False if none arrived or the connection is lost."""
        if self._socket is None:
            return False
        try:
            with self._failures():
                answer = self._take(deadline)
                if answer is not None:
                    self._late(answer)
        except TimeoutError:
            return False
        return self._socket is not None

    def send_abort(self, reservation: int) -> None:
        """Abort a reservation without waiting for the answer or for room in the socket. `maintain` sends the message
        again if there is no room now."""
        if self._socket is not None:
            self._unsent_aborts.append(reservation)
            self._send_aborts()

    def _send_aborts(self) -> None:
        with suppress(OSError):
            while self._unsent_aborts and self._socket is not None:
                self._socket.settimeout(0.0)
                self._socket.send(encode(wire.Abort(next(self._ids), self._unsent_aborts[0])))
                self._unsent_aborts.popleft()

    def abandon(self) -> None:
        """End the connection in a forked child, in which no other thread runs that could hold the lock."""
        self.lock = threading.RLock()
        self.close()

    def close(self) -> None:
        """End the connection permanently."""
        self._step(LinkStep.CLOSE)
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._memory.forget()


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
