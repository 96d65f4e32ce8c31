"""The connection to the data plane: attach, ask, notice that it is gone, attach again. No wait is unbounded."""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dataplane.client import checks
from dataplane.client.memory import Memory
from dataplane.client.peer import Process
from dataplane.client.world import World
from dataplane.protocol import barrier
from dataplane.protocol.codec import decode, decoder, encode
from dataplane.protocol.codes import Code, ProtocolError, code_of
from dataplane.protocol.engine import (
    MAX_FDS_PER_DATAGRAM,
    MAX_KEYS_PER_REQUEST,
    VERSION,
    Abort,
    Attach,
    Attached,
    Commit,
    CopyEnded,
    EngineReply,
    EngineRequest,
    Leased,
    Mapped,
    Refused,
    Reserved,
    SpaceRequest,
)
from dataplane.protocol.layout import LayoutError

RECEIVE_BYTES = 256 * 1024
FIRST_RETRY_S = 0.02
LAST_RETRY_S = 1.0
EAGER_S = 3.0
"""A data plane that was lost is tried at the first pace for so long: most come back within a second."""
CHECK_INTERVAL_S = 0.1
MAX_LATE_ANSWERS = 1024
"""Answers to nothing that one call reads: more than the socket can hold of a data plane that was only slow."""
MAX_LATE_S = 0.005

Hear = Callable[[EngineReply, list[int]], None]
"""Takes an answer and the descriptors that came with it, which stay the caller's. Raises ProtocolError for what is no
answer to the request."""

_decoder = decoder(EngineReply)


class AttachRefused(Exception):
    """A data plane is there and does not take this engine: `code` and the sentence it gave."""

    def __init__(self, code: Code, message: str, field: str) -> None:
        super().__init__(f"{code.name.lower()}: {message}" + (f" ({field})" if field else ""))
        self.code = code
        self.field = field


@dataclass(frozen=True, slots=True)
class ClientEvent:
    """Something an engine may want to log: `attached`, `lost`, `refused`, `timeout`, `reserve_refused`,
    `commit_refused`, `corrupt`: a block does not match its checksum and was not given out, or `fault`: the data plane
    is broken, and what it said was not used."""

    name: str
    detail: str = ""
    fields: dict[str, Any] = field(default_factory=dict)


class Link:
    """One engine process's connection. The caller serialises calls."""

    def __init__(
        self,
        path: str,
        group: str,
        engine: str,
        spaces: list[SpaceRequest],
        timeout_s: float,
        tell: Callable[[ClientEvent], None],
        spin_s: float = 0.0,
    ) -> None:
        self.world: World | None = None
        """Memory that may be read: of the present attachment, or of one whose data plane crashed."""
        self.attached = False
        self.attachments = 0
        """How often this process was attached."""
        self.planes = 0
        """How many data planes gave it memory or went on with it. One that takes this client up again, with the memory
        and as the process that it was, counts once."""
        self.on_copy: Callable[[EngineReply], bool] = lambda answer: False
        """Told of answers that nobody waits for; whether it was one about a copy of the data plane's."""
        self.plane: Process | None = None
        """The data plane at the other end of the connection, or of the last one."""
        self._path = path
        self._group = group
        self._engine = engine
        self._spaces = spaces
        self._timeout_s = timeout_s
        self._spin_s = spin_s
        self.tell = tell
        self._socket: socket.socket | None = None
        self._next_id = 0
        self._unanswered: set[int] = set()
        """Requests that timed out; until their answers came, new requests are refused at once."""
        self._posted: dict[int, Hear] = {}
        """Who hears the answers to requests that nobody waits for."""
        self._memory = 0
        """Identity of the world's index memory."""
        self._writing: set[int] = set()
        """Reservations of the world that are open: this process may be writing there."""
        self._eager_until = 0.0
        self._retry_at = 0.0
        self._retry_s = FIRST_RETRY_S
        self._faulty = False
        """The last connection ended with a fault and no answer was right since."""
        self._unreachable = ""
        self._check_at = 0.0
        self._membarrier = barrier.register()

    @property
    def waiting(self) -> bool:
        """An answer is outstanding that nobody waits for any more."""
        return bool(self._unanswered)

    # ---- keeping the connection

    def attach(self) -> None:
        """Connect and attach now, waiting at most the time-out. Raises AttachRefused when the data plane says no."""
        self._begin()
        if self._socket is not None:
            self._finish(time.monotonic() + self._timeout_s, first=True)

    def maintain(self) -> None:
        """Notice a lost connection and work on a new one, without waiting. Cheap when nothing is wrong."""
        now = time.monotonic()
        if self.attached:
            if now >= self._check_at:
                self._check_at = now + CHECK_INTERVAL_S
                self._take_late_answers()
        elif self._socket is not None:
            self._finish(now, first=False)
        elif now >= self._retry_at:
            self._begin()

    def _begin(self) -> None:
        connection: socket.socket | None = None
        try:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
            connection.setblocking(False)
            connection.connect(self._path)
            request = Attach(
                self._take_id(), VERSION, self._group, self._spaces, self._engine, self._membarrier
            )
            if self.world is not None and self._memory:
                request.resume, request.resume_memory = self.world.client, self._memory
                request.writing = sorted(self._writing)
            with suppress(BrokenPipeError):  # turned away already: why lies in the socket
                connection.send(encode(request))
        except OSError as error:
            if connection is not None:
                connection.close()
            self._later()
            self._tell_unreachable(error)
            return
        self._unreachable = ""
        self._socket = connection
        self.plane = Process.behind(connection)

    def _tell_unreachable(self, error: OSError) -> None:
        if error.errno in (
            errno.ENOENT,
            errno.ECONNREFUSED,
            errno.EAGAIN,
        ):  # not there, or its backlog is full
            self._unreachable = ""
        elif str(error) != self._unreachable:
            self._unreachable = str(error)
            self.tell(ClientEvent("refused", f"cannot attach: {error}"))

    def _finish(self, deadline: float, *, first: bool) -> None:
        try:
            answer, fds = self._receive(deadline)
        except TimeoutError:
            if time.monotonic() - deadline > self._timeout_s:
                self._drop("no answer to attach")
            return
        except ProtocolError as error:
            self.distrust(error.message)
            return
        except OSError as error:
            self._drop(str(error))
            return
        if isinstance(answer, Attached):
            self._enter(answer, fds)
            return
        _close(fds)
        if not isinstance(answer, Refused):
            self.distrust(f"answered {type(answer).__name__.lower()} to an attach")
            return
        self._drop("attach refused")
        self.tell(ClientEvent("refused", answer.message, {"code": answer.code, "field": answer.field}))
        if first:
            raise AttachRefused(code_of(answer.code), answer.message, answer.field)

    def _enter(self, answer: Attached, fds: list[int]) -> None:
        try:
            checks.attached(answer, len(self._spaces))
            if answer.resumed:
                self._resume(answer, fds)
                return
            if len(fds) != 2:
                raise checks.fault(f"attached: expected 2 file descriptors, got {len(fds)}")
            index = Memory.map(fds[0], writable=False)
            area = Memory.map(fds[1], writable=True)
            world = World(
                index, area, answer.spaces, answer.client, answer.epoch, membarrier=answer.membarrier
            )
        except (LayoutError, ProtocolError, OSError, ValueError) as error:
            self.distrust(f"cannot attach: {error}")
            return
        finally:
            _close(fds)
        self.world = world
        self._memory = answer.memory
        self._writing.clear()
        self.planes += 1
        self._attached(answer)

    def _resume(self, answer: Attached, fds: list[int]) -> None:
        """The data plane went on with our memory: world, counters and views stay as they are. Raises ProtocolError."""
        world = self.world
        if world is None or fds or answer.memory != self._memory:
            raise checks.fault("attached: resumed what was not asked for")
        if answer.client != world.client or answer.spaces != world.spaces:
            raise checks.fault(
                f"attached: resumed as client {answer.client} with spaces {answer.spaces[:16]}"
            )
        self.planes += answer.epoch != world.epoch
        world.resume(answer.epoch, membarrier=answer.membarrier)
        self._attached(answer)

    def _attached(self, answer: Attached) -> None:
        self.attached = True
        self.attachments += 1
        if not self._faulty:
            self._retry_s = FIRST_RETRY_S
        self._unanswered.clear()
        self._posted.clear()
        self.tell(ClientEvent("attached", answer.node, {"client": answer.client, "epoch": answer.epoch}))

    def _drop(self, reason: str) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        was, self.attached = self.attached, False
        self._unanswered.clear()
        self._posted.clear()
        if self.world is not None:
            self.world.end_asking()
        if self.world is not None and self.world.closed:
            self.world = None  # it stopped in good order: let its memory go
        self._later()
        if was:
            if not self._faulty:  # it may be back already
                self._eager_until = time.monotonic() + EAGER_S
                self._retry_at = 0.0
            self.tell(ClientEvent("lost", reason))

    def distrust(self, fault: str) -> None:
        """The data plane is broken: tell, have no more to do with it and its memory, and try again later."""
        self._faulty = True
        if self.attached and self.world is not None:
            self.world.end_asking()
            self.world = None
        self.tell(ClientEvent("fault", fault))
        self._drop(fault)

    def _later(self) -> None:
        now = time.monotonic()
        if now < self._eager_until and not self._faulty:
            self._retry_at = now + FIRST_RETRY_S
            return
        self._retry_at = now + self._retry_s
        self._retry_s = min(LAST_RETRY_S, self._retry_s * 2)

    # ---- asking

    def ask(
        self, make: Callable[[int], EngineRequest], check: checks.Check, timeout_s: float = 0.0
    ) -> EngineReply | Code:
        """Send a request and wait for its answer, at most the time-out or longer where told so; a Code when there is
        none.

        `check` raises ProtocolError for what is no answer to this request.
        """
        if not self.attached or self._socket is None:
            return Code.UNAVAILABLE
        if self._unanswered:
            self._take_late_answers()
            if self._unanswered or not self.attached:
                return Code.UNAVAILABLE
        number = self._take_id()
        patience = max(self._timeout_s, timeout_s)
        deadline = time.monotonic() + patience
        try:
            self._socket.settimeout(self._timeout_s)
            request = make(number)
            if isinstance(request, (Commit, Abort)):  # whoever ends a reservation is done with its bytes
                self._writing.discard(request.reservation)
            self._socket.send(encode(request))
            answer = self._answer(number, deadline)
            check(answer)
            if isinstance(answer, Reserved) and answer.reservation:
                self._writing.add(answer.reservation)
        except TimeoutError:
            self._unanswered.add(number)
            self.tell(ClientEvent("timeout", f"no answer within {patience} s"))
            return Code.TIMEOUT
        except ProtocolError as error:
            self.distrust(error.message)
            return Code.UNAVAILABLE
        except OSError as error:
            self._drop(str(error))
            return Code.UNAVAILABLE
        self._faulty = False
        self._retry_s = FIRST_RETRY_S
        return answer

    def post(self, make: Callable[[int], EngineRequest], hear: Hear) -> int:
        """Send a request and do not wait; its number, 0 when it could not be sent now.

        The answer is heard by whatever takes it from the socket; never, when the connection is lost before.
        """
        if not self.attached or self._socket is None or self._unanswered:
            return 0
        number = self._take_id()
        try:
            self._socket.settimeout(0.0)
            self._socket.send(encode(make(number)))
        except BlockingIOError:
            return 0
        except OSError as error:
            self._drop(str(error))
            return 0
        self._posted[number] = hear
        return number

    def wait_for(self, number: int, patience_s: float) -> None:
        """Take answers until the one to a posted request was heard, at most so long, and never beyond the time-out."""
        deadline = time.monotonic() + min(patience_s, self._timeout_s)
        for _ in range(MAX_LATE_ANSWERS):
            if number not in self._posted or not self._take_one(deadline):
                return

    def _heard(self, answer: EngineReply, fds: list[int]) -> bool:
        """Whether it answers what was posted. Raises ProtocolError."""
        number = answer.id
        if not number and isinstance(answer, Refused):
            # A data plane that does not know the request cannot read its number. It is of an older release: all else
            # that is sent was known to every one.
            number = min(self._posted, default=0)
        hear = self._posted.pop(number, None)
        if hear is None:
            return False
        try:
            hear(answer, fds)
        finally:
            _close(fds)
        return True

    def _answer(self, number: int, deadline: float) -> EngineReply:
        for _ in range(MAX_LATE_ANSWERS):
            answer, fds = self._receive(deadline)
            if not self._heard(answer, fds):
                self._keep(answer, fds)
                if answer.id == number:
                    return answer
                self._late(answer)
            if time.monotonic() > deadline:
                raise TimeoutError
        raise checks.fault(f"{MAX_LATE_ANSWERS} answers to nothing")

    def _receive(self, deadline: float) -> tuple[EngineReply, list[int]]:
        """The next answer. Raises TimeoutError, OSError (also when the connection ended) and ProtocolError."""
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
            answer: EngineReply = decode(_decoder, data)
        except ProtocolError:
            _close(fds)
            raise
        return answer, fds

    def _receive_datagram(self) -> tuple[bytes, list[int]]:
        assert self._socket is not None
        try:
            data, fds, _, _ = socket.recv_fds(
                self._socket, RECEIVE_BYTES, MAX_FDS_PER_DATAGRAM, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:  # said once, ahead of the data plane's last words
            data, fds, _, _ = socket.recv_fds(
                self._socket, RECEIVE_BYTES, MAX_FDS_PER_DATAGRAM, socket.MSG_CMSG_CLOEXEC
            )
        return data, fds

    def _keep(self, answer: EngineReply, fds: list[int]) -> None:
        """Map memory that came with an answer, and let go what it says is retired. Raises ProtocolError."""
        try:
            if isinstance(answer, (Reserved, Mapped)) and self.world is not None:
                checks.grants(answer.grants, len(fds))
                self.world.add_segments(answer.grants, fds)
                self.world.retire_segments(answer.retired)
        finally:
            _close(fds)

    def _late(self, answer: EngineReply) -> None:
        """An answer that nobody waits for any more: what it reserved is given back."""
        if isinstance(answer, CopyEnded):
            self.on_copy(answer)
            return
        self._unanswered.discard(answer.id)
        if self.on_copy(answer):
            return
        if isinstance(answer, Reserved) and answer.reservation:
            self.send_abort(answer.reservation)
        if self.world is None:
            return
        if isinstance(answer, Leased):
            checks.leased(MAX_KEYS_PER_REQUEST, self.world.index.max_blocks)(answer)
            self.world.let_go(checks.descriptors_of(answer))
        if not self.waiting:
            self.world.end_asking()

    def _take_late_answers(self) -> None:
        """Read what lies in the socket, without waiting; notices a closed connection. The rest waits for next time."""
        until = time.monotonic() + MAX_LATE_S
        for _ in range(MAX_LATE_ANSWERS):
            if time.monotonic() > until or not self._take_one(0.0):
                return

    def _take_one(self, deadline: float) -> bool:
        """Take one answer. False: none came, or there is no connection any more."""
        if self._socket is None:
            return False
        try:
            answer, fds = self._receive(deadline)
            if not self._heard(answer, fds):
                self._keep(answer, fds)
                self._late(answer)
        except TimeoutError:
            return False
        except ProtocolError as error:
            self.distrust(error.message)
        except OSError as error:
            self._drop(str(error))
        return self._socket is not None

    def hear(self) -> None:
        """Take what lies in the socket, without waiting."""
        if self.attached:
            self._take_late_answers()

    def fileno(self) -> int | None:
        """The descriptor at which more can be waited for; None without a connection."""
        connection = self._socket
        return connection.fileno() if connection is not None and self.attached else None

    def send_abort(self, reservation: int) -> None:
        """Give a reservation up without waiting, neither for the answer nor for room in the socket."""
        self._writing.discard(reservation)
        if self._socket is None:
            return
        number = self._take_id()
        with suppress(OSError):
            self._socket.settimeout(0.0)
            self._socket.send(encode(Abort(number, reservation)))

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def close(self) -> None:
        """End the connection for good."""
        self._retry_at = float("inf")
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self.attached = False
        if self.world is not None:
            self.world.end_asking()
            self.world = None


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
